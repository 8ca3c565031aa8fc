"""The dashboard: who may ask, what it answers, and what a browser shows."""

import base64
import http.client
import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgrec.cli import main
from fedgrec.federation.common.web import Site
from fedgrec.federation.server.log import writing
from fedgrec.federation.server.pages import dashboard
from tests.browser import CHROMIUM
from tests.federation.rosters import changed, give
from tests.federation.worlds import World
from tests.waits import seconds

EVIL = "<script>document.title='taken'</script>"


@pytest.fixture
def site(trained: World) -> Iterator[Site]:
    give(trained.server.parent, changed(trained.server.parent, 0, name=EVIL))
    with writing(trained.server) as say:
        say(f"note: node {EVIL} did not introduce itself")
    with serving(Site("127.0.0.1", 0, dashboard(trained.server))) as site:
        yield site


class serving:  # noqa: N801 (as a function would be named)
    """A site that answers while the block lasts."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __enter__(self) -> Site:
        threading.Thread(target=self.site.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self.site

    def __exit__(self, *_: object) -> None:
        self.site.shutdown()
        self.site.server_close()


def ask(site: Site, path: str, method: str = "GET", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", site.server_port, timeout=seconds(10))
    connection.putrequest(method, path, skip_host=host is not None)
    if host:
        connection.putheader("Host", host)
    connection.endheaders()
    return connection.getresponse()


def test_it_answers_with_the_page_and_the_status(site: Site) -> None:
    page = ask(site, "/")
    html, policy = page.read().decode(), page.headers["Content-Security-Policy"]
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"(?:src|href)=.?(?:https?:)?//", html)  # it asks no other site
    assert "innerHTML" not in html
    found = ask(site, "/status.json?now")
    assert (found.status, found.headers["Cache-Control"]) == (200, "no-store")
    assert json.loads(found.read())["nodes"][0]["name"] == EVIL
    assert "Access-Control-Allow-Origin" not in found.headers
    assert ask(site, "/../roster.json").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_it_answers_get_alone(site: Site, method: str) -> None:
    answer = ask(site, "/status.json", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


def test_other_sites_cannot_point_a_name_of_theirs_here(site: Site) -> None:
    port = site.server_port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::2]",
        "8",
    ):
        assert ask(site, "/status.json", host=host).status == 421, host
    assert ask(site, "/status.json", host="").status == 421
    for host in (f"127.0.0.1:{port}", "localhost", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert ask(site, "/status.json", host=host).status == 200, host
    everywhere = Site("0.0.0.0", 0, {})
    everywhere.server_close()
    assert [everywhere.goes_by(host) for host in ("10.0.0.7:80", socket.gethostname(), "evil.example")] == [
        True,
        True,
        False,
    ]


def test_a_store_that_was_damaged_is_a_sentence_on_the_page(site: Site, trained: World) -> None:
    (trained.server / "server.sqlite").write_text("no data base " * 99)
    answer = ask(site, "/status.json")
    assert answer.status == 503
    assert "restore it from a backup" in json.loads(answer.read())["reason"]


@pytest.mark.parametrize(("words", "sentence"), [([], "server.json is missing"), (["--port", "PORT"], "is in use")])
def test_mistakes_are_one_sentence(
    trained: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        folder = trained.server if words else tmp_path / "nothing"
        code = main(["federation", "dashboard", str(folder), *(port if word == "PORT" else word for word in words)])
    err = capsys.readouterr().err
    assert (code, len(err.splitlines())) == (2, 1)
    assert sentence in err


def test_a_browser_draws_it(site: Site, tmp_path: Path) -> None:
    """The script runs under its policy, curves and rows are there, and a name is text."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    words = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path}/home",
    ]
    words += ["--virtual-time-budget=3000", "--dump-dom", site.address + "/"]
    done = subprocess.run([CHROMIUM, *words], capture_output=True, text=True, timeout=seconds(120), check=False)
    page = done.stdout
    assert "<title>Federation server</title>" in page
    assert page.count("<polyline") == 5  # two metrics, seconds, bytes up and down
    assert len(re.findall(r"<tr><th>", page)) == 3
    shown = EVIL.replace("<", "&lt;").replace(">", "&gt;")
    assert page.count(shown) == 2  # among the nodes and in the log
    assert EVIL not in page


def test_the_policy_names_what_is_in_the_page(site: Site) -> None:
    page = ask(site, "/")
    html = page.read().decode()
    (hashed,) = re.findall(r"script-src 'sha256-([^']+)'", page.headers["Content-Security-Policy"])
    assert len(base64.b64decode(hashed)) == 32
    assert html.count("<script>") == html.count("<style>") == 1
    assert not re.findall(r"\son\w+=|style=", html)  # nothing that the policy would forbid
