"""FedGNN+BPR: FedGNN with the pairwise loss in place of its squared errors, as FedGRec's paper compares it."""

from dataclasses import dataclass

from fedgrec.config.options import option
from fedgrec.methods import fedgnn


@dataclass(frozen=True)
class Options(fedgnn.Options):
    """FedGNN's options; these defaults make it FedGNN+BPR."""

    loss: str = option("bpr", "pairs of a positive and a pseudo-interacted item", choices=("bpr",))
    l2: float = option(5e-4, "λ₂: L2 penalty λ₂e_u, λ₂e_t/P for each of P positives, λ₂e_t/M for a negative", least=0)


@dataclass(frozen=True)
class FedGNNBpr(fedgnn.FedGNN):
    """FedGNN trained on pairs."""

    name = "fedgnn-bpr"


make = FedGNNBpr
