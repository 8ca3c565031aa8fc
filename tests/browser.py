"""Chromium without a window, driven by its DevTools over a pipe; and a proxy that records all its requests."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.waits import seconds

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
# Chromium's own requests to its maker's servers are switched off, or sent to a host that no page uses. So all other
# requests come from a page.
QUIET = (
    "AutofillServerCommunication,NetworkTimeServiceQuerying,OptimizationHints,PreconnectToSearch,MediaRouter,Translate"
)
FLAGS = (
    "--headless", "--no-first-run", "--disable-gpu", "--disable-extensions", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--remote-debugging-pipe", "--no-pings",
    "--disable-domain-reliability", f"--disable-features={QUIET}", "--gaia-url=http://browser.test/",
    "--google-base-url=http://browser.test/",
)  # fmt: skip
PATIENCE = 75  # seconds that a browser may live on an idle machine
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class Recorder:
    """Every request that a browser makes goes to this proxy. The host `page.test` is a folder; there is no other."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.folder = Path()
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not self.path.startswith("http://browser.test/"):
                    recorder.asked.append(self.path)
                path = recorder.folder / self.path.removeprefix("http://page.test/").partition("?")[0]
                found = self.path.startswith("http://page.test/") and path.is_file()
                content = path.read_bytes() if found else b""
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", KINDS.get(path.suffix, "text/plain"))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                with suppress(BrokenPipeError):  # the browser has ended
                    self.wfile.write(content)

            do_POST = do_HEAD = do_CONNECT = do_OPTIONS = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


class Browser:
    """One tab."""

    def __init__(self, write: Any, read: Any) -> None:
        self.write, self.read, self.numbers = write, read, itertools.count(1)
        self.session: str | None = None
        self.loaded: set[str] = set()  # documents that have loaded everything that they name
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # else a busy machine may give it the focus late

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self.numbers)
        about = {"sessionId": self.session} if self.session else {}
        self.write.write(json.dumps({"id": number, "method": method, "params": parameters, **about}).encode() + b"\0")
        self.write.flush()
        while (answer := self._read()).get("id") != number:
            pass
        return answer["result"]

    def _read(self) -> Any:
        """The next answer or event."""
        text = bytearray()
        while (letter := self.read.read(1)) != b"\0":
            assert letter, "the browser has ended, or took too long"
            text += letter
        answer = json.loads(text)
        assert "error" not in answer, answer
        if answer.get("method") == "Page.lifecycleEvent" and answer["params"]["name"] == "load":
            self.loaded.add(answer["params"]["loaderId"])
        return answer

    def open(self, url: str) -> None:
        """Wait until everything that the page names is loaded."""
        for each in ("about:blank", url):  # Chromium does not reload a page if only its #… changes
            document = self.call("Page.navigate", url=each)["loaderId"]
            while document not in self.loaded:
                self._read()

    def look(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path: Path, width: int, dark: bool = False, height: int = 0) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height or 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.look("new Promise(done => setTimeout(done, 300))")
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=not height)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browsing(profile: Path) -> Iterator[tuple[Browser, Recorder]]:
    """A browser all of whose requests are recorded, until the end of the block."""
    recorder = Recorder()
    threading.Thread(target=recorder.server.serve_forever, daemon=True).start()
    proxy = f"http://127.0.0.1:{recorder.server.server_address[1]}"
    (commands, write), (read, answers) = os.pipe(), os.pipe()
    words = [
        str(CHROMIUM),
        *FLAGS,
        f"--user-data-dir={profile}",
        f"--proxy-server={proxy}",
        "--proxy-bypass-list=<-loopback>",
    ]
    words += ["--no-sandbox"] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", *words],
        pass_fds=(commands, answers), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(commands)
    os.close(answers)
    patience = threading.Timer(seconds(PATIENCE), process.kill)
    patience.start()
    with os.fdopen(write, "wb") as to, os.fdopen(read, "rb") as back:
        try:
            browser = Browser(to, back)
            yield browser, recorder
            browser.session = None
            browser.call("Browser.close")
            process.wait(20)
        finally:
            patience.cancel()
            process.kill()
            process.wait()
            recorder.server.shutdown()
            recorder.server.server_close()
