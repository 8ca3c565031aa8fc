"""Methods side by side on one data set: the same data, the same seeds, the same protocol, one table.

from fedgrec.studies.compare.comparison import compare, write
from fedgrec.studies.compare.names import entries
from fedgrec.studies.compare.plan import Settings
comparison = compare(Settings(entries("fedgrec,popularity"), seeds=(0, 1)), out)
write(comparison, out)
"""
