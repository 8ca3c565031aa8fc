"""What a server shows of its status: the dashboard to people, `/metrics` and `/health` to programs.

The dashboard is one page that asks for the status every two seconds and draws it.
"""

import base64
import hashlib
import re
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from fedgrec.federation.common import upkeep
from fedgrec.federation.common.web import NOTHING, Answer, Pages, as_json, health
from fedgrec.federation.server.status import STATES, Status, status

if TYPE_CHECKING:
    from fedgrec.federation.common.exposition import Exposition

PAGE = "dashboard.html"


def dashboard(folder: Path) -> Pages:
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


def metrics(folder: Path) -> Pages:
    """The status for Prometheus, and for programs that restart services."""
    from fedgrec.federation.common.exposition import Exposition

    def numbers() -> Answer:
        shown = Exposition("fedgrec_")
        _show(status(folder), shown)
        upkeep.show(folder, shown)
        return shown.page()

    def well() -> Answer:
        s = status(folder)
        return health(s.trouble, {"state": s.state, "round": s.round, "rounds": s.rounds})

    return {"/metrics": numbers, "/health": well}


def _show(s: Status, shown: "Exposition") -> None:
    states = {name: float(name == s.state) for name in STATES}
    shown.labelled("state", "1 for the state that the federation is in", "state", states)
    shown.gauges(
        ("season", "the season that it is in, or rests after", s.season),
        ("changed_users", "users who had changes when they were last counted", s.changed),
        ("serves", "the season whose model nodes recommend with", s.serves),
        ("catalogue", "the version of the catalogue", s.catalogue),
        ("round", "training rounds that are over", s.round),
        ("rounds", "training rounds with which the season ends", s.rounds),
        ("rounds_per_minute", "over the last rounds", s.rounds_per_minute),
        ("seconds_left", "until the last round, at this rate", s.seconds_left),
        ("lost_in_a_row", "sums that were lost since the last one that counted", s.lost_in_a_row),
        ("stalled", "1 while a sum waits for nodes whose answer is overdue", float(bool(s.waits_for))),
    )
    shown.labelled("waits_for", "1 for a node whose answer is overdue", "node", dict.fromkeys(s.waits_for, 1.0))
    if s.privacy:
        shown.gauges(
            ("epsilon_spent", "what all sums so far may tell of one unit", s.privacy["spent"]),
            ("epsilon_agreed", "what all sums ever may tell of one unit", s.privacy["agreed"]),
        )
    shown.counters(
        ("bytes_up", "bytes that nodes have sent in sums", s.bytes_up),
        ("bytes_down", "bytes that nodes were sent in sums", s.bytes_down),
        ("sum_seconds", "seconds that sums took", s.seconds),
        ("sums_applied", "sums that count", s.sums_applied),
        ("sums_lost", "sums that were lost", s.sums_lost),
    )
    if s.metrics:
        last = s.metrics[-1]
        shown.labelled("metric", "the last evaluation", "name", {name: last[name] for name in last if "@" in name})
        shown.gauges(("metric_round", "the round that it was of", last["round"] + 1))
    for name, text in (
        ("users", "users that the node has brought"),
        ("lag", "training rounds since the last one that the node is in"),
        ("heard_seconds", "seconds since the node's last answer"),
    ):
        here = {node.name: getattr(node, name) for node in s.nodes if not node.removed}
        known = {node: value for node, value in here.items() if value is not None}
        shown.labelled(f"node_{name}", text, "node", known)
