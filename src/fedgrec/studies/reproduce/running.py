"""Do the missing runs of a target, then write its tables and pictures."""

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from fedgrec import __version__
from fedgrec.data.files import claimed, write_text
from fedgrec.errors import RunError
from fedgrec.pages.report import page
from fedgrec.pages.tables import Grid, csv, html, latex, markdown
from fedgrec.runs.simulation import Observer
from fedgrec.studies.compare.comparison import Comparison, compare
from fedgrec.studies.reproduce.plan import Group, Scope, Shown, Target, groups


@dataclass(frozen=True)
class Outcome:
    grids: list[Grid]
    failures: int
    stopped: bool  # before all runs were done


def reproduce(
    target: Target, scope: Scope, runs: Path, out: Path, command: str = "", watcher: Observer | None = None
) -> Outcome:
    """Run and resume in `runs`; write into `out`, in a folder with the names of the target and of the reading."""
    watcher, done, failures = watcher or Observer(), [], 0
    planned = groups(target, scope)
    for group in planned:
        if watcher.stop_wanted():
            break
        if not group.target.entries:
            done.append(group)
            continue
        comparison = _compared(group, runs, watcher, scope.only_finished)
        failures += len(comparison.failures)
        done.append(replace(group, compared=_named(comparison, group.target)))
    shown = target.show(done) if done else Shown([], [])
    if done:
        write(target, shown, out / folder(target, scope), command)
    compared = [group.compared for group in done if group.compared]
    left = any(each.stopped and not all(run.finished for run in each.runs) for each in compared)
    return Outcome(list(shown.grids), failures, len(done) < len(planned) or left)


def folder(target: Target, scope: Scope) -> str:
    """The name of the folder that a target's tables go into."""
    return "-".join(filter(None, [target.name, scope.reading]))


def _compared(group: Group, runs: Path, watcher: Observer, only_finished: bool) -> Comparison:
    try:
        return compare(group.settings, runs / group.folder, watcher, only_finished)
    except RunError as error:  # `compare` keeps runs under --out, `reproduce` under --runs
        raise RunError(str(error).replace("--out", "--runs")) from None


def _named(comparison: Comparison, target: Target) -> Comparison:
    """Rows in the plan's order, and rows and runs under the names that the target gives them."""
    labels, names = [entry.label for entry in target.entries], target.names
    rows = sorted(comparison.table.rows, key=lambda row: labels.index(row.label))
    rows = [replace(row, label=names.get(row.label, row.label)) for row in rows]
    named = [
        replace(run, entry=replace(run.entry, label=names.get(run.entry.label, run.entry.label)))
        for run in comparison.runs
    ]
    return replace(comparison, table=replace(comparison.table, rows=rows), runs=named)


# -------------------------------------------------------------------------------------------------- files


def write(target: Target, shown: Shown, out: Path, command: str) -> None:
    """Tables, numbers and charts."""
    made = f"Made by `{command}`, {origin()}." if command else f"Made by {origin()}."
    images = [f"![{figure.caption}]({figure.name}.svg)\n\n{figure.caption}\n" for figure in shown.figures]
    text = "\n".join([f"# {target.title}\n", f"{made}\n", *map(markdown, shown.grids), *images])
    floats = [latex(grid, f"{target.name}-{i + 1}") for i, grid in enumerate(shown.grids)]
    sections = [(grid.title, html(grid)) for grid in shown.grids]
    sections += [(f"Charts: {figure.name}", figure.html()) for figure in shown.figures]
    with claimed(out, wait=True):
        for figure in shown.figures:
            write_text(out / f"{figure.name}.svg", figure.file())
        write_text(out / "table.html", page.render(target.title, made, sections))
        write_text(out / "table.md", text)
        write_text(out / "table.csv", csv(shown.records))
        write_text(out / "table.tex", "\n".join([f"% {made}", "", *floats]))
        if shown.curves:
            write_text(out / "curves.csv", csv(shown.curves))


def origin() -> str:
    """The version, and the commit where this is a checkout."""

    def git(*words: str) -> str:
        folder = Path(__file__).parent
        try:
            done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.TimeoutExpired):  # no git here
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    version, commit = f"fedgrec {__version__}", git("rev-parse", "--short=12", "HEAD")
    # An installed package may lie inside somebody else's checkout.
    if not commit or not git("ls-files", "--", "../../errors.py"):
        return version
    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no", "--", "..") else ""
    return f"{version}, commit {commit}{changed}"
