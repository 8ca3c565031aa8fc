"""A small site behind `fedgrec serve`: a form asks for a person's id, and the page lists what they should see next.

    fedgrec serve RUN --token-file token
    python examples/web_page.py token

The token stays in this process; a browser never sees it.
"""

import json
import sys
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

PAGE = """<!doctype html><meta name="viewport" content="width=device-width"><title>Next</title>
<style>body {{ font: 1.1rem system-ui; max-width: 30rem; margin: 2rem auto; color-scheme: light dark }}</style>
<h1>What next?</h1>
<form><label>Your id <input name="user" value="{user}"></label> <button>Show</button></form>{found}"""


def ask(door: str, token: str, path: str, question: dict[str, Any]) -> dict[str, Any]:
    """The door's answer; its `error` where it refuses."""
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        with urlopen(Request(door + path, json.dumps(question).encode(), head), timeout=10) as answer:
            return dict(json.load(answer))
    except HTTPError as refused:
        return dict(json.load(refused))


def page(door: str, token: str, user: str) -> str:
    answer = ask(door, token, "/recommend", {"user": user, "k": 5}) if user else {}
    items = [f"<li>{escape(str(item.get('title', item['item'])))}</li>" for item in answer.get("items", [])]
    found = f"<ol>{''.join(items)}</ol>" if items else f"<p>{escape(answer.get('error', ''))}</p>"
    return PAGE.format(user=escape(user), found=found)


def site(door: str, token: str, port: int = 8000) -> ThreadingHTTPServer:
    class Visit(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            user = parse_qs(urlsplit(self.path).query).get("user", [""])[0]
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page(door, token, user).encode())

    return ThreadingHTTPServer(("127.0.0.1", port), Visit)


def main(token_file: str, door: str = "http://127.0.0.1:8642") -> None:
    with site(door, Path(token_file).read_text().split()[0]) as server:
        print(f"http://127.0.0.1:{server.server_port}")
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
