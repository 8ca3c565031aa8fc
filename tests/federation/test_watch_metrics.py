"""What programs see of a server and a node: metrics, health, logs; and how long a node waits for its server."""

import errno
import http.client
import json
import logging
import os
import shutil
import socket
import sys
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra `deploy`")

from prometheus_client.parser import text_string_to_metric_families

from fedgrec.cli import main
from fedgrec.config.configuration import Config
from fedgrec.federation.common import json_log
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.common.packets import HELLO, KEYS, REFUSED, Packet
from fedgrec.federation.common.upkeep import BACKED_UP
from fedgrec.federation.common.web import Pages, watched
from fedgrec.federation.node.contact import LONG, Contact
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.log import writing
from fedgrec.federation.server.pages import metrics
from fedgrec.federation.server.store import WAITS_FOR, ServerStore
from fedgrec.federation.setup.backup import backup
from fedgrec.federation.setup.init import init
from tests.federation.worlds import World
from tests.waits import seconds


def got(pages: Pages, path: str) -> tuple[int, str]:
    with watched("127.0.0.1", 0, pages) as site:
        assert site is not None
        connection = http.client.HTTPConnection("127.0.0.1", site.server_port, timeout=seconds(10))
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def samples(pages: Pages) -> dict[tuple[str, str], float]:
    """Metrics as Prometheus reads them: name and label → value."""
    code, text = got(pages, "/metrics")
    assert code == 200
    families = list(text_string_to_metric_families(text))
    return {(s.name, "".join(s.labels.values())): s.value for family in families for s in family.samples}


def test_prometheus_reads_a_server(trained: World) -> None:
    found, log = samples(metrics(trained.server)), trained.log()
    assert found["fedgrec_state", "finished"] == 1
    assert sum(value for (name, _), value in found.items() if name == "fedgrec_state") == 1
    assert (found["fedgrec_round", ""], found["fedgrec_rounds", ""]) == (4, 4)
    assert found["fedgrec_bytes_up_total", ""] == sum(line["bytes_up"] for line in log)
    assert found["fedgrec_sums_applied_total", ""] == len(log)
    assert (found["fedgrec_node_users", "node2"], found["fedgrec_node_lag", "node2"]) == (6, 0)
    assert found["fedgrec_metric", "recall@5"] == trained.witness.metrics[-1]["recall@5"]


def test_prometheus_reads_what_an_operator_looks_after(tmp_path: Path) -> None:
    """Of a server and of a node alike; what is not there yet is left out."""
    made = init(tmp_path / "fed", 3, ["tea"], Config(), FederationOptions())
    for folder, pages, prefix in (
        (made.server, metrics(made.server), "fedgrec"),
        (made.nodes[0], Contact().pages(made.nodes[0]), "fedgrec_node"),
    ):
        assert (f"{prefix}_backup_age_seconds", "") not in samples(pages)
        backup(folder, tmp_path / f"copy-{folder.name}")
        os.utime(folder / BACKED_UP, (time.time() - 7200,) * 2)
        found = samples(pages)
        assert found[f"{prefix}_backup_age_seconds", ""] == pytest.approx(7200, abs=60)
        assert found[f"{prefix}_disk_free_bytes", ""] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
        assert found[f"{prefix}_certificate_days", "ca.crt"] == pytest.approx(3650, abs=1)
        assert ((f"{prefix}_certificate_days", "server.pem") in found) == (folder == made.server)
        assert not (tmp_path / f"copy-{folder.name}" / BACKED_UP).exists()


def test_a_stalled_round_is_seen(trained: World) -> None:
    """The server keeps the names in its store for as long as a sum stalls."""
    trained.give_rounds(9)
    pages = metrics(trained.server)
    with writing(trained.server), ServerStore(open_server(trained.server)) as store:
        assert samples(pages)["fedgrec_stalled", ""] == 0
        with store.transaction():
            store.put(WAITS_FOR, ["node2"])
        assert samples(pages)["fedgrec_stalled", ""] == 1
        code, text = got(pages, "/health")
    assert (code, "waits for node2" in json.loads(text)["reason"]) == (503, True)
    assert samples(pages)["fedgrec_stalled", ""] == 0, "no server runs"


def test_a_server_is_well_or_says_why_not(trained: World) -> None:
    pages = metrics(trained.server)
    code, text = got(pages, "/health")
    assert (code, json.loads(text)) == (200, {"ok": True, "state": "finished", "round": 4, "rounds": 4})
    trained.give_rounds(9)
    code, text = got(pages, "/health")
    assert (code, json.loads(text)["ok"]) == (503, False)
    assert "does not run" in json.loads(text)["reason"]
    with writing(trained.server):
        assert got(pages, "/health")[0] == 200
    (trained.server / "server.sqlite").write_text("no data base " * 99)
    code, text = got(pages, "/health")
    assert (code, "restore it from a backup" in json.loads(text)["reason"]) == (503, True)


