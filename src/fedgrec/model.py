"""A trained model: what answers "what should this person see next?"."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import cast

import numpy as np

from fedgrec.config import Config, read_toml
from fedgrec.core import Cohort, Floats, Ints, ServerState
from fedgrec.data.ids import IdMap
from fedgrec.errors import FedgrecError, RunError
from fedgrec.evaluate import top_k, top_k_scores
from fedgrec.files import read_tensors, write_json, write_tensors, write_text
from fedgrec.methods.contract import Method
from fedgrec.options import METHODS, method_module

SERVER, USERS, CONFIG, USER_IDS, ITEM_IDS = (
    "server.safetensors",
    "users.safetensors",
    "config.toml",
    "users.json",
    "items.json",
)


@dataclass(frozen=True)
class Model:
    """Item and user embeddings of one round with the users' items: all that ranking needs."""

    config: Config
    user_ids: IdMap
    item_ids: IdMap
    items: Floats  # [K+1, N, d]
    item_degrees: Ints  # [N]
    users: Floats  # [M, K+1, d] as committed
    indptr: Ints  # [M+1] of the users' train items
    train_items: Ints  # [nnz]
    seen_indptr: Ints  # [M+1] of all that users are known to have: train items, and validation items where held out
    seen_items: Ints
    round: int
    more: dict[str, Floats] = field(default_factory=dict)  # what else the method's server has: a network's weights
    around: Floats | None = None  # [nnz, d]: what a `match` stage told users about their items

    @property
    def method(self) -> Method:
        make = method_module(self.config.method).make
        return cast(Method, make(self.config.model, self.items.shape[1], max(len(self.users), 1)))

    @property
    def server(self) -> ServerState:
        """The server's half of the model, as far as ranking needs it."""
        nothing = np.zeros((0, 0), self.items.dtype)
        return ServerState(self.items, self.item_degrees, nothing, nothing, self.round, self.more)

    def cohort(self, users: Ints) -> Cohort:
        """These users, as far as ranking needs them."""
        counts = np.diff(self.indptr)[users]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        picked = np.arange(indptr[-1]) + np.repeat(self.indptr[users] - indptr[:-1], counts)
        around = None if self.around is None else self.around[picked]
        return self._somebody(indptr, self.train_items[picked], self.users[users], around)

    def _somebody(self, indptr: Ints, items: Ints, embeddings: Floats, around: Floats | None = None) -> Cohort:
        kind, n = self.method.State, len(embeddings)
        rest = {f.name: np.zeros((n, 0)) for f in fields(kind) if f.name != "embeddings"}
        return Cohort(np.zeros(n, np.uint64), indptr, items, kind(embeddings=embeddings, **rest), None, around)

    def item_vectors(self) -> Floats:
        """[N, D]"""
        return self.method.represent_items(self.server)

    def user_vector(self, user: int) -> Floats:
        """A known user's representation, [1, D]."""
        return self.method.represent_users(self.server, self.cohort(np.array([user])))

    def seen(self, user: int) -> Ints:
        """What is never recommended to this user."""
        return self.seen_items[self.seen_indptr[user] : self.seen_indptr[user + 1]]

    def new_user_vector(self, items: Ints) -> Floats:
        """Somebody the model has never met: Eq. (6) needs only their items.  # [1, D]"""
        if not self.method.knows_strangers:
            without = " without latent embeddings (layers = 0)" if self.config.method == "fedgrec" else ""
            raise FedgrecError(f"a model of {self.config.method}{without} knows nothing of a person it has not met")
        if not len(items):
            raise FedgrecError("name at least one item that the person liked")
        items = np.unique(items)
        nobody = np.zeros((1, *self.users.shape[1:]), self.users.dtype)
        return self.method.represent_users(self.server, self._somebody(np.array([0, len(items)]), items, nobody))

    def recommend_to(self, user: int, seen: Ints, n: int) -> tuple[Ints, Floats]:
        """The n best unseen items for a known user, whatever the method's scores are."""
        if self.method.inner_product:
            return self.recommend(self.user_vector(user), seen, n)
        scores = self.method.scores(self.server, self.cohort(np.array([user])))
        known = np.unique(np.asarray(seen, np.int32))
        return _named(*top_k_scores(lambda some: scores[some], scores.shape[1], n, np.array([0, len(known)]), known))

    def recommend(self, vector: Floats, seen: Ints, n: int) -> tuple[Ints, Floats]:
        """The n best unseen items and their scores; fewer where fewer are left."""
        return _best(vector, self.item_vectors(), seen, n)

    def similar_items(self, item: int, n: int) -> tuple[Ints, Floats]:
        """The n items whose representation points most the same way (cosine)."""
        vectors = self.item_vectors()
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return _best(vectors[item : item + 1], vectors, np.array([item]), n)

    # ----------------------------------------------------------------------------------------- files

    def save(self, folder: str | Path) -> None:
        """The files that docs/run-folder.md describes; each is whole or not there."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / CONFIG, self.config.to_toml())
        write_json(folder / USER_IDS, self.user_ids.to_json())
        write_json(folder / ITEM_IDS, self.item_ids.to_json())
        self.save_tensors(folder)

    def save_tensors(self, folder: Path) -> None:
        metadata = {"method": self.config.method, "round": str(self.round)}
        server = {"item_embeddings": self.items, "item_degrees": self.item_degrees}
        server |= {f"more.{name}": value for name, value in self.more.items()}
        users = {
            "user_embeddings": self.users.swapaxes(0, 1),
            "train_indptr": self.indptr,
            "train_items": self.train_items,
            "seen_indptr": self.seen_indptr,
            "seen_items": self.seen_items,
        }
        if self.around is not None:
            users["around"] = self.around
        write_tensors(folder / SERVER, server, metadata)
        write_tensors(folder / USERS, users, metadata)

    @staticmethod
    def load(folder: str | Path) -> "Model":
        folder = Path(folder)
        if not (folder / CONFIG).exists():
            raise RunError(f"{folder} is not a run: it has no {CONFIG}. Make one with  fedgrec train --out {folder}")
        values = read_toml(folder / CONFIG)
        if (method := values.get("method", Config().method)) not in METHODS:
            raise RunError(
                f"{folder} is a run of {method}, which is not federated: its figures are in result.json, and "
                "fedgrec.centralized.load opens its model"
            )
        server, about = read_tensors(folder / SERVER)
        users, about_users = read_tensors(folder / USERS)
        if about["round"] != about_users["round"]:
            raise RunError(
                f"{folder} was interrupted while it saved round {about['round']}: "
                f"`fedgrec train --out {folder} --resume` goes on"
            )
        return Model(
            Config().changed(values, str(folder / CONFIG)),
            IdMap.load(folder / USER_IDS),
            IdMap.load(folder / ITEM_IDS),
            server["item_embeddings"],
            server["item_degrees"],
            np.ascontiguousarray(users["user_embeddings"].swapaxes(0, 1)),
            users["train_indptr"],
            users["train_items"],
            users["seen_indptr"],
            users["seen_items"],
            int(about["round"]),
            {name.removeprefix("more."): value for name, value in server.items() if name.startswith("more.")},
            users.get("around"),
        )


def _best(vector: Floats, items: Floats, seen: Ints, n: int) -> tuple[Ints, Floats]:
    known = np.unique(np.asarray(seen, np.int32))
    return _named(*top_k(vector.astype(np.float32), items.astype(np.float32), n, np.array([0, len(known)]), known))


def _named(ids: Ints, scores: Floats) -> tuple[Ints, Floats]:
    """The one list, without the places left empty."""
    real = ids[0] >= 0
    return ids[0][real], scores[0][real]
