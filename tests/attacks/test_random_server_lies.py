"""A server that lies at random, against real nodes whose uploads are symbols: it learns no relation over too few nodes.

Every masked vector that a node sends is a row over unknowns: what its users send (one symbol for each user, stage and
round), its own mask, and one mask for each pair. A secret is a known row once enough of its shares were revealed. The
server can compute the linear combinations of these rows. A *violation* is a combination in which all masks cancel and
which is over fewer honest nodes of one stage and round than a sum may have; or an evaluation beyond the budget.
"""

import copy
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from fedgrec.federation.common import packets
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.plan import EVALUATE
from fedgrec.federation.node import node, rules
from fedgrec.federation.node.current_sum import Sums
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.secagg import SecAggError, Server
from fedgrec.secagg.client import Client
from fedgrec.secagg.messages import Confirmations, Masked, Reveal, Survivors, parse
from tests.attacks.lying_server import DEGREES, JUDGE, PROPAGATE, TRAIN, Liar, committed
from tests.federation.worlds import world

Row = dict[Any, int]
NODES, USERS = 7, 1
CHOICES = st.randoms(use_true_random=True)  # one draw, so that later choices may depend on nodes' answers
PLACES = [DEGREES, DEGREES, DEGREES, PROPAGATE, TRAIN, JUDGE, replace(TRAIN, round=6), replace(JUDGE, round=6)]


@dataclass
class View:
    """What the server has seen, as rows over symbols."""

    rows: list[Row] = field(default_factory=list)
    shares: dict[Any, set[int]] = field(default_factory=dict)
    known: set[Any] = field(default_factory=set)  # symbols of masks whose secrets were rebuilt
    evaluations: Counter[int] = field(default_factory=Counter)
    sending: Row = field(default_factory=dict)  # by the node that is about to mask
    secrets: dict[tuple[bytes, int], Any] = field(default_factory=dict)  # by session and client: public keys, seed

    def masked(self, client: Client) -> None:
        """x + PRG(b) + Σ ± PRG(s), with the secrets that were really used."""
        row, mine = dict(self.sending), client._mine()
        row["seed", mine.seed, client._bound] = 1
        public = mine.mask_key.public_key().public_bytes_raw()
        for peer in client._there():
            pair = tuple(sorted((public, client._keys[peer].mask_key)))
            row["pair", pair, client._bound] = 1 if client.me < peer else -1
        self.rows.append(row)
        if any(place[0] == EVALUATE for _, _, _, place in self.sending):
            self.evaluations[client.me] += 1

    def revealed(self, holder: int, session: Any, message: Reveal) -> None:
        """A secret is known once `threshold` holders have revealed their shares of it."""
        for kind, owners in (("seed", message.seeds), ("key", message.mask_keys)):
            for owner in owners:
                seen = self.shares.setdefault((session.round_id, owner, kind), set())
                seen.add(holder)
                if len(seen) >= session.threshold:
                    public, seed = self.secrets[session.round_id, owner]
                    self.known.add(seed if kind == "seed" else public)

    def is_known(self, symbol: Any) -> bool:
        kind, secret, _ = symbol
        return secret in self.known if kind == "seed" else bool(set(secret) & self.known)

    def relations(self) -> list[Row]:
        """Combinations of rows in which every mask cancels: elimination, masks first."""
        bare = [{s: c for s, c in row.items() if s[0] == "x" or not self.is_known(s)} for row in self.rows]
        masks = sorted({s for row in bare for s in row if s[0] != "x"}, key=repr)
        symbols = sorted({s for row in bare for s in row if s[0] == "x"}, key=repr)
        columns = {s: n for n, s in enumerate([*masks, *symbols])}
        matrix = np.zeros((len(bare), len(columns)))
        for n, row in enumerate(bare):
            for s, c in row.items():
                matrix[n, columns[s]] = c
        reduced = echelon(matrix)
        left = [row[len(masks) :] for row in reduced if not row[: len(masks)].any() and row.any()]
        return [{symbols[n]: c for n, c in enumerate(row) if c} for row in left]

    def violation(self, least: int, budget: int) -> str:
        """Why this view shows too much; "" if it does not."""
        if self.evaluations and max(self.evaluations.values()) > budget:
            return f"{max(self.evaluations.values())} evaluations, {budget} were agreed upon"
        found = self.relations()
        for place in {s[3] for row in found for s in row}:
            rows = [row for row in found if any(s[3] == place for s in row)]
            if narrow := narrowest(rows, place, least):
                return f"{place}: a relation over nodes {narrow} alone"
        return ""


