"""The page that a person looks at after a run: `write_report`."""

from collections.abc import Mapping
from pathlib import Path

from fedgrec.files import write_bytes, write_json, write_text
from fedgrec.report import drawing, page, pictures
from fedgrec.report.gather import BASELINES, read_run

__all__ = ["write_report"]


def write_report(
    folder: Path, baselines: Mapping[str, Mapping[str, float]] | None = None, item_names: Path | None = None
) -> Path:
    """Write report.html and its pictures into the folder of a finished run; returns the page's path.

    `baselines` are other systems' results on the same split, such as {'popularity': {'recall@20': 0.04}};
    they are kept in the folder, so that a report written again still has them. `item_names` is a CSV that says what
    items are called, instead of the one that the run keeps (item_names.py).
    """
    drawing.require()
    run = read_run(Path(folder), baselines, item_names)
    drawn = pictures.draw(run)
    if baselines is not None:
        write_json(run.folder / BASELINES, run.baselines)
    for picture in drawn:
        write_bytes(run.folder / picture.name, picture.png)
    path = run.folder / "report.html"
    write_text(path, page.render(run, drawn))
    return path
