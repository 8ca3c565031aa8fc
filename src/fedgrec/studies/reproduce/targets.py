"""The plans: which runs each table and figure of the paper needs.

Targets share runs by label: after `table2`, `figure-curves` has the runs that it draws.
"""

from typing import Any

from fedgrec.studies.compare.names import Entry
from fedgrec.studies.reproduce.communication import communication
from fedgrec.studies.reproduce.plan import PAPER_ROUNDS, RHYTHM, Target
from fedgrec.studies.reproduce.shows import aggregations, compared, curves, statistics

# "By default, we run T = 10^5 epochs".
LONG: dict[str, Any] = {"rounds": PAPER_ROUNDS, "evaluate_every": RHYTHM, "checkpoint_every": 5 * RHYTHM}
# FCF, FedMF and FedNCF end sooner where nothing is left to learn: after ten evaluations without a better one.
STATED: dict[str, Any] = {**LONG, "patience": 10}
# LightGCN's authors evaluate on test every ten epochs. LightGCN has no patience here: it improves slowly over all of
# its thousand epochs, and with one layer patience ended it at 300.
EPOCHS: dict[str, Any] = {"evaluate_every": 10}
UNTIL_STALE: dict[str, Any] = {**EPOCHS, "patience": 15}
# The paper's setting for all local training: 2,048 negatives, Adam at 1e-3; the server adds, as in the preset `paper`.
LITERAL: dict[str, Any] = {"negatives": 2048, "item_optimizer": "adam", "item_rate": 1e-3}
LITERAL |= {"user_optimizer": "adam", "user_rate": 1e-3, "server_optimizer": "sum", "server_rate": 1.0}


def paper(label: str, **options: Any) -> Entry:
    """FedGRec in the paper's setting."""
    return Entry(label, "fedgrec", {"preset": "paper", **LONG, **options})


FEDGREC = tuple(paper(f"FedGRec-{k}", layers=k) for k in (1, 2, 3))
BEST = Entry("FedGRec best", "fedgrec", {"preset": "bpr"})
# The paper tunes the other options by grid search. These values are the best of twenty trials of each method, on
# validation items of Gowalla (docs/results). A method with falling rates ends when its rates are near zero.
TUNED: dict[str, dict[str, Any]] = {
    "fcf": {"l2": 30.0, "server_rate": 0.002, "rounds": 2_000},
    "fedmf": {"negatives": 1024, "l2": 1e-3, "server_rate": 0.002, "half_life": 2_000, "rounds": 8_000},
    "federank": {
        "negatives": 2048, "l2": 0.002, "server_rate": 0.02, "user_rate": 0.04, "half_life": 10_000, "rounds": 40_000,
    },
    "fedncf": {"negatives": 2048, "rounds": 5_000},
    "fedgnn": {
        "others": 0.9, "negative_weight": 30.0, "server_rate": 0.02, "user_rate": 0.04, "half_life": 600,
        "rounds": 6_000,
    },
    "fedgnn-bpr": {"server_rate": 0.06, "user_rate": 0.12, "half_life": 2_000, "rounds": 14_000},
}  # fmt: skip
BASELINES = (
    Entry("FCF", "fcf", {**STATED, "alpha": 1.0, "l2": 1e-3}),
    Entry("FedMF", "fedmf", {**STATED, **LITERAL, "user_moments": "fresh", "max_positives": 0, "l2": 1e-3}),
    Entry("FedNCF", "fedncf", {**STATED, **LITERAL, "network_rate": 1.0, "l2": 1e-4}),
    Entry("FedeRank", "federank", TUNED["federank"]),
    Entry("FedGNN", "fedgnn", TUNED["fedgnn"]),
    Entry("FedGNN+BPR", "fedgnn-bpr", TUNED["fedgnn-bpr"]),
)
OWN = tuple(Entry(f"{name} best", name.lower(), TUNED[name.lower()]) for name in ("FCF", "FedMF", "FedNCF"))
CENTRALIZED = (
    Entry("Mult-VAE", "multvae", UNTIL_STALE),
    *(Entry(f"NGCF-{k}", "ngcf", {**UNTIL_STALE, "layers": k}) for k in (1, 2, 3)),
    *(Entry(f"LightGCN-{k}", "lightgcn", {**EPOCHS, "layers": k}) for k in (1, 2, 3)),
)

