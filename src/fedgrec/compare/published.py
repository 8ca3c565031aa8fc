"""Figures that others published for these methods: Recall@20 and NDCG@20, all items ranked, LightGCN's split.

All of them are the best round on test, so compare them with results under the protocol `paper`.
"""

from dataclasses import dataclass
from typing import Any

from fedgrec.data import Dataset
from fedgrec.data.registry import SOURCES

SOURCE = {
    "T2": "Li and Huang 2022, Table 2",
    "T34": "Li and Huang 2022, Tables 3 and 4",
    "BARS": "the BARS leaderboard",
    "Turbo": "Park et al. 2024",
}
DATA = ("gowalla", "yelp2018", "amazon-book")

# K and `combine` are '-' where a method has none. Table 2 prints FedeRank's NDCG on Amazon-Book as 0.2204, ten times
# its recall: a slip for 0.0220. FedGRec-concat was trained with one local step.
TABLE = """
method      K  combine   gowalla        yelp2018       amazon-book    source
fedgrec     1  mean      .1712  .1376   .0598  .0491   .0342  .0268   T2
fedgrec     2  mean      .1695  .1412   .0607  .0497   .0361  .0285   T2
fedgrec     3  mean      .1654  .1362   .0615  .0503   .0333  .0262   T2
fedgrec     1  last      .1712  .1376   -      -       -      -       T34
fedgrec     2  last      .1605  .1332   -      -       -      -       T34
fedgrec     3  last      .1493  .1246   -      -       -      -       T34
fedgrec     1  concat    .1502  .1266   -      -       -      -       T34
fedgrec     2  concat    .1515  .1267   -      -       -      -       T34
fedgrec     3  concat    .1494  .1254   -      -       -      -       T34
fedgnn      -  -         .1556  .1211   .0543  .0396   .0229  .0208   T2
fedgnn-bpr  -  -         .1676  .1362   .0601  .0498   .0339  .0269   T2
federank    -  -         .1440  .1164   .0503  .0405   .0287  .0220   T2
fcf         -  -         .0703  .0588   .0282  .0235   .0112  .0088   T2
fedmf       -  -         .0727  .0583   .0250  .0207   .0100  .0079   T2
fedncf      -  -         .0754  .0575   .0271  .0218   .0093  .0075   T2
multvae     -  -         .1641  .1335   .0584  .0450   .0407  .0315   T2
ngcf        1  -         .1556  .1315   .0543  .0442   .0313  .0241   T2
ngcf        2  -         .1547  .1307   .0566  .0465   .0330  .0254   T2
ngcf        3  -         .1570  .1327   .0566  .0461   .0344  .0263   T2
lightgcn    1  -         .1755  .1492   .0631  .0515   .0384  .0298   T2
lightgcn    2  -         .1777  .1524   .0622  .0504   .0411  .0315   T2
lightgcn    3  -         .1823  .1555   .0639  .0525   .0410  .0318   T2
mf-bpr      -  -         .1627  .1378   .0576  .0468   .0338  .0261   BARS
turbocf     -  -         .1835  -       .0693  .0574   .0730  -       Turbo
"""


@dataclass(frozen=True)
class Figure:
    recall: float | None
    ndcg: float | None
    source: str


def public_name(dataset: Dataset) -> str | None:
    """The data set's public name, if this is the whole data set in the split that others report on."""
    parts = dataset.split
    pairs = parts.train.n_pairs + (parts.validation.n_pairs if parts.validation is not None else 0)
    sizes = parts.train.n_users, parts.train.n_items, pairs, parts.test.n_pairs if parts.test is not None else 0
    for name, source in SOURCES.items():
        published = source.users, source.items, source.train_pairs, source.test_pairs
        if dataset.split_kind == "given" and sizes == published:
            return name
    return None


def figure(data: str | None, method: str, options: Any) -> Figure | None:
    """What was published for a method with these options on a public data set."""
    if data not in DATA:
        return None
    at = 3 + 2 * DATA.index(data)
    for line in TABLE.strip().splitlines()[1:]:
        words = line.split()
        asked = [method, *(str(getattr(options, name, "-")) for name in ("layers", "combine"))]
        # A '-' in the table fits any value: FedGNN and matrix factorisation have no choice of layers.
        if all(word in (said, "-") for word, said in zip(words[:3], asked, strict=True)):
            recall, ndcg = (None if word == "-" else float(word) for word in words[at : at + 2])
            return Figure(recall, ndcg, SOURCE[words[-1]]) if recall is not None else None
    return None