def echelon(matrix: np.ndarray) -> np.ndarray:
    """Reduced rows; coefficients are small whole numbers, so floats are exact enough."""
    matrix, top = matrix.copy(), 0
    for column in range(matrix.shape[1]):
        candidates = np.flatnonzero(np.abs(matrix[top:, column]) > 1e-9)
        if not len(candidates):
            continue
        at = top + candidates[0]
        matrix[[top, at]] = matrix[[at, top]]
        matrix[top] /= matrix[top, column]
        others = np.flatnonzero(np.abs(matrix[:, column]) > 1e-9)
        for other in others[others != top]:
            matrix[other] -= matrix[other, column] * matrix[top]
        top += 1
        if top == len(matrix):
            break
    matrix[np.abs(matrix) < 1e-9] = 0
    return matrix


def narrowest(rows: list[Row], place: Any, least: int) -> list[int] | None:
    """Fewer than `least` nodes such that some combination of the rows is over them alone, if there are any."""
    nodes = sorted({s[1] for row in rows for s in row})
    symbols = sorted({s for row in rows for s in row}, key=repr)
    matrix = np.array([[row.get(s, 0.0) for s in symbols] for row in rows])
    rank = np.linalg.matrix_rank(matrix)
    for count in range(1, least):
        for chosen in itertools.combinations(nodes, count):
            outside = [n for n, s in enumerate(symbols) if s[1] not in chosen or s[3] != place]
            if np.linalg.matrix_rank(matrix[:, outside]) < rank:  # a combination over these alone is left
                return list(chosen)
    return None


@contextmanager
def watched(view: View) -> Iterator[None]:
    """Real nodes, whose users send symbols; the view records what they mask and reveal."""
    with pytest.MonkeyPatch.context() as patch:
        receive, start, task = Client.receive, Client.start, node.Node._task

        def symbols(self: Any, sum_: Any) -> Any:
            plan, users, rows, inputs, _ = task(self, sum_)
            names = [self.store.ids()[row - 1] for row in rows]
            view.sending = {("x", self.folder.index, name, plan.place): 1 for name in names}
            spec = plan.spec(self.folder.method(plan.n_users))
            return plan, users, rows, inputs, lambda: (np.zeros(spec.size, spec.dtype), None)

        def started(self: Client) -> bytes:
            mine = self._mine()
            view.secrets[self.session.round_id, self.me] = mine.mask_key.public_key().public_bytes_raw(), mine.seed
            return start(self)

        def received(self: Client, data: bytes) -> bytes:
            before = copy.copy(self)  # a client forgets when it reveals
            answer = receive(self, data)
            message = parse(answer)
            if isinstance(message, Masked):
                view.masked(before if before._secrets is None else self)
            elif isinstance(message, Reveal):
                view.revealed(self.me, self.session, message)
            return answer

        patch.setattr(node.Node, "_task", symbols)
        patch.setattr(Client, "start", started)
        patch.setattr(Client, "receive", received)
        yield


