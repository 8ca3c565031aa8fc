"""Builds the sdist and the wheel, installs the wheel alone and uses it: `python -m tests.packages` (make packages).

The new environment sees the packages of this one, fedgrec excepted, so nothing is downloaded twice.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

from tests.waits import seconds

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"fedgrec-{PROJECT['version']}"
NOT_PYTHON = {".css", ".html", ".js", ".toml"}  # files that a wrongly configured build leaves out of the wheel


def run(*words: object, where: Path) -> str:
    """The output of a program that must succeed. Nothing of the checkout is on its path."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, words)],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds(300),
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def pip(*words: object, where: Path) -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *words, where=where)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def build(folder: Path) -> Path:
    """The wheel, after checking that the sdist builds the same one and that it holds every file of the package."""
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, "-t", "sdist", "-t", "wheel", where=ROOT)
    wheel, sdist = folder / f"{NAME}-py3-none-any.whl", folder / f"{NAME}.tar.gz"
    pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder / "again", sdist, where=folder)
    found = contents(wheel)
    if found != contents(folder / "again" / wheel.name):
        sys.exit(f"{sdist.name} builds another wheel than the checkout does")
    files = {path for path in (ROOT / "src").rglob("*") if path.is_file() and path.parent.name != "__pycache__"}
    sources = {path.relative_to(ROOT / "src").as_posix() for path in files}
    if sources != {name for name in found if not name.startswith(f"{NAME}.dist-info/")}:
        sys.exit(f"{wheel.name} does not hold what src/ holds")
    if missing := NOT_PYTHON - {Path(name).suffix for name in found}:
        sys.exit(f"{wheel.name} has no file of the kinds {sorted(missing)}")
    with tarfile.open(sdist) as archive:
        print(f"{sdist.name} has {len(archive.getnames())} files, {wheel.name} {len(found)}")
    return wheel


def resolve(wheel: Path) -> None:
    """The extras resolve under constraints.txt, and `dev` holds all but `bench`: only fedgrec is left to install.

    pip looks at the packages that are installed here first, so this costs seconds.
    """
    extras = ",".join(sorted(PROJECT["optional-dependencies"].keys() - {"bench"}))
    said = pip("install", "--dry-run", "-c", ROOT / "constraints.txt", f"{wheel}[{extras}]", where=wheel.parent)
    would = [line for line in said.splitlines() if line.startswith("Would install")]
    if would and would != [f"Would install {NAME}"]:
        sys.exit(f"dev lacks packages of the extras {extras}: {would[0]}")
    print(f"the extras {extras} resolve")


def use(wheel: Path, folder: Path) -> None:
    """In a new environment: the version, a training, its recommendations."""
    venv.create(folder / "env", with_pip=False)
    python, fedgrec = (folder / "env" / "bin" / program for program in ("python", "fedgrec"))
    pip("--python", python, "install", "-q", "--no-deps", "--no-compile", wheel, where=folder)
    inside = folder / "env" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    # A line of a .pth file makes packages visible and skips the .pth files beside them: not the editable fedgrec.
    here = "\n".join(path for path in sys.path if path.endswith("site-packages"))
    (inside / "packages-of-the-checks.pth").write_text(here, encoding="utf-8")
    if not (home := run(python, "-c", "import fedgrec; print(fedgrec.__file__)", where=folder)).startswith(str(inside)):
        sys.exit(f"not the wheel was used, but {home}")
    if (said := run(fedgrec, "--version", where=folder).strip()) != f"fedgrec {PROJECT['version']}":
        sys.exit(f"fedgrec --version says {said!r}, pyproject.toml has {PROJECT['version']}")
    quick = "--kernel reference --users-per-round 20"  # nothing to compile
    run(fedgrec, *f"train --data demo --rounds 3 {quick} --out first".split(), where=folder)
    said = run(fedgrec, "recommend", "first", "--user", "0", where=folder)
    if " 1. " not in said or not (folder / "first" / "report.html").exists():
        sys.exit(f"the installed fedgrec recommends nothing, or wrote no report:\n{said}")
    print("the installed wheel trains, writes its report and recommends")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        made = build(place)
        resolve(made)
        use(made, place)
