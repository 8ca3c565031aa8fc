"""A recording holds exactly what a server sees in the rounds asked for, and does not change the training."""

from dataclasses import fields, replace

import numpy as np

from fedgrec.cable.core import Rows, Upload
from fedgrec.config.configuration import Config
from fedgrec.data import Split
from fedgrec.data.split import restrict
from fedgrec.runs.simulation import Simulation
from fedgrec.studies.audit.recording import OpenedSum, View, record, visible, worth_recording
from tests.audit.worlds import PLAIN, plain, sparse


def test_an_attack_can_read_what_a_server_has_and_nothing_else() -> None:
    """Adding a field is a statement about servers."""
    seen = ["method", "n_users", "n_items", "sums", "degrees", "model", "options"]
    assert [f.name for f in fields(View)] == [
        *seen,
        "contents",
        "leaning",
    ]  # both follow from the method and its options
    assert [f.name for f in fields(OpenedSum)] == ["broadcast", "spec", "total", "people"]


def test_rows_of_zeros_are_not_seen() -> None:
    total = Upload({"items": Rows(np.array([2, 5, 7]), np.array([[0, 1], [0, 0], [-1, 0]]))}, 3)
    assert visible(total).leaves["items"].index.tolist() == [2, 7]


def test_a_sum_is_over_the_people_who_are_named() -> None:
    """Latents touch the items of those in the sum, so the two must fit together in every round."""
    view, truth = plain()
    assert [seen.broadcast.round for seen in view.sums] == [0, 1]
    for seen in view.sums:
        touched = np.unique(seen.total.leaves["latents"].index % view.n_items)
        assert touched.tolist() == np.unique(np.concatenate([truth.people.of(u) for u in seen.people])).tolist()
        assert seen.total.users == len(seen.people) == 40


def test_what_is_left_to_two_thirds_are_the_others_uploads() -> None:
    view, truth = plain()
    others = np.unique(np.concatenate([part.people for part in truth.left]))
    assert len(others) <= round(54 / 3)
    for part, seen in zip(truth.left, view.sums, strict=True):
        assert set(part.people) == set(seen.people) & set(others)
        assert part.total.users == len(part.people)
        touched = np.unique(part.total.leaves["latents"].index % view.n_items)
        assert touched.tolist() == np.unique(np.concatenate(truth.items(part.people))).tolist()


def test_contributions_are_those_of_the_last_sum() -> None:
    view, truth = plain()
    found = truth.contributions
    assert set(view.sums[-1].total.leaves["items"].index) <= set(found.rows)
    for place, user in enumerate(view.sums[-1].people.tolist()):
        assert set(truth.people.of(user)) <= set(found.rows[found.places == place])


def test_outsiders_are_in_no_sum() -> None:
    view, truth = plain()
    everybody = sparse().split.train
    assert truth.people.n_users == view.n_users == 54
    assert truth.outsiders.n_users == 6
    assert (truth.popularity == view.degrees).all()
    assert (truth.popularity + truth.outsiders.degrees() == everybody.degrees()).all()


def test_recording_changes_nothing() -> None:
    """The model is the one that the same people train without a recorder; so is it under real masks."""
    view, truth = plain()
    whole = sparse()
    inside = np.isin([whole.split.train.user_ids[u] for u in range(60)], [*truth.people.user_ids])
    people = restrict(whole.split.train, inside, np.ones(whole.split.train.n_items, bool))
    config = Config().changed(PLAIN | {"users_per_round": 40, "negatives": 40, "rounds": 2, "device": "cpu"})
    simulation = Simulation(config, replace(whole, split=Split(people)))
    simulation.run()
    method, newcomers = simulation.method, (np.array([0, 1, 4]), np.array([3, 0, 2, 7]))
    recommended = method.represent_users(simulation.server, method.strangers(*newcomers))
    assert (view.model(*newcomers) == recommended @ method.represent_items(simulation.server).T).all()


def test_a_broadcast_is_of_before_its_sum() -> None:
    """The server changes its tables in place: what was recorded must not change with them."""
    view, _ = plain(l2=0.01)
    first, second = (seen.broadcast.tables for seen in view.sums)
    assert (first[0] != second[0]).any()


def test_the_last_rounds_are_recorded_and_the_last_one_with_latents() -> None:
    config = Config().changed({"kernel": "reference", "latents_every": 4, "rounds": 11, "users_per_round": 60})
    simulation = Simulation(config, sparse())
    full = [r for r in range(11) if not simulation.method.training(r).lean]
    assert worth_recording(simulation.method, 11, 2) == sorted({max(full), 9, 10})
    assert max(full) < 9
    assert worth_recording(simulation.method, 11, 100) == list(range(11))


def test_under_masks_the_same_is_seen() -> None:
    options = PLAIN | {"users_per_round": 5, "negatives": 8, "rounds": 1, "dim": 4}
    small = sparse(users=12, items=60)
    plainly, securely = (
        record(Config().changed(options | {"secure": kind}), small)[0].sums[0] for kind in ("off", "protocol")
    )
    assert plainly.people.tolist() == securely.people.tolist()
    for name, rows in plainly.total.leaves.items():
        assert rows.index.tolist() == securely.total.leaves[name].index.tolist()
        assert (rows.values == securely.total.leaves[name].values).all()
