"""A trained model: it answers "what should this person see next?"."""

import json
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.cable.core import Cohort, Floats, Ints, ServerState
from fedgrec.config.checking import OLD_NAMES
from fedgrec.config.configuration import Config, read_toml, recorded
from fedgrec.config.options import METHODS, method_module
from fedgrec.data import IdMap, Interactions, files
from fedgrec.data.split import ITEM_IDS, USER_IDS
from fedgrec.errors import RunError
from fedgrec.methods.contract import Method, Part, make_method
from fedgrec.methods.noisy import OPEN, without_closed
from fedgrec.models.recommender import Explanation, Recommender, Seen

SERVER, USERS, CONFIG = "server.safetensors", "users.safetensors", "config.toml"
WITHDRAWN, NOTHING = "withdrawn_items", np.zeros(0, np.int64)  # in the server's file, and where it is not there
GROWN = "grown"  # a folder of new files that will replace the run's files (see runs/growth.py)


@dataclass(frozen=True)
class Model(Recommender):
    """One round of a run: the server's state, every user's state, and the items that people are known to have.

    The users' state is complete, as the method defines it: everything that a method ranks by is in the model.
    """

    config: Config
    server: ServerState  # without its optimizer's moments
    users: Cohort  # everybody, with keys and train items
    known: Interactions  # never recommended: all items that people have in the data, held out or not
    withdrawn: Ints = field(default_factory=NOTHING.copy)  # from a federation's catalogue

    @staticmethod
    def of(config: Config, server: ServerState, users: Cohort, known: Interactions) -> "Model":
        """A model with copies of the server's and the users' present state."""
        degrees = server.degrees if server.degrees.any() else np.bincount(users.items, minlength=known.n_items)
        more = {name: value.copy() for name, value in server.more.items()}
        kept = _server(server.items.copy(), degrees.astype(np.int64), server.round, more)
        return Model(config, kept, users.with_state(users.state.copy()), known)

    @cached_property
    def method(self) -> Method:
        return make_method(self.config.method, self.config.model, self.known.n_items, max(self.known.n_users, 1))

    @property
    def round(self) -> int:
        return self.server.round

    @property
    def item_degrees(self) -> Ints:
        """How many users have each item in train.  # [N]"""
        return self.server.degrees

    @property
    def trained_on(self) -> Seen:
        items = self.users.items if self.users.order is None else self.users.items[self.users.by_time]
        return Seen(self.users.indptr.astype(np.int64), items.astype(np.int32))

    @cached_property
    def closed(self) -> Ints:
        """Withdrawn items, and those that too few people have under noise."""
        is_open = self.server.more.get(OPEN, np.ones(len(self.item_ids)))
        return np.union1d(self.withdrawn, np.flatnonzero(is_open <= 0))

    @property
    def inner_product(self) -> bool:
        return self.method.inner_product

    @cached_property
    def _as_ranked(self) -> ServerState:
        """The part of the server's state that a device ranks with; made once for all users."""
        return self.method.as_ranked(self.server)

    def _item_vectors(self) -> Floats:
        return self.method.represent_items(self._as_ranked)

    def _user_vectors(self, users: Ints) -> Floats:
        return self.method.represent_users(self._as_ranked, self.users.take(users))

    def scores(self, users: Ints) -> Floats:
        return self.method.scores(self._as_ranked, self.users.take(users))

    @property
    def folds_in(self) -> bool:
        return not self.method.knows_strangers

    @property
    def share(self) -> str:
        return super().share if self.folds_in else self.method.share

    @property
    def recency(self) -> float:
        return 1.0 if self.folds_in else self.method.recency

    @property
    def parts(self) -> list[Part]:
        return self.method.parts(self._as_ranked)

    @property
    def takes_order(self) -> bool:
        return bool(self.method.options.takes_order)

    def _strangers(self, indptr: Ints, items: Ints) -> Floats:
        """The vectors of new people: Eq. (6) needs only their items."""
        if self.folds_in:
            return super()._strangers(indptr, items)
        return self.method.represent_users(self._as_ranked, self.method.strangers(indptr, items))

    def explain(self, user: int, item: int) -> Explanation:
        """The score as a sum over the user's items.

        Where a user's vector is a weighted sum of rows of its items, u = o + Σ_{t∈N_u} p_t, the score of item s is
        o·s + Σ_t p_t·s. `Method.explained` has the parts o and p_t.
        """
        person = without_closed(self.users.take(np.array([user])), self._as_ranked.more)
        own, rows = self.method.explained(self._as_ranked, person)  # [1, D], [n, D]
        D = own.shape[1]
        target = self.item_vectors()[item].astype(np.float64)
        closed = target[D:].sum()  # the part that ranks a closed item last
        terms, rest = (part @ target[:D] for part in (rows, own))
        order = np.argsort(-terms, kind="stable")
        terms, added = terms[order], float(rest[0] + closed)
        return Explanation(added + float(terms.sum()), added, person.items[order], terms)

    # ----------------------------------------------------------------------------------------- files

    def save(self, folder: str | Path) -> None:
        """Write the files that docs/run-folder.md describes; each is written whole or not at all."""
        folder, texts = Path(folder), self._texts()  # ids that no file keeps are refused
        with files.said(folder):
            folder.mkdir(parents=True, exist_ok=True)
        files.write_text(folder / CONFIG, self.config.to_toml())
        for name in (USER_IDS, ITEM_IDS):
            files.write_json(folder / name, texts[name])
        self.save_tensors(folder)

    def save_tensors(self, folder: Path) -> None:
        metadata = {"method": self.config.method, "round": str(self.round)}
        metadata |= {name: files.digest_of(content) for name, content in self._texts().items()}
        server = {"item_embeddings": self.server.items, "item_degrees": self.server.degrees}
        server |= {f"more.{name}": value for name, value in self.server.more.items()}
        server |= {WITHDRAWN: self.withdrawn} if len(self.withdrawn) else {}
        state = {f.name: getattr(self.users.state, f.name) for f in fields(self.users.state)}
        users = {
            "user_embeddings": state.pop("embeddings").swapaxes(0, 1),
            **{f"state.{name}": value for name, value in state.items()},
            "keys": self.users.keys,
            "train_indptr": self.users.indptr,
            "train_items": self.users.items,
            "seen_indptr": self.known.indptr,
            "seen_items": self.known.items,
        }
        users |= {
            name: part for name in ("targets", "around", "order") if (part := getattr(self.users, name)) is not None
        }
        files.write_tensors(folder / SERVER, server, metadata)
        files.write_tensors(folder / USERS, users, metadata)

    def _texts(self) -> dict[str, Any]:
        """The contents of the text files beside the tensors, as far as the model depends on them."""
        old = {new: name for name, new in OLD_NAMES.items()}  # release 0.2 took digests under these
        before = {f.name: f.metadata["before"] for f in fields(self.config.model)}  # what it did without this option
        options = {old.get(name, name): v for name, v in asdict(self.config.model).items() if v != before[name]}
        ids = {USER_IDS: self.user_ids.to_json(), ITEM_IDS: self.item_ids.to_json()}
        return {CONFIG: [self.config.method, options], **ids}

    @staticmethod
    def load(folder: str | Path, needs_users: bool = True) -> "Model":
        """The model of a run. The run of a federation's server has no users: it loads only with needs_users=False."""
        folder = Path(folder)
        config = run_config(folder)
        if _is_of_server(folder):
            if needs_users:
                raise RunError(
                    f"{folder} is the run of a federation's server, which has no users: each node keeps its own, and "
                    "recommends to them with  fedgrec device recommend NODE --user ID ; here  fedgrec recommend  takes "
                    "--items or --similar, and  fedgrec evaluate  takes --data (what the nodes measured is in "
                    "metrics.jsonl)"
                )
            with files.understood(folder / SERVER, "restore it, or run the server again: it writes this folder anew"):
                return _of_server(folder, config)
        mend = "its files are of different runs or versions; restore them, or train again"
        with files.understood(folder / USERS, mend):
            return _opened(folder, config)


