"""FedeRank (Anelli et al. 2021, "FedeRank: User Controlled Feedback with Federated Recommender Systems").

    L_u = Σ softplus(e_uᵀe_i − e_uᵀe_j) + λ-penalty       pairs of a positive j and a drawn negative i
    user: e_u ← e_u − β ∂L_u/∂e_u      upload: −∂L_u/∂e_t of all negatives and of a share π of the positives, summed

With π (`feedback`) the user decides from which share of its positives the server learns; every round draws them anew.
The score is FedGRec's canonical one without latents, so FedGRec's verbs and kernels train it. Departures: item rows
have no bias term; uploads travel in secure sums; the original draws one negative for each triple, as many as a user has
positives, and here the option `negatives` sets their number.
"""

from dataclasses import dataclass

from fedgrec.config.options import ITEM_NORM, FactorisationOptions, option
from fedgrec.methods.fedgrec import FedGRecMethod


@dataclass(frozen=True)
class Options(FactorisationOptions):
    """FedGRec's options; these defaults make it FedeRank."""

    feedback: float = option(
        0.5, "π: share of a user's positives whose update is sent in a round; the others stay at home", least=0, most=1
    )
    l2: float = option(0.003, "λ, the L2 penalty", least=0)
    item_norm: float = option(0.1, ITEM_NORM, least=1e-6)
    loss: str = option("bpr", "pairs of a positive and a negative", choices=("bpr",))


@dataclass(frozen=True)
class FedeRank(FedGRecMethod):
    """BPR matrix factorisation with the user's control over its feedback."""

    name = "federank"


make = FedeRank