# `last` with K = 1 is the mean of e^0 and e^1, so it is FedGRec-1.
LAST = tuple(paper(f"FedGRec-last-{k}", layers=k, combine="last") for k in (2, 3))
CONCAT = tuple(paper(f"FedGRec-concat-{k}", layers=k, combine="concat", local_steps=1) for k in (1, 2, 3))
AGGREGATIONS = {
    "FedGRec": ("FedGRec-1", "FedGRec-2", "FedGRec-3"),
    "FedGRec-last": ("FedGRec-1", "FedGRec-last-2", "FedGRec-last-3"),
    "FedGRec-concat": ("FedGRec-concat-1", "FedGRec-concat-2", "FedGRec-concat-3"),
}
OF_AGGREGATIONS: dict[str, Any] = {
    "entries": (*FEDGREC, *LAST, *CONCAT),
    "data": ("gowalla",),
    "notes": (
        "FedGRec-last with one latent embedding is FedGRec-1; FedGRec-concat takes one local step, as in the paper.",
    ),
}
COMBINED = "of ways to combine embeddings"


def varied(option: str, values: tuple[int, ...], symbol: str) -> dict[str, Any]:
    """FedGRec-2 with one option at each of these values; the paper's own value is the run FedGRec-2."""
    usual = {"users_per_round": 400, "local_steps": 10}[option]
    labels = {v: "FedGRec-2" if v == usual else f"FedGRec-2 {symbol}={v}" for v in values}
    entries = tuple(paper(labels[v], layers=2, **({} if v == usual else {option: v})) for v in values)
    return {"entries": entries, "names": {labels[v]: f"{symbol} = {v}" for v in values}, "data": ("gowalla",)}


TARGETS = {
    target.name: target
    for target in (
        Target("table1", "Table 1: statistics of the data sets", statistics, protocols=("paper",), most_seeds=1),
        Target(
            "table2",
            "Table 2: FedGRec and the systems it is compared with",
            compared,
            (*CENTRALIZED, *BASELINES, *FEDGREC, BEST, *OWN),
            notes=(
                "FedGRec-1, -2 and -3 are the preset `paper`. FCF, FedMF and FedNCF take what the paper says of them, "
                "and end after ten evaluations without a better one. FedeRank, FedGNN and FedGNN+BPR are tuned, as in "
                "the paper, for as many rounds as their falling rates last.",
                "A row called best is this project's own setting, for its own number of rounds; the figure beside it "
                "is the paper's for the same method.",
            ),
        ),
        Target("table3", f"Table 3: NDCG@20 {COMBINED}", aggregations("ndcg", AGGREGATIONS), **OF_AGGREGATIONS),
        Target("table4", f"Table 4: Recall@20 {COMBINED}", aggregations("recall", AGGREGATIONS), **OF_AGGREGATIONS),
        Target(
            "figure-s",
            "Figure 2, top: users sampled in a round, S",
            curves,
            notes=("The paper's text names S = 400 alone, as the best; the other values are ours.",),
            **varied("users_per_round", (100, 200, 400, 800), "S"),
        ),
        Target("figure-tau", "Figure 2, bottom: local steps, τ", curves, **varied("local_steps", (1, 2, 10, 20), "τ")),
        Target(
            "figure-curves",
            "Figure 3: learning curves of the federated methods",
            curves,
            (*FEDGREC, *BASELINES),
            notes=(
                "The paper's figure has FedeRank and FedGRec-1, -2 and -3 alone: "
                "--only FedeRank,FedGRec-1,FedGRec-2,FedGRec-3 draws these.",
            ),
        ),
        Target(
            "communication",
            "Section 5.3: what users send and receive",
            communication,
            (*FEDGREC, *BASELINES),
            ("gowalla",),
            ("paper",),
            most_seeds=1,
            flags={"rounds": 50, "evaluate_every": 50},
        ),
    )
}
