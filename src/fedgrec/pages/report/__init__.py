"""The page that a person looks at after a run: `write_report`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedgrec.data.files import write_json, write_text
from fedgrec.pages.report import run_page
from fedgrec.pages.report.gather import BASELINES, PEOPLE, read_run

__all__ = ["write_report"]


def write_report(
    folder: Path,
    baselines: Mapping[str, Mapping[str, float]] | None = None,
    users: Sequence[str] = (),
    people: int = PEOPLE,
    item_names: Path | None = None,
) -> Path:
    """Write report.html into the folder of a finished run; returns the page's path.

    `baselines` are other systems' results on the same split, such as {'mf': {'recall@20': 0.04}}, kept in the folder
    for later reports; a popularity list is always shown. The page shows `people` evenly spaced users, and those with
    the ids `users`. `item_names` is a CSV of items' names to use instead of the one that the run keeps.
    """
    run = read_run(Path(folder), baselines, users, people, item_names)
    if run.baselines:
        write_json(run.folder / BASELINES, run.baselines)
    path = run.folder / "report.html"
    write_text(path, run_page.render(run))
    path.chmod(0o600)  # it shows what people have, as users.safetensors does
    return path
