"""What all tests share.

Property tests draw the same examples every time; FEDGREC_EXPLORE=1 looks for new ones."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from fedgrec.kernels.devices import gpu_is_there
from tests.browser import CHROMIUM

if not gpu_is_there():  # Triton decides when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=200)
settings.load_profile("explore" if os.environ.get("FEDGREC_EXPLORE") else "fixed")


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The mark `keep`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("keep"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for test in cases.values():
        mark = test[0].get_closest_marker("keep")
        kept = {place * len(test) // mark.args[0] for place in range(mark.args[0])} if mark else set()
        for place, item in enumerate(test):
            if place not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """What imports have left behind is not looked through again and again for garbage: a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """FEDGREC_COSTS=FILE: a line for each test with the CPU-seconds that it took, its children's among them."""
    before = sum(os.times()[:4])
    done = yield
    if file := os.environ.get("FEDGREC_COSTS"):
        with open(file, "a", encoding="utf-8") as costs:
            costs.write(f"{sum(os.times()[:4]) - before:8.2f} {item.nodeid}\n")
    return done


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after all that others have to say
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """One line about the parts that this machine cannot test, and how to get them."""
    yield
    missing = {
        "pages in a browser (install Chromium; Debian: apt-get install chromium)": not CHROMIUM,
        "published data sets (set FEDGREC_DATA to their folder)": not os.environ.get("FEDGREC_DATA"),
        "loops on a GPU, which Triton's interpreter ran instead (use a machine with an NVIDIA GPU)": not gpu_is_there(),
    }
    if any(missing.values()):
        terminalreporter.write_line("Not tested here: " + "; ".join(what for what, lacks in missing.items() if lacks))
