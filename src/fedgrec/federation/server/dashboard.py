"""The dashboard: one page that asks for the server's status every two seconds and draws it."""

import base64
import hashlib
import re
from dataclasses import asdict
from importlib import resources
from pathlib import Path

from fedgrec.federation.common.web import NOTHING, Answer, Pages, as_json
from fedgrec.federation.server.status import status

PAGE = "dashboard.html"


def pages(folder: Path) -> Pages:
    """The page, and what it asks for."""
    html = (resources.files("fedgrec.federation.server") / PAGE).read_text("utf-8")
    page = Answer(html.encode(), "text/html", policy=policy(html))
    return {"/": lambda: page, "/status.json": lambda: as_json(asdict(status(folder)))}


def policy(html: str) -> str:
    """A browser runs this page's own style and script, by their hashes, and asks nobody but this site."""

    def hashed(tag: str) -> str:
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    own = f"style-src {hashed('style')}; script-src {hashed('script')}; connect-src 'self'; img-src data:"
    return f"{NOTHING}; {own}; base-uri 'none'; form-action 'none'"
