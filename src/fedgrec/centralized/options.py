"""Options of the systems that are not federated: each field is its default, its help text and its bounds."""

from dataclasses import dataclass
from typing import ClassVar

from fedgrec.config.checking import checked, options_of
from fedgrec.config.options import option
from fedgrec.errors import ConfigError

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of Adam, for every model


CONTRAST = (
    "what softmax takes for negatives: all negatives of the batch (uniform), the positives of the other pairs (batch), "
    "or both"
)


class Options:
    """The base of all: values get their types and stay within their bounds."""

    takes_order: ClassVar[bool] = False  # as MethodOptions have it: no model here knows in which order users got items

    def __post_init__(self) -> None:
        for one in options_of(type(self)):
            object.__setattr__(self, one.name, checked(one, getattr(self, one.name), "options"))


@dataclass(frozen=True)
class LightGCNOptions(Options):
    """He et al. 2020, with the settings of its authors on Gowalla."""

    layers: int = option(3, "K, how many times embeddings pass along the edges", least=0, most=16)
    dim: int = option(64, "d, the size of an embedding", least=1, most=4096)
    init_std: float = option(0.1, "σ of the Gaussian that starts the embeddings", least=0)
    rate: float = option(1e-3, "Adam's rate", least=0, group="optimizer")
    l2: float = option(1e-4, "λ, the L2 penalty on the starting embeddings of a batch, over its size", least=0)
    loss: str = option(
        "bpr",
        "bpr: a positive against a negative; softmax: against all that the batch has drawn",
        choices=("bpr", "softmax"),
    )
    temperature: float = option(0.12, "softmax divides cosines by this", least=1e-3)
    negative_weight: float = option(0.84, "weight of the negatives' part of softmax", least=0)
    contrast: str = option("batch", CONTRAST, choices=("batch", "uniform", "both"))
    ranking: str = option("inner", "a score in recommendations: inner product or cosine", choices=("inner", "cosine"))
    batch: int = option(2048, "(user, positive, negative) triples in a step", least=1, group="optimizer")
    epochs: int = option(
        -1,
        "passes; in each as many triples are drawn as there are train pairs; -1: 1,000 with bpr, 60 with softmax",
        least=-1,
        group="run",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs < 0:
            object.__setattr__(self, "epochs", 1000 if self.loss == "bpr" else 60)


@dataclass(frozen=True)
class MFOptions(LightGCNOptions):
    """Matrix factorisation with the BPR loss (Rendle et al. 2009), or with softmax: LightGCN without a graph."""

    layers: int = option(0, "K: matrix factorisation has no layers", least=0, most=0)
    l2: float = option(1e-3, "λ, the L2 penalty on the embeddings of a batch, over its size", least=0)
    temperature: float = option(0.11, "softmax divides cosines by this", least=1e-3)
    negative_weight: float = option(1.1, "weight of the negatives' part of softmax", least=0)
    contrast: str = option("uniform", CONTRAST, choices=("uniform", "batch", "both"))


@dataclass(frozen=True)
class NGCFOptions(Options):
    """Wang et al. 2019. Rate, batch and λ suit Gowalla in few epochs; its authors took 1e-4, 1024 and 1e-5."""

    layers: int = option(3, "K, how many times embeddings pass along the edges", least=1, most=16)
    dim: int = option(64, "d, the size of an embedding and of each layer", least=1, most=4096)
    adjacency: str = option(
        "mean",
        "mean: D⁻¹(A + I), as the authors' program has it; symmetric: the paper's D^-½ A D^-½, plus I in the sum",
        choices=("mean", "symmetric"),
    )
    slope: float = option(0.2, "of the leaky ReLU below zero", least=0, most=1)
    dropout: float = option(
        0.1, "share of each layer's outputs that is dropped in training", least=0, most=0.99, group="model"
    )
    rate: float = option(5e-4, "Adam's rate", least=0, group="optimizer")
    l2: float = option(1e-4, "λ, the L2 penalty on the representations of a batch, over its size", least=0)
    batch: int = option(2048, "(user, positive, negative) triples in a step", least=1, group="optimizer")
    epochs: int = option(
        400, "passes; in each as many triples are drawn as there are train pairs", least=0, group="run"
    )


@dataclass(frozen=True)
class MultVAEOptions(Options):
    """Liang et al. 2018: a variational autoencoder of a user's items with a multinomial likelihood.

    Dropout, β, its annealing and the rate suit Gowalla; on their data the authors used 0.5, 0.2, longer and 1e-3.
    """

    hidden: int = option(600, "size of the hidden layers", least=1)
    latent: int = option(200, "size of z", least=1)
    dropout: float = option(
        0.7, "share of a user's items that is dropped from the input in training", least=0, most=0.99, group="model"
    )
    beta: float = option(0.3, "β, the weight that the KL term rises to", least=0)
    anneal_steps: int = option(600, "steps over which the weight of the KL term rises to β", least=1, group="optimizer")
    rate: float = option(3e-4, "Adam's rate", least=0, group="optimizer")
    weight_decay: float = option(0.0, "the L2 penalty on all weights, as part of their gradient", least=0)
    batch: int = option(500, "users in a step", least=1, group="optimizer")
    epochs: int = option(200, "passes over all users", least=0, group="run")


@dataclass(frozen=True)
class PopularityOptions(Options):
    """Everybody gets the most popular items: no options."""


@dataclass(frozen=True)
class TurboCFOptions(Options):
    """Park et al. 2024, with the settings of its authors on Gowalla; nothing is trained.

    Theirs for other data: Yelp2018 power 1 and coefficients (2, -1); Amazon-Book alpha 0.5 and power 1.4.
    """

    alpha: float = option(0.6, "α: a pair weighs |N_u|^-α · |N_t|^(α-1)", least=0, most=1)
    power: float = option(0.7, "s: every entry of the item graph is raised to it", least=0)
    coefficients: tuple[float, ...] = option((1.0,), "a_1, a_2, ...: the filter is a_1 P + a_2 P² + ...")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.coefficients:
            raise ConfigError("coefficients needs at least one number, such as (1.0,)")


@dataclass(frozen=True)
class EASEOptions(Options):
    """Steck 2019; nothing is trained."""

    l2: float = option(100.0, "λ, the L2 penalty on the weights between items", least=1e-6)


@dataclass(frozen=True)
class ItemKNNOptions(Options):
    """Sarwar et al. 2001; nothing is trained."""

    neighbours: int = option(100, "k, how many neighbours of an item count", least=1)
    shrinkage: float = option(10.0, "h: what is added to a cosine's denominator, so that few users say little", least=0)


@dataclass(frozen=True)
class TrainingOptions(Options):
    """How long a model is trained, how it is judged and when it is kept."""

    epochs: int = option(-1, "passes of training; -1: as many as the model's options say", least=-1)
    evaluate_every: int = option(10, "epochs between evaluations", least=1)
    patience: int = option(0, "stop after this many evaluations without improvement; 0: never", least=0)
    checkpoint_every: int = option(50, "epochs between checkpoints; 0: only when interrupted", least=0)
    protocol: str = option(
        "paper",
        "honest: epochs are chosen on a validation split held out of train; paper: the best epoch on test, as "
        "published numbers on these data sets are",
        choices=("honest", "paper"),
    )
    topk: tuple[int, ...] = option((20,), "list lengths k of Recall@k and NDCG@k; the first one selects the epoch")
    ndcg_ideal: str = option(
        "capped",
        "NDCG's ideal: over min(|test|, k) items (capped), or over all test items (paper)",
        choices=("capped", "paper"),
    )
    candidates: int = option(0, "rank held-out items among so many drawn items; 0: among all", least=0)
    repeats: bool = option(False, "items that a user has seen are ranked too")
