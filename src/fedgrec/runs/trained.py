"""Open the model of a run's folder, whichever method trained it, for `recommend` and `evaluate`."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedgrec import centralized
from fedgrec.cable.core import Floats, Ints
from fedgrec.centralized.contract import MODEL, Scorer, to_numpy
from fedgrec.config.configuration import Config, read_toml
from fedgrec.config.options import DataOptions, RunOptions
from fedgrec.data import Interactions
from fedgrec.data.files import understood, write_text
from fedgrec.errors import RunError
from fedgrec.models.model import CONFIG, Model
from fedgrec.models.ranking import Csr, Judging, Result
from fedgrec.models.recommender import Recommender, Seen
from fedgrec.runs.machine import judged, make_method


def open_run(folder: str | Path, needs_users: bool = True) -> Recommender:
    """The model of a run. The run of a federation's server has no users: it opens only with needs_users=False."""
    folder = Path(folder)
    if (folder / CONFIG).exists() and (method := read_toml(folder / CONFIG).get("method")) in centralized.MODELS:
        return _opened(folder, str(method))
    return Model.load(folder, needs_users)


def measured(model: Recommender, run: RunOptions, seen: Csr, held_out: Csr) -> Result:
    """Measure by full ranking of the held-out items, on the device and with the kernel of the run."""
    how = Judging.of(run, run.seed, model.known)
    if isinstance(model, Centralized):
        return centralized.evaluate_model(model.inner, seen, held_out, how)
    assert isinstance(model, Model)
    config = replace(model.config, run=run)
    method = make_method(config, model.known.n_items, max(model.known.n_users, 1))
    return judged(method, model.server, model.users, seen, held_out, how, run.device)


@dataclass(frozen=True)
class Centralized(Recommender):
    """A model that was trained on all data in one place."""

    config: Config  # its data options, and the run options that federated methods have too
    inner: centralized.Model

    @property
    def known(self) -> Interactions:  # type: ignore[override]
        return self.inner.known

    @property
    def trained_on(self) -> Seen:
        return Seen(self.inner.train.indptr, self.inner.train.items)

    @property
    def round(self) -> int:
        return self.inner.epochs_done

    @cached_property
    def _pair(self) -> Any:
        """The users' and the items' vectors; None where scores are no inner products."""
        return self.inner.embeddings()

    @cached_property
    def _scorer(self) -> Scorer:
        return self.inner.scorer()

    @property
    def inner_product(self) -> bool:
        return self._pair is not None

    def _item_vectors(self) -> Floats:
        return cast(Floats, self._pair[1])

    def _user_vectors(self, users: Ints) -> Floats:
        return cast(Floats, self._pair[0][users])

    def scores(self, users: Ints) -> Floats:
        return to_numpy(self._scorer(users.astype(np.int64)))

    def save(self, folder: str | Path) -> None:
        self.inner.save(folder)
        write_text(Path(folder) / CONFIG, self.config.to_toml())


def _opened(folder: Path, method: str) -> Centralized:
    if not (folder / MODEL).exists():
        raise RunError(f"{folder} has no model yet: give the `fedgrec compare` that made it again, and it goes on")
    with understood(folder / MODEL, "restore it, or remove the folder and give that `fedgrec compare` again"):
        inner = centralized.load(folder)
    own = {f.name for f in fields(inner.options)}
    shared = {f.name for kind in (DataOptions, RunOptions) for f in fields(kind)} - own
    found = {name: value for name, value in read_toml(folder / CONFIG).items() if name in shared}
    config = Config().changed(found, str(folder / CONFIG))
    return Centralized(replace(config, model=inner.options, method=method), inner)
