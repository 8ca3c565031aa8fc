"""A recommender as a notebook shows it: what it is, its metrics, and how it learned."""

from html import escape
from typing import Any

from fedgrec.errors import many
from fedgrec.models.metrics import USUAL
from fedgrec.models.recommender import Recommender

WIDTH, HEIGHT = 360, 90


def described(name: str, model: Recommender | None, metrics: list[dict[str, Any]]) -> str:
    """HTML without script; every text in it is escaped."""
    about = ["not trained yet"]
    if model:
        sizes = many(model.round, "round"), many(len(model.user_ids), "user"), many(len(model.item_ids), "item")
        about = [f"{model.config.method}: {', '.join(sizes)}"]
    for line in [line for line in metrics if model and line["round"] == model.round][-1:]:
        found = ", ".join(f"{key} {value:.4f}" for key, value in line.items() if key.partition("@")[0] in USUAL)
        about.append(f"round {line['round']:,} on {line['split']} items: {found}")
    texts = "".join(f"<p>{escape(text)}</p>" for text in about)
    return f"<div><code>{escape(name)}</code>{texts}{_curve(metrics) if metrics else ''}</div>"


def _curve(metrics: list[dict[str, Any]]) -> str:
    """The first metric against rounds, on the items that judge."""
    split, key = metrics[0]["split"], next(key for key in metrics[0] if "@" in key)
    points = [(line["round"], line[key]) for line in metrics if line["split"] == split]
    right, top = (max(*column, 1e-9) for column in zip(*points, (0, 0), strict=True))
    path = " ".join(f"{WIDTH * x / right:.1f},{HEIGHT * (1 - y / top):.1f}" for x, y in points)
    label = escape(f"{key} on {split} items, up to {top:.4f}, in {right:,} rounds")
    return (
        f'<svg viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" width="{WIDTH}" role="img" aria-label="{label}" fill="none" '
        f'stroke="currentColor"><path d="M0,0V{HEIGHT}H{WIDTH}" opacity="0.3"/><polyline points="{path}"/></svg>'
        f"<div>{label}</div>"
    )
