"""The comparison of graphs, small: the losses that they survive, and their bytes, counted by hand."""

import pytest
from benchmarks import mechanisms


@pytest.fixture(scope="module")
def measured():
    return mechanisms.bench(clients=10, values=300, repeats=1)["mechanisms"]


def test_losses_that_each_graph_survives(measured) -> None:
    """One and three of ten clients are lost. Ten clients always make a complete graph, here with t = 8."""
    assert {name: (here["threshold"], here["most_lost_with_a_sum"]) for name, here in measured.items()} == {
        "complete graph (2017)": (7, 3),
        "k-regular graph (2020)": (8, 1),
    }


def test_bytes_that_a_client_sends(measured) -> None:
    up = {name: here["lost"][0]["bytes_up"] for name, here in measured.items()}
    vector, keys, header = 4 * (300 + 4), 4 + 2 * 32 + 64, 22
    shares = 4 + 9 * (8 + 2 * 33 + 16)  # a list of: receiver, length, two shares, tag
    opened = 2 * 4 + 10 * (4 + 33)  # two lists of: owner, share
    signature = 64  # under the lists of survivors
    assert up["complete graph (2017)"] == vector + keys + shares + signature + opened + 5 * header
