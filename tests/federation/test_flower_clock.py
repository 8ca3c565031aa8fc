"""A node whose system clock is wrong, or goes wrong while it runs, over the real network."""

import contextlib
import datetime
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec.federation.common import certificates
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError, RefusedError
from fedgrec.federation.common.network import CA, KEYS, TLS_CERTIFICATE, TLS_KEY, read_flower_key
from fedgrec.federation.common.roster import ROSTER
from fedgrec.federation.flower.node_end import Link
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.flower.server_end import FlowerServer
from fedgrec.federation.node.refresh import Watcher
from fedgrec.federation.setup.changes import remove_node, rotate_keys
from fedgrec.federation.setup.init import Made
from fedgrec.federation.setup.start import start_node
from tests.federation.flower_network import TAPPED_APP, as_world, ended, founded, progress, running, until
from tests.federation.worlds import people
from tests.waits import seconds, slowness

HOUR, BEARABLE = 3600, 240  # seconds; a node may be five minutes behind
SENTENCES = {  # beyond an hour behind, and 825 days ahead, the server's certificate is the first to fail
    -HOUR: "refuses this node",
    HOUR: "refuses this node",
    -HOUR - 400: "has a certificate that is not valid now",
    900 * 24 * HOUR: "has a certificate that is not valid now",
}
# A library that shifts the whole clock of a process (also for TLS) by CLOCK_OFF seconds, once the file CLOCK_WHEN
# exists.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime"), code = real(clock, at);
    if (clock == CLOCK_REALTIME && !access(getenv("CLOCK_WHEN"), F_OK)) at->tv_sec += atol(getenv("CLOCK_OFF"));
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return code;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return at ? *at = now.tv_sec : now.tv_sec;
}
"""


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """A library that makes the clock of a process wrong."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    command = [compiler, "-shared", "-fPIC", "-o", str(tmp_path / "clock.so"), "-x", "c", "-", "-ldl"]
    subprocess.run(command, input=CLOCK.encode(), check=True, timeout=seconds(60))
    return tmp_path / "clock.so"


def wrong(shim: Path, seconds: int, when: Path | None = None) -> dict[str, str]:
    """The environment of a process whose clock is off by this much: always, or once this file exists."""
    return {"LD_PRELOAD": str(shim), "CLOCK_OFF": str(seconds), "CLOCK_WHEN": str(when or shim)}


@pytest.mark.slow
def test_a_node_whose_clock_is_an_hour_off_ends_with_a_sentence_and_the_others_go_on(
    tmp_path: Path, shim: Path
) -> None:
    quick = {"rounds": 10, "deadline": 6.0 * slowness(), "work_deadline": 6.0 * slowness(), "retries": 9}
    made, jump = founded(tmp_path, options=quick, layers=1), tmp_path / "jump"
    commands = [[sys.executable, "-m", "fedgrec", "federation", "node", str(node)] for node in made.nodes]
    with Processes(made.server.parent / "logs") as processes:
        server = FlowerServer(made.server, processes, TAPPED_APP)
        try:
            server.start()
            start_node(made.nodes[0], processes)
            processes.start("node-1", commands[1], wrong(shim, -BEARABLE))
            Watcher(made.nodes[2]).load()  # two at once would both take its users in
            for off in SENTENCES:
                processes.start(f"off by {off}", commands[2], wrong(shim, off))
            for off, sentence in SENTENCES.items():
                assert processes.running.pop(f"off by {off}").wait(60) == 2
                assert sentence in processes.last_words(f"off by {off}")
                assert "the clock here is wrong" in processes.last_words(f"off by {off}")
            until(lambda: all(f"node-{i} joined" in progress(made) for i in (0, 1)), 30, "the others are not let in")
            assert "node-2" not in progress(made), "it was let in"
            assert "warm-up" not in progress(made), "the server did not wait for it"

            processes.start("node-2", commands[2], wrong(shim, HOUR, jump))  # right, for now
            until(lambda: "round 1:" in progress(made) or processes.check(), 60, "the first round does not come")
            jump.touch()
            assert processes.running.pop("node-2").wait(60) == 2
            assert "the clock here is wrong" in processes.last_words("node-2")
            start_node(made.nodes[2], processes)  # its clock was set
            assert ended(server, 150) == ""
        finally:
            server.close()
    world = as_world(made)
    assert world.is_its_simulation()
    assert world.pending() == 0
    assert {line["round"] for line in world.log() if line["stage"] == "train"} == set(range(10))
    first, *later = [line["included"] for line in world.applied("train")]
    assert first == [0, 1, 2], "a clock that is a little behind keeps nobody out"
    assert [0, 1] in later, "nobody was lost: a test of nothing"
    assert all({0, 1} <= set(included) for included in later)


