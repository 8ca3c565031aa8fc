"""Downloads against a server that can be cut off, can lie, and can resume."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedgrec.data import registry
from fedgrec.data.datasets import load, locate
from fedgrec.errors import DataError

FILES = {"train.txt": b"0 0 1 2\n1 0 2\n" * 50, "test.txt": b"0 3\n1 1\n"}


class Server:
    """A web server whose behaviour a test sets."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.cut_after: int | None = None  # send this many bytes, then hang up
        self.ranges = True
        self.requests: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name, asked = self.path.rsplit("/", 1)[1], self.headers.get("Range")
                outer.requests.append((name, asked))
                if name not in outer.files:
                    self.send_error(404)
                    return
                start = int(asked[6:-1]) if asked and outer.ranges else 0
                body = outer.files[name][start:]
                if asked and not body:
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: outer.cut_after])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    checksums = {name: "sha256:" + hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
    url = f"http://127.0.0.1:{server.http.server_port}/toy"
    monkeypatch.setitem(registry.SOURCES, "toy", registry.Source(url, checksums, 2, 4, 5, 2))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDGREC_DATA", raising=False)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def test_a_set_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    folder = locate("toy")
    assert folder == tmp_path / "cache" / "fedgrec" / "toy"
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == FILES
    assert load("toy").split.train.n_pairs == 5
    assert len(server.requests) == 2


def test_a_cut_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "fedgrec" / "toy"
    server.cut_after = 100
    with pytest.raises(DataError, match="run again to go on"):
        locate("toy")
    assert [f.name for f in folder.iterdir()] == ["train.txt.part"]
    assert (folder / "train.txt.part").stat().st_size == 100
    server.cut_after = None
    locate("toy")
    assert server.requests[1] == ("train.txt", "bytes=100-")
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == FILES


def test_a_server_that_cannot_resume_sends_all_again(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "cache" / "fedgrec" / "toy" / "train.txt.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(FILES["train.txt"][:60])
    server.ranges = False
    assert (locate("toy") / "train.txt").read_bytes() == FILES["train.txt"]


def test_a_whole_part_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "cache" / "fedgrec" / "toy" / "train.txt.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(FILES["train.txt"])
    assert (locate("toy") / "train.txt").read_bytes() == FILES["train.txt"]


def test_a_wrong_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    server.files["train.txt"] = b"<html>sorry</html>"
    with pytest.raises(DataError, match="not the published file"):
        locate("toy")
    assert not list((tmp_path / "cache" / "fedgrec" / "toy").iterdir())


def test_an_absent_file_is_reported(server: Server) -> None:
    del server.files["test.txt"]
    with pytest.raises(DataError, match="answered 404 Not Found: try again later, or put the file at"):
        locate("toy")


@pytest.mark.usefixtures("server")
def test_no_server_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    source = registry.SOURCES["toy"]
    monkeypatch.setitem(registry.SOURCES, "toy", registry.Source("http://127.0.0.1:9", source.checksums, 2, 4, 5, 2))
    with pytest.raises(DataError, match="could not download"):
        locate("toy")


def test_ones_own_folder_comes_first_and_is_checked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own" / "toy"
    own.mkdir(parents=True)
    for name, data in FILES.items():
        (own / name).write_bytes(data)
    monkeypatch.setenv("FEDGREC_DATA", str(tmp_path / "own"))
    assert locate("toy") == own
    (own / "test.txt").write_bytes(b"0 1\n")
    with pytest.raises(DataError, match=r"test\.txt is not the published toy"):
        locate("toy")
    assert not server.requests


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"known are gowalla, yelp2018, amazon-book. Did you mean 'yelp2018'\?"):
        locate("yelp")