def test_a_node_tells_of_its_server_and_not_of_its_users(tmp_path: Path) -> None:
    contact = Contact()
    contact.hear()
    contact.note_answer(Packet(KEYS))
    found = samples(contact.pages(tmp_path))
    assert {name for name, _ in found} == {
        "fedgrec_node_connected",
        "fedgrec_node_heard_seconds",
        "fedgrec_node_refused",
        "fedgrec_node_messages_answered_total",
        "fedgrec_node_messages_failed_total",
        "fedgrec_node_bytes_at_rest_total",
        "fedgrec_node_disk_free_bytes",
    }
    assert (found["fedgrec_node_connected", ""], found["fedgrec_node_messages_answered_total", ""]) == (1, 1)


def test_a_node_that_is_refused_or_alone_is_not_well(tmp_path: Path) -> None:
    contact = Contact()
    assert got(contact.pages(tmp_path), "/health")[0] == 200
    contact.note_answer(Packet(REFUSED, {"reason": "node a has no users: add some"}))
    contact.note_answer(Packet(HELLO))  # the server greets it again before it refuses it again
    code, text = got(contact.pages(tmp_path), "/health")
    assert (code, json.loads(text)["reason"]) == (503, "the server refused this node: node a has no users: add some")
    contact.note_answer(Packet(KEYS))
    assert contact.trouble == ""
    contact.heard -= LONG + 1
    assert "was not heard for" in contact.trouble


def test_a_node_counts_the_bytes_of_its_rest_and_of_nothing_else() -> None:
    """Looks that find no work, and signs of life: heads and bodies, as they go over the network inside TLS."""
    httpx, contact, sent = pytest.importorskip("httpx"), Contact(), [0]
    bodies = {"/v1/fleet/pull-messages": [b"", b"x" * 500, b""], "/v1/fleet/push-object": [b""]}
    bodies |= {"/v1/fleet/send-node-heartbeat": [b"\x08\x01"]}

    def answered(request: Any) -> Any:
        answer = httpx.Response(200, content=bodies[request.url.path].pop(0))
        lines = [*request.headers.raw, *answer.headers.raw]
        size = sum(len(b"%s: %s\r\n" % line) for line in lines) + len(request.content) + len(answer.content)
        sent[0] += size if len(answer.content) < 500 and "push" not in request.url.path else 0
        return answer

    hooks = {"response": [contact.count]}
    with httpx.Client(transport=httpx.MockTransport(answered), event_hooks=hooks) as client:
        for path in ("pull-messages", "pull-messages", "push-object", "send-node-heartbeat", "pull-messages"):
            client.post(f"https://fed.example/v1/fleet/{path}", content=b"a node's number")
    assert contact.at_rest == sent[0] > 300


def test_nothing_listens_unless_it_is_asked_for() -> None:
    with watched("127.0.0.1", None, {}) as site:
        assert site is None