# ------------------------------------------------------------------------------- further off than the certificate


@contextmanager
def greeting(made: Made) -> Iterator[str]:
    """The address of somebody on loopback who has the server's certificate, and nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server / TLS_CERTIFICATE, made.server / TLS_KEY)

    def greet(door: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the caller refuses the certificate, or nobody calls
            guest, _ = door.accept()
            guest.settimeout(10)
            with guest, context.wrap_socket(guest, server_side=True):
                pass

    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(10)
        thread = threading.Thread(target=greet, args=(door,))
        thread.start()
        try:
            yield f"127.0.0.1:{door.getsockname()[1]}"
        finally:
            thread.join()


def refusal(made: Made, ca: Path) -> str:
    """The first node's refusal of this server."""
    folder = made.nodes[0]
    with greeting(made) as address:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Flower uses a deprecated call of a library
            link = Link(folder, address, ca, read_flower_key(folder))
        with pytest.raises(FederationError) as refused:
            link.enter()
        link.client.close()
    return str(refused.value)


@pytest.mark.parametrize(
    ("off", "why"),
    [(datetime.timedelta(seconds=-4000), "is not yet valid"), (datetime.timedelta(days=900), "has expired")],
    ids=["behind", "ahead"],
)
def test_a_date_that_does_not_fit_may_be_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: datetime.timedelta, why: str
) -> None:
    """Certificates with shifted dates stand for a node whose clock is off."""

    class Then(datetime.datetime):
        @classmethod
        def now(cls, zone: datetime.tzinfo | None = None) -> "Then":
            return super().now(zone) - off

    names = SimpleNamespace(datetime=Then, timedelta=datetime.timedelta, UTC=datetime.UTC)
    monkeypatch.setattr(certificates, "datetime", names)
    made = founded(tmp_path, users=2)
    said = refusal(made, made.nodes[0] / CA)
    assert re.search(rf"certificate {why}.*: it must be renewed, or the clock here is wrong$", said), said


def test_a_server_of_another_authority_is_not_blamed_on_the_clock(tmp_path: Path) -> None:
    made, other = founded(tmp_path / "one", users=2), founded(tmp_path / "other", users=2)
    said = refusal(made, other.nodes[0] / CA)
    assert re.search(r"is not the one that .*ca\.crt vouches for .*: ask who runs it", said), said
    assert "clock" not in said


# --------------------------------------------------------------------------------------------------- not wanted


@pytest.mark.slow
def test_a_node_that_is_removed_or_has_old_keys_ends_for_good_and_the_others_go_on(tmp_path: Path) -> None:
    """While it runs, because the server says so; at its next start, because the server has not its key any more."""
    options = {"rounds": 200, "retries": 99, "start_seconds": 60.0 * slowness()}
    made = founded(tmp_path, crowd=people(5, 3), options=options, layers=1)
    fed = made.server.parent
    with Processes(fed / "logs") as processes:
        server = FlowerServer(made.server, processes, TAPPED_APP)
        try:
            server.start()
            for node in made.nodes:
                start_node(node, processes)
            until(lambda: "round 1:" in progress(made) or processes.check(), 60, "the first round does not come")
            shutil.copytree(fed, home := tmp_path / "home")  # where the authority is: its new keys reach no node here
            remove_node(home, "node-4")
            rotate_keys(home, "node-3")
            write_private(made.server / ROSTER, (home / "server" / ROSTER).read_bytes())
            (made.server / KEYS / "node-4.pub").unlink()
            for name, why in (("node-4", "was removed with roster 2"), ("node-3", "has not the key of node-3")):
                assert processes.running.pop(name).wait(seconds(60)) == RefusedError.code
                assert why in processes.last_words(name)
            before = len(as_world(made).applied("train"))
            until(lambda: len(as_world(made).applied("train")) > before + 2, 60, "the others do not go on")
        finally:
            server.close()
    with running(made) as (_, processes):
        assert processes.running.pop("node-4").wait(seconds(60)) == RefusedError.code
        assert "was removed with roster 2" in processes.last_words("node-4")
