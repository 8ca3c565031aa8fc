"""`fedgrec options`, `data`, `presets` and `doctor`: what to look at before training."""

import argparse
import importlib.metadata
import os
import platform
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from fedgrec.cli.configured import add_set, assigned, command, fitted
from fedgrec.config.checking import Option, changed, options_of
from fedgrec.config.options import GROUPS, METHODS, DataOptions
from fedgrec.errors import ConfigError, install, nearest
from fedgrec.studies.compare.names import known

EXTRAS = {"torch": "torch", "pyarrow": "parquet", "optuna": "tune", "flwr": "deploy"}
WIDTH = 80
FEDERATION = "federation"


def register(commands: Any) -> None:
    options = command(commands, "options", run_options, "list every option of a method")
    options.add_argument("method", nargs="?", default="fedgrec", metavar="METHOD",
                         help=f"{', '.join(_known())} (default: fedgrec)")  # fmt: skip
    data = command(commands, "data", run_data, "list data sets, or describe one")
    data.add_argument("source", nargs="?", metavar="NAME|FOLDER|FILE", help="what to describe")
    add_set(data, "an option of the data, such as item_column")
    presets = command(commands, "presets", run_presets, "list presets, or show one")
    presets.add_argument("name", nargs="?", metavar="PRESET")
    command(commands, "doctor", run_doctor, "check this machine")


def run_options(arguments: argparse.Namespace) -> int:
    """Every option of a method with its default, bounds and group. A group is a section of a TOML file and may stand
    before a name: --set wire.item_levels=20.
    """
    for title, found in sections(arguments.method):
        print(title)
        for option in found:
            print("\n".join(described(option)))
        print()
    others = f"Others: {', '.join(name for name in _known() if name != arguments.method)}"
    print(textwrap.fill(others, WIDTH, break_on_hyphens=False))
    return 0


def sections(method: str) -> Iterator[tuple[str, Sequence[Option]]]:
    """Titles, and the options below them."""
    if method not in _known():
        raise ConfigError(f"there is no method {method!r}.{nearest(method, _known())} Known: {', '.join(_known())}")
    if method == FEDERATION:
        from fedgrec.federation.common.options import Agreement, FederationOptions

        yield "agreement.toml: what all have agreed on", options_of(Agreement)
        yield "federation.toml: how the server drives the nodes", options_of(FederationOptions)
        return
    from fedgrec.centralized import model_class
    from fedgrec.config.configuration import options

    own = options(method) if method in METHODS else options_of(model_class(method).Options)
    for group, text in GROUPS.items():
        if mine := [option for option in own if option.group == group]:
            yield f"[{group}] {text}", mine


def described(option: Option) -> list[str]:
    """The lines about an option."""
    about = option.field.metadata
    limits = f"one of {', '.join(about['choices'])}" if about["choices"] else option.bounds or option.describes
    lines = textwrap.wrap(f"{option.name} = {option.default}  ({limits})", WIDTH, initial_indent="  ",
                          subsequent_indent="      ")  # fmt: skip
    return lines + textwrap.wrap(about["help"], WIDTH, initial_indent="      ", subsequent_indent="      ")


def _known() -> list[str]:
    return [*known(), FEDERATION]


def run_data(arguments: argparse.Namespace) -> int:
    """Without an argument: the known data sets and where they are. With one: its sizes and anything odd about it (a
    public set that is not here is downloaded).
    """
    import numpy as np

    from fedgrec.data.datasets import load_data
    from fedgrec.data.registry import SOURCES, found

    if arguments.source is None:
        print(f"{'name':<14}{'users':>9}{'items':>9}{'pairs':>12}  where")
        print(f"{'demo':<14}{'1,500':>9}{'2,500':>9}{'46,298':>12}  built in")
        for name, source in SOURCES.items():
            place = found(name)
            print(
                f"{name:<14}{source.users:>9,}{source.items:>9,}{source.train_pairs + source.test_pairs:>12,}  "
                f"{place or 'downloaded when first used'}"
            )
        print("\n$FEDGREC_DATA names a folder that is looked into first.")
        return 0
    dataset = load_data(changed(DataOptions(data=arguments.source), assigned(arguments), "--set"))
    train, test = dataset.split.train, dataset.split.test
    pairs = train.n_pairs + (test.n_pairs if test else 0)
    sizes = f"{train.n_users:,} users, {train.n_items:,} items, {pairs:,} pairs"
    print(fitted(f"{dataset.name}: {sizes} (density {pairs / (train.n_users * train.n_items):.5f})"))
    print(f"  train {train.n_pairs:,} pairs, test {test.n_pairs if test else 0:,} (split: {dataset.split_kind})")
    for word, counts in (("user", train.user_degrees()), ("item", train.degrees())):
        low, middle, high = np.percentile(counts, [0, 50, 100]).astype(int)
        print(f"  train pairs of a{'n' if word == 'item' else ''} {word}: {low:,} to {high:,}, median {middle:,}")
    for note in dataset.notes:
        print(fitted(f"  {note}", "    "))
    return 0


def run_presets(arguments: argparse.Namespace) -> int:
    """Without an argument: the presets. With one: every option it resolves to."""
    from fedgrec.config.configuration import preset, presets

    if arguments.name:
        print(preset(arguments.name).to_toml(), end="")
        return 0
    for name, description in presets().items():
        print(fitted(f"{name:<8} {description}", " " * 9))
    print()
    print(fitted("`fedgrec presets NAME` shows every option; `fedgrec train --preset NAME` uses it.", ""))
    return 0


def run_doctor(arguments: argparse.Namespace) -> int:
    """Check what fedgrec needs and uses."""
    well = True  # exit code 1 when something that training needs is missing

    def check(name: str, ok: bool, text: str) -> None:
        nonlocal well
        well = well and ok
        print(f"{'ok  ' if ok else 'FAIL'}  {name:<14} {text}")

    check("python", (3, 11) <= sys.version_info < (3, 14), f"{platform.python_version()} on {platform.machine()}")
    for package in ("numpy", "scipy", "numba", "safetensors", "tqdm"):
        version = _version(package)
        check(package, version is not None, version or "missing: run  pip install -c constraints.txt .")
    for package, extra in EXTRAS.items():
        version = _version(package)
        print(f"{'ok  ' if version else '-   '}  {package:<14} {version or f'missing: {install(extra)}'}")
    check("cores", True, str(os.cpu_count()))
    check("cpu kernel", *_kernel())
    folder = os.environ.get("FEDGREC_DATA")
    there = folder is None or os.path.isdir(folder)
    check("FEDGREC_DATA", there, (folder and (folder if there else f"{folder} is not a folder")) or "not set")
    return 0 if well else 1


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _kernel() -> tuple[bool, str]:
    """Compile and run one small kernel."""
    try:
        import numba
        import numpy as np

        from fedgrec.cable.core import Leaf, Rows
        from fedgrec.kernels import cpu

        table = np.zeros((2, 3), np.float32)
        cpu.add_rows(table, Rows(np.array([1]), np.ones((1, 3), np.int32)), Leaf("x", 2, 3, 1.0, 0.5), 1.0)
        return bool(table.sum() == 1.5), f"works, {numba.get_num_threads()} threads"
    except Exception as error:
        return False, f"{type(error).__name__}: {error}; use --kernel reference"
