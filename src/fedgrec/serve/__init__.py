"""A door for applications: the model of a run or of a node answers over HTTP. It imports `federation.node`, `runs` and
below, and never Flower. It changes nothing in its folder.
"""

from fedgrec.serve.door import served

__all__ = ["served"]
