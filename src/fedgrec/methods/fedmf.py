"""FedMF (Chai et al. 2020, "Secure Federated Matrix Factorization"): the users' half of SGD matrix factorisation.

    L_u = Σ_t (y_ut − e_uᵀe_t)²/|terms| + λ-penalty      over a user's items (y = 1, or its ratings) and drawn zeros
    user: e_u ← e_u − β ∂L_u/∂e_u      upload: −∂L_u/∂e_t, summed      server: e_t ← e_t + α·Σ (or Adam on it)

The score is FedGRec's canonical one without latents, so FedGRec's verbs and kernels train it. Departures: the original
encrypts each user's gradient homomorphically; here secure sums hide it from the server. The original has ratings of all
kinds and draws no zeros; with clicks alone (every target 1) a constant score would then be the optimum.
"""

from dataclasses import dataclass

from fedgrec.config.options import ITEM_NORM, FactorisationOptions, option
from fedgrec.methods.fedgrec import FedGRecMethod


@dataclass(frozen=True)
class Options(FactorisationOptions):
    """FedGRec's options; these defaults make it FedMF."""

    loss: str = option(
        "mse0",
        "squared error over positives and drawn zeros, or over positives alone; or softmax over what was drawn",
        choices=("mse0", "mse", "softmax"),
    )
    l2: float = option(3e-4, "λ, the L2 penalty", least=0)
    item_norm: float = option(0.02, ITEM_NORM, least=1e-6)
    server_rate: float = option(0.005, "rate of the server's Adam", least=0)


@dataclass(frozen=True)
class FedMF(FedGRecMethod):
    """Federated matrix factorisation by squared errors."""

    name = "fedmf"


make = FedMF