def _is_of_server(folder: Path) -> bool:
    """Whether a federation's server left this run, which has no users: data.json tells."""
    about = folder / "data.json"
    if (folder / USERS).exists() or not about.exists():
        return False
    with suppress(ValueError):
        found = json.loads(about.read_text(encoding="utf-8"))
        return isinstance(found, dict) and found.get("protocol") == "federation"
    return False


def _opened(folder: Path, config: Config) -> Model:
    server, about = files.read_tensors(folder / SERVER)
    users, about_users = files.read_tensors(folder / USERS)
    if about["round"] != about_users["round"]:
        raise RunError(
            f"{folder} was interrupted while it saved round {about['round']}: "
            f"`fedgrec train --out {folder} --resume` goes on"
        )
    kept, indptr = _server_of(server, about), users["seen_indptr"]
    user_ids = IdMap.load(folder / USER_IDS, len(indptr) - 1)
    item_ids = IdMap.load(folder / ITEM_IDS, kept.items.shape[-2])
    known = Interactions(user_ids, item_ids, indptr, users["seen_items"])
    state = {name.removeprefix("state."): value for name, value in users.items() if name.startswith("state.")}
    kind = method_module(config.method).make(config.model, known.n_items, max(known.n_users, 1)).State
    by_user = np.ascontiguousarray(users["user_embeddings"].swapaxes(0, 1))  # [K+1, M, d] → [M, K+1, d]
    whole = kind(embeddings=by_user, **state)
    pairs = users["train_indptr"], users["train_items"]
    cohort = Cohort(users["keys"], *pairs, whole, users.get("targets"), users.get("around"))
    cohort = replace(cohort, order=users.get("order"))
    model = Model(config, kept, cohort, known, server.get(WITHDRAWN, NOTHING))
    for name, content in model._texts().items():
        files.check_digest(folder / name, content, about.get(name))
    return model