@pytest.mark.parametrize("task", ["server", "node"])
def test_a_busy_port_is_one_sentence(
    trained: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """With --log-json the sentence is a line of the log."""
    pytest.importorskip("flwr", exc_type=ImportError)
    from fedgrec.federation.setup import start

    def busy(folder: Path, _: Any, watch: start.Watch, grace: float = 0.0) -> None:
        with watched(watch.host, watch.port, {}):
            pass

    monkeypatch.setattr(start, "serve", busy)
    monkeypatch.setattr(start, "node", busy)
    with socket.create_server(("127.0.0.1", 0)) as other:
        words = ["federation", task, str(trained.server), "--metrics", str(other.getsockname()[1])]
        with unlogged():
            assert main(words) == 2
        out, err = capsys.readouterr()
        assert "is in use: end what uses it, or choose another port" in err
        with unlogged(), pytest.raises(SystemExit) as ended:
            main([*words, "--log-json"])
    out, err = capsys.readouterr()
    line = json.loads(out if task == "server" else err)
    assert (ended.value.code, line["level"], line[task]) == (2, "ERROR", "server")
    assert "is in use" in line["message"]


class unlogged:  # noqa: N801 (as a function would be named)
    """Log handlers that a command adds are removed with the block."""

    def __enter__(self) -> None:
        self.loggers = [logging.getLogger(name) for name in ("", "fedgrec.server", "flwr")]
        self.before = [(list(log.handlers), log.level) for log in self.loggers]
        logging.getLogger().handlers = []

    def __exit__(self, *_: object) -> None:
        logging.captureWarnings(False)
        for log, (handlers, level) in zip(self.loggers, self.before, strict=True):
            log.handlers = handlers
            log.setLevel(level)


def test_log_lines_are_json_objects(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.Logger("fedgrec.server")
    log.addHandler(json_log.handler("server", "north", sys.stdout))
    say = json_log.sayer(log)
    say('round 1: 3 of 3 "nodes"')
    say("note: a sum is lost\nand more")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    first, second, third = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert list(first) == ["time", "level", "logger", "message", "server"]
    assert (first["level"], first["message"], first["server"]) == ("INFO", 'round 1: 3 of 3 "nodes"', "north")
    assert (second["level"], second["message"]) == ("WARNING", "a sum is lost\nand more")
    assert third["exception"].endswith("ValueError: why")


# -------------------------------------------------------------------------------------------------- waiting


def test_pauses_grow_to_a_limit_and_differ() -> None:
    pytest.importorskip("flwr", exc_type=ImportError)
    from fedgrec.federation.flower.clients import longer

    tries = [list(islice(longer(1.0, 15.0), 8)) for _ in range(50)]
    for pauses in tries:
        for pause, most in zip(pauses, (1, 2, 4, 8, 15, 15, 15, 15), strict=True):
            assert most / 2 <= pause <= most
    assert len({pauses[-1] for pauses in tries}) == 50


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[float]]:
    """A node's link to a server that is away, and its pauses; the tenth pause ends the test."""
    pytest.importorskip("flwr", exc_type=ImportError)
    import httpx

    from fedgrec.federation.flower import node_end

    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            raise node_end.Stopped

    def away(*_: object) -> None:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(node_end.time, "sleep", sleep)
    link = node_end.Link.__new__(node_end.Link)
    link.superlink, link.contact = "127.0.0.1:1", Contact(connected=True)
    link._enter = link.receive = away  # type: ignore[method-assign,assignment]
    return link, pauses


def test_a_node_waits_longer_and_longer_for_a_server_that_is_away(link: tuple[Any, list[float]]) -> None:
    from fedgrec.federation.flower.node_end import MUCH_LATER, Stopped

    node, pauses = link
    with pytest.raises(Stopped):
        node.enter()
    assert pauses[0] <= 1.0
    assert all(late > 2 * early for early, late in zip(pauses[:3], pauses[3:6], strict=True))
    assert all(MUCH_LATER / 2 <= pause <= MUCH_LATER for pause in pauses[5:])
    assert not node.contact.connected


def test_a_node_whose_disk_is_full_joins_a_server_that_has_forgotten_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedgrec.federation.flower import node_end

    monkeypatch.setattr("fedgrec.federation.common.arrays.os.fsync", full)
    link = node_end.Link.__new__(node_end.Link)
    link.remembered, link.public, link.contact, link.superlink = tmp_path / node_end.NUMBER, b"key", Contact(), "here"
    link.client = SimpleNamespace(ActivateNode=lambda request: SimpleNamespace(node_id=7))  # type: ignore[assignment]
    link.heart = SimpleNamespace(is_running=True)
    link.enter()
    assert link.node.node_id == 7
    assert list(tmp_path.iterdir()) == [], "nothing is half-written"


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_answer_for_which_there_is_no_way_is_kept_and_made_once(link: tuple[Any, list[float]], a_run: None) -> None:
    import httpx
    from flwr.app import Message, RecordDict

    from fedgrec.federation.common.packets import Packet
    from fedgrec.federation.flower.node_end import Stopped, _work
    from fedgrec.federation.flower.records import to_records

    node, _ = link
    question = Message(to_records(Packet("question")), 7, "query")
    questions, made, sent = iter([question]), list[str](), list[Message]()
    node.receive = lambda: next(questions, None)

    def send(reply: Message) -> None:
        sent.append(reply)
        if len(sent) < 3:
            raise httpx.ReadTimeout("no way")

    def reply(message: Message) -> RecordDict:
        made.append("once")
        return to_records(Packet("answer"))

    node.send = send
    with pytest.raises(Stopped):
        _work(node, reply, lambda packet: None)
    assert made == ["once"]
    assert [one is sent[0] for one in sent] == [True] * 3


@pytest.mark.parametrize("final", [True, False])
def test_a_refusal_for_good_ends_the_node_and_another_does_not(
    link: tuple[Any, list[float]], monkeypatch: pytest.MonkeyPatch, final: bool
) -> None:
    from fedgrec.federation.common.errors import RefusedError
    from fedgrec.federation.flower import node_end
    from fedgrec.federation.flower.records import to_records

    node, _ = link
    content = to_records(Packet(REFUSED, {"reason": "node-3 was removed with roster 2", "final": final}))
    node.receive = lambda: SimpleNamespace(content=content, metadata=SimpleNamespace(message_id="1"))
    node.send = lambda reply: None
    monkeypatch.setattr(node_end, "_as_reply", lambda message, reply: reply)
    with pytest.raises(RefusedError if final else node_end.Stopped) as ended:
        node_end._work(node, lambda message: to_records(Packet(REFUSED)), lambda packet: None)
    assert "was removed with roster 2" in node.contact.trouble
    assert not final or (getattr(ended.value, "code", 0), "with roster 2" in str(ended.value)) == (78, True)


def test_a_node_that_loses_its_server_does_not_hammer_it(link: tuple[Any, list[float]]) -> None:
    from fedgrec.federation.flower.node_end import Stopped, _work

    node, pauses = link
    with pytest.raises(Stopped):
        _work(node, lambda message: {}, lambda packet: None)  # type: ignore[arg-type,return-value]
    assert sum(pauses) > 10  # every other pause is between two looks for work
    assert max(pauses) > 4 * pauses[0]