class LyingServer(RuleBasedStateMachine):
    """Begins sums, continues them out of order and for some nodes only, and sends any lists and verdicts."""

    template: Path
    scratch: Path
    restores: bool
    budget: int
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.copytree(self.template, self.scratch)
        self.view = View()
        self.watch = watched(self.view)
        self.watch.__enter__()
        fed = copy.deepcopy(WORLDS[self.template])
        fed.nodes = {n: self.scratch / f"node{n}" for n in range(NODES)}
        fed.server = self.scratch / "server"
        fed.sums.clear()
        self.liar = Liar(fed)
        self.liar.method = self.liar.home.method(NODES * USERS)
        self.sums: list[dict[str, Any]] = []
        self.asked: list[tuple[int, Packet]] = []
        self.openers: dict[Any, set[int]] = {}
        self.snapshot: Path | None = None

    def teardown(self) -> None:
        self.watch.__exit__(None, None, None)

    def ask(self, to: int, packet: Packet) -> Packet:
        type(self).steps += 1
        self.asked.append((to, packet))
        return self.liar.ask(to, packet)

    # ------------------------------------------------------------------------------------------- the lies

    @rule(
        rng=CHOICES,
        plan=st.sampled_from(PLACES),
        whole=st.booleans(),
        exchanges=st.sampled_from([5, 5, 5, 4, 3, 2, 1, 0]),
    )
    def begins(self, rng: random.Random, plan: Any, whole: bool, exchanges: int) -> None:
        """Begin a sum of some nodes with parameters of its own choice, and play this many exchanges of it."""
        least = self.liar.home.fewest_nodes
        company = sorted(self._rather_new(rng, plan, range(NODES))[: NODES if whole else rng.randint(least, NODES)])
        plan = replace(plan, n_users=NODES, users=NODES, take=1, of=1)
        if plan.stage == EVALUATE:
            plan = replace(plan, topk=self.liar.home.agreed.topk)
        broadcast = self.liar.broadcast(plan)
        n, corrupt = len(company), self.liar.home.corrupt_nodes
        threshold = min((n + corrupt) // 2 + 1 + rng.choice([0, 0, 0, 0, 0, 1, 2]), n)
        session = self.liar.session(plan, n, plan.place, threshold=threshold, least=min(least, n))
        server = Server(session, {c: self.liar.home.roster[c].key for c in company})
        header = {"session": session.to_json(), "place": list(plan.place), "attempt": self.liar.attempt}
        said = rng.random() < 0.3
        sum_ = {"server": server, "plan": plan, "model": broadcast, "session": session, "said": said}
        self.sums.append(sum_)
        answers = {member: self.ask(member, Packet(packets.KEYS, header)) for member in company}
        for member, answer in answers.items():
            self._take(sum_, member, answer)
        sum_["plan"] = committed(plan, answers)
        if sum_["plan"].committed and rng.random() < 0.1:  # or an earlier commitment
            sum_["plan"] = replace(plan, committed=rng.choice(self.sums)["plan"].committed)
        home = self.liar.home
        server.context = sum_["plan"].context(broadcast, home.agreement, home.membership.digest)
        for _ in range(exchanges):
            if self.restores and rng.random() < 0.1:
                self._copy_node_zero()
            if not server.done:
                self._next(rng, sum_, all_of_them=True, honest=True)

    @precondition(lambda self: any(not s["server"].done for s in self.sums))
    @rule(rng=CHOICES, latest=st.integers(0, 2), all_of_them=st.booleans(), honest=st.booleans())
    def goes_on(self, rng: random.Random, latest: int, all_of_them: bool, honest: bool) -> None:
        """Go on with the last sum, or with an earlier one."""
        going = [s for s in self.sums if not s["server"].done]
        self._next(rng, going[-1 - min(latest, len(going) - 1)], all_of_them, honest)

    def _next(self, rng: random.Random, sum_: dict[str, Any], all_of_them: bool, honest: bool) -> None:
        """Close a stage and ask all or some nodes for the next. To open a sum, it asks no more nodes than it needs."""
        try:
            inbox = sum_["server"].close()
        except SecAggError:
            return
        kind = {"shares": packets.SHARES, "masked vectors": packets.MASKED, "confirming": packets.CONFIRM}.get(
            sum_["server"].stage.value, packets.UNMASK
        )
        chosen = sorted(inbox) if all_of_them else rng.sample(sorted(inbox), rng.randint(0, len(inbox)))
        if kind == packets.UNMASK and all_of_them:
            chosen = self._rather_new(rng, sum_["plan"], inbox)[: sum_["session"].threshold]
            self.openers.setdefault(sum_["plan"].place, set()).update(chosen)
        for member in chosen:
            message = inbox[member] if honest or kind != packets.CONFIRM else self._other_list(rng, inbox[member])
            self._take(sum_, member, self.ask(member, self._packet(sum_, kind, message)))

    def _rather_new(self, rng: random.Random, plan: Any, nodes: Iterable[int]) -> list[int]:
        """First the nodes that have not opened a sum of this place yet: they do not know that it was opened."""
        return sorted(nodes, key=lambda node: (node in self.openers.get(plan.place, ()), rng.random()))

    def _other_list(self, rng: random.Random, message: bytes) -> bytes:
        lists = parse(message)
        assert isinstance(lists, Survivors)
        lost = rng.choice(lists.alive)
        alive = tuple(a for a in lists.alive if a != lost)
        return replace(lists, alive=alive, dropped=tuple(sorted((*lists.dropped, lost)))).pack()

    def _packet(self, sum_: dict[str, Any], kind: str, message: bytes) -> Packet:
        from dataclasses import asdict

        header: dict[str, Any] = {"session": sum_["session"].round_id.hex()}
        arrays: dict[str, Any] = {}
        if kind == packets.SHARES:
            model, arrays = packets.pack_broadcast(sum_["model"])
            header |= {"plan": asdict(sum_["plan"]), "model": model}
        return Packet(kind, header | {"verdicts": self._verdicts()}, {packets.SECAGG: message}, arrays)

    def _verdicts(self) -> dict[str, bool]:
        """Verdicts on all earlier sums, so that no node waits; they are random, and mostly the same for all nodes."""
        coin = random.Random(len(self.asked))
        return {s["session"].round_id.hex(): s["said"] ^ (coin.random() < 0.02) for s in self.sums[:-1]}

    def _take(self, sum_: dict[str, Any], member: int, answer: Packet) -> None:
        message = answer.blobs.get(packets.SECAGG, b"")
        if packets.SECAGG in answer.arrays:
            message = answer.arrays[packets.SECAGG].tobytes()
        with suppress(SecAggError):
            sum_["server"].receive(member, message)

    @precondition(lambda self: bool(self.asked))
    @rule(back=st.integers(1, 40), to=st.none() | st.integers(0, NODES - 1))
    def replays(self, back: int, to: int | None) -> None:
        """Send one of the last messages again, to the same node or to another."""
        member, packet = self.asked[-min(back, len(self.asked))]
        self.ask(member if to is None else to, packet)

    @precondition(lambda self: any(s["server"].done for s in self.sums))
    @rule(rng=CHOICES, member=st.integers(0, NODES - 1))
    def confirms_otherwise(self, rng: random.Random, member: int) -> None:
        """Use the confirmations of one sum for another."""
        sum_ = rng.choice(self.sums)
        forged = Confirmations(sum_["session"].round_id, {n: bytes(64) for n in range(NODES - 1)}).pack()
        self.ask(member, self._packet(sum_, packets.UNMASK, forged))

    @rule(member=st.integers(0, NODES - 1))
    def restarts(self, member: int) -> None:
        self.liar.fed.sums.pop(self.liar.fed.nodes[member], None)
        self.liar.greet(member)

    @rule(member=st.integers(0, NODES - 1))
    def gains_a_user(self, member: int) -> None:
        """Add a new user, who would be the difference of two uploads."""
        folder = self.liar.fed.nodes[member]
        with NodeStore(folder) as store:
            store.add_users(open_node(folder).method(1), [Person(f"new {next(NAMES)}", [1, 2])])
        self.liar.greet(member)

    def _copy_node_zero(self) -> None:
        folder, copied = self.liar.fed.nodes[0], self.scratch / "snapshot"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(folder, copied)
        self.snapshot, self.kept, self.since = copied, remembered(folder, self.liar.fed.sums), len(self.asked)

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def restores_node_zero(self) -> None:
        """Restore node 0 from a copy made during a sum; the server repeats what it asked after the copy.

        A restored node counts as one that works for the server, so only node 0 is restored.
        """
        folder, again = self.liar.fed.nodes[0], self.asked[self.since :][:40]
        shutil.rmtree(folder)
        self.snapshot.rename(folder)  # type: ignore[union-attr]
        self.snapshot = None
        bring_back(folder, self.liar.fed.sums, self.kept)
        self.gains_a_user(0)
        for member, packet in again:
            if member == 0:
                self.ask(0, packet)

    def check(self) -> None:
        found = self.view.violation(self.liar.home.fewest_nodes, self.budget)
        assert not found, found

    @rule()
    def looks(self) -> None:
        self.check()


def remembered(folder: Path, sums: Sums) -> Any:
    """What a copy of a node's folder holds of a running sum: nothing. A mutant keeps it."""
    return None


def bring_back(folder: Path, sums: Sums, kept: Any) -> None:
    sums.pop(folder, None)
    if kept is not None:
        sums[folder] = kept


def with_masks(folder: Path, sums: Sums) -> Any:
    """A copy of the node's sum with all its secrets, which an earlier version kept on the disk."""
    sum_ = copy.copy(sums.get(folder))
    if sum_ is not None:
        sum_.client = copy.copy(sum_.client)
        sum_.client._held, sum_.client._keys = dict(sum_.client._held), dict(sum_.client._keys)
    return sum_


NAMES = itertools.count()
WORLDS: dict[Path, Any] = {}


def lie(tmp_path: Path, corrupt: float, restores: bool, sums: int, seed: int = 0) -> int:
    """Run the machine; return how many messages were sent. A violation is an AssertionError."""
    budget = 1
    options = {"least_nodes": 3, "corrupt": corrupt, "evaluations": budget, "retries": 0}
    fed = world(tmp_path / "template", nodes=NODES, users=USERS, options=options, users_per_round=100)
    WORLDS[tmp_path / "template"] = fed

    class Machine(LyingServer):
        template, scratch = tmp_path / "template", tmp_path / "scratch"

    Machine.restores, Machine.budget, Machine.steps = restores, budget, 0
    how = settings(
        max_examples=sums,
        stateful_step_count=60,
        deadline=None,
        derandomize=seed == 0,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=how)
    return Machine.steps


@pytest.mark.keep(1)
@pytest.mark.parametrize(("corrupt", "restores"), [(0.05, True), (0.0, False)])
def test_no_lie_tells_too_much(tmp_path: Path, corrupt: float, restores: bool) -> None:
    assert lie(tmp_path, corrupt, restores, 3) > 100


@pytest.mark.slow
@pytest.mark.parametrize(("corrupt", "restores"), [(0.0, False), (0.05, True)])
def test_a_hundred_thousand_steps(tmp_path: Path, corrupt: float, restores: bool) -> None:
    """The steps are messages; half of them in either world."""
    steps = 0
    while steps < 50_000:
        steps += lie(tmp_path / f"{steps}", corrupt, restores, 50, seed=1)


MUTANTS: dict[str, tuple[float, bool, Callable[[pytest.MonkeyPatch], None]]] = {
    "evaluations without a budget": (0.0, False, lambda m: m.setattr(rules, "check_evaluation", lambda *_: None)),
    "masks in the backup": (
        0.05,
        True,
        lambda m: m.setitem(globals(), "remembered", with_masks),
    ),
    "thresholds by each sum's own size": (0.0, False, lambda m: m.setattr(rules, "opens_once", lambda *_: True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    corrupt, restores, mutate = MUTANTS[mutant]
    mutate(monkeypatch)

    def is_found(n: int) -> bool:
        try:
            lie(tmp_path / f"{n}", corrupt, restores, 20, seed=1)
        except AssertionError:
            return True
        return False

    assert any(map(is_found, range(40)))