def run_config(folder: Path) -> Config:
    """The configuration of a federated method's run."""
    if (folder / GROWN).exists():
        raise RunError(
            f"{folder} was interrupted while it took its grown data in: `fedgrec train --out {folder} --resume` goes on"
        )
    if not (folder / CONFIG).exists():
        make = shlex.join(["fedgrec", "train", "--data" if folder.exists() else "--out", str(folder)])
        raise RunError(f"{folder} is not a run: it has no {CONFIG}. Make one with  {make}")
    if (method := read_toml(folder / CONFIG).get("method", Config().method)) not in METHODS:
        raise RunError(
            f"{folder} is a run of {method}, which is not federated: its figures are in result.json, and "
            "fedgrec.centralized.load opens its model"
        )
    return recorded(folder / CONFIG)


def _of_server(folder: Path, config: Config) -> Model:
    """The model of a federation's server: its users are on the nodes."""
    tensors, about = files.read_tensors(folder / SERVER)
    server = _server_of(tensors, about)
    item_ids = IdMap.load(folder / ITEM_IDS, server.items.shape[-2])
    method = method_module(config.method).make(config.model, len(item_ids), 1)
    users = method.strangers(np.zeros(2, np.int64), NOTHING).take(NOTHING)
    known = Interactions(IdMap.range(0, "user"), item_ids, np.zeros(1, np.int64), NOTHING.astype(np.int32))
    return Model(config, server, users, known, tensors.get(WITHDRAWN, NOTHING))


def _server_of(tensors: files.Tensors, about: dict[str, str]) -> ServerState:
    more = {name.removeprefix("more."): value for name, value in tensors.items() if name.startswith("more.")}
    return _server(tensors["item_embeddings"], tensors["item_degrees"], int(about["round"]), more)


def _server(items: Floats, degrees: Ints, round_: int, more: dict[str, Floats]) -> ServerState:
    nothing = np.zeros((0, 0), items.dtype)
    return ServerState(items, degrees, nothing, nothing, round_, more)
