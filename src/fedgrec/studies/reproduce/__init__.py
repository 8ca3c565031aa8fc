"""The tables and figures of the paper. Each is a small plan: the runs that it needs, and how it shows their results.

from fedgrec.studies.reproduce.plan import Scope
from fedgrec.studies.reproduce.running import reproduce
from fedgrec.studies.reproduce.targets import TARGETS
reproduce(TARGETS["table2"], Scope(data=("gowalla",), rounds=4000), runs, out)
"""

# The keys of TARGETS, written out so that `--help` need not import them.
NAMES = ("table1", "table2", "table3", "table4", "figure-s", "figure-tau", "figure-curves", "communication")
