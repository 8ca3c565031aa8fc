"""Secure aggregation: the server learns the sum of the clients' integer vectors and nothing else about them.

It imports nothing of ours, knows nothing of recommenders and does no I/O: `Client` and `Server` are state machines
that take and give bytes.
"""

from fedgrec.secagg.client import Client
from fedgrec.secagg.errors import SecAggError
from fedgrec.secagg.local import Outcome, Population, run_round
from fedgrec.secagg.server import Server
from fedgrec.secagg.session import Session, Stage

__all__ = ["Client", "Outcome", "Population", "SecAggError", "Server", "Session", "Stage", "run_round"]
