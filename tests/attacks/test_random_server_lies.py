"""A server that lies at random, against real nodes whose uploads are symbols: it learns no relation over too few nodes.

Every masked vector that a node sends is a row over unknowns: what its users send (one symbol for each user, stage and
round), its own mask, and one mask for each pair. A secret is a known row once enough of its shares were revealed. The
server can compute the linear combinations of these rows. A *violation* is a combination in which all masks cancel and
which is over fewer honest nodes of one stage and round than a sum may have, or over a part of a batch, or not equally
over all of it; or an evaluation beyond the budget.

The server lies about companies, lists, the history of sums, seasons, models that were there before, and rosters.
"""

import copy
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from fedgrec.federation.common import batches, folder, packets
from fedgrec.federation.common.certificates import authority
from fedgrec.federation.common.history import chained, line, unpack
from fedgrec.federation.common.packets import Packet, as_array
from fedgrec.federation.common.plan import CHANGES, EVALUATE, Plan
from fedgrec.federation.common.roster import Member, Membership, write_roster
from fedgrec.federation.node import changes, node, rules
from fedgrec.federation.node.current_sum import Computed, Sums
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.folder import open_server
from fedgrec.secagg import SecAggError, Server
from fedgrec.secagg.client import Client
from fedgrec.secagg.messages import Confirmations, Masked, Reveal, Survivors, parse
from tests.attacks.lying_server import DEGREES, JUDGE, PROPAGATE, TRAIN, Liar, committed
from tests.federation.rosters import following
from tests.federation.worlds import N_ITEMS, World, world

Row = dict[Any, int]
Parts = Collection[frozenset[int]]
CHOICES = st.randoms(use_true_random=True)  # one draw, so that later choices may depend on nodes' answers
BUDGET = 1  # evaluations
WARM_UP = (DEGREES.stage, PROPAGATE.stage)
STEPS = 25_000  # messages in a long run of each federation


KINDS = [DEGREES, DEGREES, PROPAGATE, PROPAGATE, TRAIN, TRAIN, TRAIN, TRAIN, JUDGE]
LATER = [*[TRAIN] * 4, JUDGE, Plan(CHANGES, 0, 0, 0, 0), *[Plan("recount", 0, 0, 0, 0)] * 2]


@dataclass(frozen=True)
class Shape:
    """A federation that is attacked."""

    founders: int = 7
    fewest_people: int = 1  # every node is a batch of its own; 3: batches of three people
    corrupt: float = 0.0
    restores: bool = False  # a node is restored: it counts as one that works for the server
    latents_every: int = 1


SHAPES = {
    "batches": Shape(9, 3),
    "each node alone": Shape(),
    "a node is restored": Shape(corrupt=0.05, restores=True),
    "batches and sweeps": Shape(9, 3, 0.05, latents_every=0),
}


@dataclass
class View:
    """What the server has seen, as rows over symbols."""

    rows: list[Row] = field(default_factory=list)
    shares: dict[Any, set[int]] = field(default_factory=dict)
    known: set[Any] = field(default_factory=set)  # symbols of masks whose secrets were rebuilt
    evaluations: Counter[int] = field(default_factory=Counter)
    sending: Row = field(default_factory=dict)  # by the node that is about to mask
    secrets: dict[tuple[bytes, int], Any] = field(default_factory=dict)  # by session and client: public keys, seed
    opened: Counter[str] = field(default_factory=Counter)  # stages of which something can be computed

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

    def violation(self, least: int, divisions: Sequence[Parts], restored: Collection[int] = ()) -> str:
        """Why this view shows too much; "" if it does not. Nodes that were restored count as the server's own.

        In one of these divisions into parts, all of a part must weigh the same in all that can be computed.
        """
        for member, count in self.evaluations.items():
            if count > BUDGET and member not in restored:
                return f"node {member} was in {count} evaluations, and agreed to {BUDGET}"
        found = self.relations()
        self.opened = Counter({s[3][0]: 1 for row in found for s in row})
        for place in {s[3] for row in found for s in row}:
            rows = [row for row in found if any(s[3] == place for s in row)]
            if narrow := narrowest(rows, place, least):
                return f"{place}: a relation over nodes {narrow} alone"
        uneven = [uneven_in(found, parts) for parts in divisions]
        return "" if not all(uneven) else uneven[0]


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


def uneven_in(relations: Iterable[Row], parts: Parts) -> str:
    """Which relation weighs the members of a part unequally; "" if none does. Users who came later are left aside."""
    for row in relations:
        for place in {s[3] for s in row}:
            weights = {s[1]: round(float(c), 6) for s, c in row.items() if s[3] == place and s[2] == f"{s[1]}/0"}
            for part in parts:
                if len({weights.get(member, 0) for member in part}) > 1:
                    return f"{place}: of batch {sorted(part)} a part is told: {weights}"
    return ""


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
            plan, users, inputs, _ = task(self, sum_)
            rows = inputs[4]  # the users who take part
            names = self.store.of("users", "id", rows)
            view.sending = {("x", self.folder.index, name, plan.place): 1 for (name,) in names}
            spec = plan.spec(self.folder.method(plan.n_users, plan.begun))
            return plan, users, inputs, lambda: Computed(np.zeros(spec.size, spec.dtype), rows)

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

        for name, cached in CACHED.items():
            patch.setattr(folder, name, cached)
        patch.setattr(node.Node, "_task", symbols)
        patch.setattr(Client, "start", started)
        patch.setattr(Client, "receive", received)
        yield


@dataclass
class Begun:
    """A sum that the server has begun."""

    server: Server
    plan: Plan
    model: Any
    session: Any
    members: Membership


class LyingServer(RuleBasedStateMachine):
    """Begins sums, continues them out of order and for some nodes only, and sends any lists, histories and rosters."""

    template: Path
    scratch: Path
    shape: Shape
    steps: int
    opened: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.copytree(self.template, self.scratch)
        self.view = View()
        self.watch = watched(self.view)
        self.watch.__enter__()
        made, self.rosters = WORLDS[self.template]
        fed = copy.deepcopy(made)
        self.everybody = sorted(fed.nodes)
        fed.nodes = {n: self.scratch / f"node{n}" for n in self.everybody}
        fed.server = self.scratch / "server"
        fed.sums.clear()
        self.liar = Liar(fed)
        self.begun, self.round = 0, 0  # the season's first round, and the present one
        self.number = 1  # of the newest roster that a node was given
        self.sums: list[Begun] = []
        self.told: list[str] = []  # the history that all hear
        self.false: dict[tuple[int, int], str] = {}  # and its lines that one node alone hears, by number
        self.asked: list[tuple[int, Packet]] = []
        self.openers: dict[Any, set[int]] = {}
        self.snapshot: Path | None = None
        self.restored: set[int] = set()

    def teardown(self) -> None:
        try:
            self.check()
            type(self).opened += self.view.opened
        finally:
            self.watch.__exit__(None, None, None)

    def ask(self, to: int, packet: Packet) -> Packet:
        type(self).steps += 1
        self.asked.append((to, packet))
        return self.liar.ask(to, packet)

    # ------------------------------------------------------------------------------------------- the lies

    @initialize(rng=CHOICES, honest=st.sampled_from([True, False]))
    def counts_items(self, rng: random.Random, honest: bool) -> None:
        """Some servers begin as honest ones do, so that there is something to lie about."""
        if honest:
            begun = self._begin(rng, DEGREES, None)
            for _ in range(5):
                self._next(rng, begun, all_of_them=True, honest=True)
            self.told.append(self._line(begun, begun.server.included))

    @rule(
        rng=CHOICES,
        whole=st.booleans(),
        exchanges=st.sampled_from([5, 5, 5, 5, 5, 4, 3, 2, 1, 0]),
        more=st.integers(0, 3),
    )
    def begins(self, rng: random.Random, whole: bool, exchanges: int, more: int) -> None:
        """Begin a sum of some nodes with parameters of its own choice, and play this many exchanges of it.

        With whole sums beside it, there is something to lie about.
        """
        for is_whole, count in [(whole, exchanges), *[(True, 5)] * more]:
            begun = self._begin(rng, self._plan(rng), is_whole)
            for _ in range(count):
                if self.shape.restores and rng.random() < 0.1:
                    self._copy_node_zero()
                if not begun.server.done:
                    self._next(rng, begun, all_of_them=True, honest=True)
            self._end(rng, begun)

    def _plan(self, rng: random.Random) -> Plan:
        """A sum of this season or of the next; sums of the same place come again."""
        plan, again = rng.choice(KINDS if not self.begun and rng.random() < 0.6 else LATER), rng.random() < 0.2
        if plan.stage == "recount" and not again:
            self.begun = self.round = self.round + rng.choice([1, 1, 5])
        elif plan.stage == TRAIN.stage and not again:
            self.round += rng.choice([1, 1, 2])
        if plan.stage in WARM_UP:
            return plan
        begun = self.begun if rng.random() < 0.98 else rng.randint(0, self.round)
        round_ = begun if plan.stage == "recount" else self.round
        return replace(plan, round=round_, begun=begun, level=rng.randint(0, 9) if plan.stage == CHANGES else 0)

    def _begin(self, rng: random.Random, plan: Plan, whole: bool | None) -> Begun:
        home = self.liar.home
        members = self.rosters[(self.number if rng.random() < 0.9 else rng.randint(1, self.number)) - 1]
        n_users = 2 * len(self.everybody)
        plan = replace(plan, n_users=n_users, users=n_users, take=1, of=1)
        if plan.stage == EVALUATE:
            plan = replace(plan, topk=home.agreed.topk)
        self.liar.method = home.method(n_users, plan.begun)
        broadcast = self.liar.broadcast(plan)
        least, corrupt, company = home.fewest_nodes, home.corrupt_nodes, self._company(rng, plan, members, whole)
        n, once = len(company), plan.stage in (*WARM_UP, "recount")
        most = max(n, len(members.present)) if once else n
        threshold = min((most + corrupt) // 2 + 1 + rng.choice([0, 0, 0, 0, 0, 1, 2]), n)
        more = {"least_summed": least} if rng.random() < 0.5 else {}
        session = self.liar.session(
            plan, n, plan.place, threshold=max(threshold, 1), least=max(min(least, n), 2), **more
        )
        together = [b for b in self._drawn(members) if b <= set(company)] if more else []
        server = Server(session, {c: members.members[c].key for c in company}, together=together)
        begun = Begun(server, plan, broadcast, session, members)
        self.sums.append(begun)
        header = {"session": session.to_json(), "place": list(plan.place), "attempt": self.liar.attempt}
        answers = {member: self.ask(member, self._with_history(rng, member, header)) for member in company}
        for member, answer in answers.items():
            self._take(begun, member, answer)
        if (
            any("another history" in answer.header.get("reason", "") for answer in answers.values())
            and rng.random() < 0.8
        ):
            self._take_back()
        begun.plan = committed(plan, answers)
        if begun.plan.committed and rng.random() < 0.1:  # or an earlier commitment
            begun.plan = replace(plan, committed=rng.choice(self.sums).plan.committed)
        one = rng.choice(company)
        told = self._history(one)
        with NodeStore(self.liar.fed.nodes[one]) as store:
            founded = store.get("founded") or (unpack(told[0]).roster if told else members.number)
        head = reduce(chained, told, "")
        server.context = self.liar.context(begun.plan, broadcast, members.digest, head, founded)
        return begun

    def _company(self, rng: random.Random, plan: Plan, members: Membership, whole: bool | None) -> list[int]:
        """Everybody, if `whole` is None; else also whole batches, often with a node more or less, or any company."""
        drawn, present = self._drawn(members), sorted(members.present)
        if whole is None:
            return present
        if rng.random() < 0.5:
            chosen = set(present) if whole else set().union(*rng.sample(drawn, rng.randint(1, len(drawn))))
            return sorted(chosen ^ ({rng.choice(present)} if rng.random() < 0.3 else set())) or present
        least = self.liar.home.fewest_nodes
        return sorted(
            self._rather_new(rng, plan, present)[: len(present) if whole else rng.randint(least, len(present))]
        )

    def _drawn(self, members: Membership, founded: int = 1) -> list[frozenset[int]]:
        return batches.batches(members.federation, members.members, self.shape.fewest_people, founded)

    @precondition(lambda self: any(not s.server.done for s in self.sums))
    @rule(rng=CHOICES, latest=st.integers(0, 2), all_of_them=st.booleans(), honest=st.booleans())
    def goes_on(self, rng: random.Random, latest: int, all_of_them: bool, honest: bool) -> None:
        """Go on with the last sum, or with an earlier one."""
        going = [s for s in self.sums if not s.server.done]
        self._next(rng, going[-1 - min(latest, len(going) - 1)], all_of_them, honest)

    def _next(self, rng: random.Random, begun: Begun, all_of_them: bool, honest: bool) -> None:
        """Close a stage and ask all or some nodes for the next. To open a sum, it asks no more nodes than it needs."""
        try:
            inbox = begun.server.close()
        except SecAggError:
            return
        kind = {"shares": packets.SHARES, "masked vectors": packets.MASKED, "confirming": packets.CONFIRM}.get(
            begun.server.stage.value, packets.UNMASK
        )
        chosen = sorted(inbox) if all_of_them else rng.sample(sorted(inbox), rng.randint(0, len(inbox)))
        if kind == packets.MASKED and len(self.sums) > 1 and rng.random() < 0.2:  # somebody is lost late
            chosen = [member for member in chosen if rng.random() < 0.8]
        if kind == packets.UNMASK and all_of_them:
            chosen = self._rather_new(rng, begun.plan, inbox)[: begun.session.threshold]
            self.openers.setdefault(begun.plan.place, set()).update(chosen)
        other = {} if honest or kind != packets.CONFIRM else self._other_lists(rng, inbox)
        for member in chosen:
            packet = self._packet(rng, member, begun, kind, other.get(member, inbox[member]))
            self._take(begun, member, self.ask(member, packet))

    def _rather_new(self, rng: random.Random, plan: Plan, nodes: Iterable[int]) -> list[int]:
        """First the nodes that have not opened a sum of this place yet: they do not know that it was opened."""
        return sorted(nodes, key=lambda node: (node in self.openers.get(plan.place, ()), rng.random()))

    def _other_lists(self, rng: random.Random, inbox: dict[int, bytes]) -> dict[int, bytes]:
        """Lists of survivors without some who have sent vectors: for each node another one, or for all the same."""
        lists = parse(next(iter(inbox.values())))
        assert isinstance(lists, Survivors)

        def one() -> bytes:
            batch = next((b for b in self._drawn(self.rosters[self.number - 1]) if rng.random() < 0.3), frozenset())
            lost = ({rng.choice(lists.alive)} if rng.random() < 0.7 else batch) & set(lists.alive)
            alive = tuple(a for a in lists.alive if a not in lost)
            return replace(lists, alive=alive, dropped=tuple(sorted({*lists.dropped, *lost}))).pack()

        same = one()
        return {member: same if rng.random() < 0.8 else one() for member in inbox}

    def _packet(self, rng: random.Random, member: int, begun: Begun, kind: str, message: bytes) -> Packet:
        header: dict[str, Any] = {"session": begun.session.round_id.hex()}
        arrays: dict[str, Any] = {}
        if kind == packets.SHARES:
            model, arrays = packets.pack_broadcast(begun.model)
            header |= {"plan": asdict(begun.plan), "model": model, packets.AS_BEFORE: rng.random() < 0.02}
        packet = self._with_history(rng, member, header)
        return replace(packet, kind=kind, blobs={packets.SECAGG: message}, arrays=arrays)

    def _take(self, begun: Begun, member: int, answer: Packet) -> None:
        message = answer.blobs.get(packets.SECAGG, b"")
        if packets.SECAGG in answer.arrays:
            message = answer.arrays[packets.SECAGG].tobytes()
        with suppress(SecAggError):
            begun.server.receive(member, message)

    # --------------------------------------------------------------------------- what it tells of the history

    def _end(self, rng: random.Random, begun: Begun) -> None:
        """Say what became of a sum: the truth, that it was lost, or that other nodes are in it; or nothing."""
        survivors, present = list(getattr(begun.server, "survivors", [])), sorted(begun.members.present)
        opened = list(begun.server.included)
        lies = [survivors, [n for n in survivors if rng.random() < 0.8], [*survivors, rng.choice(present)]]
        said = opened if rng.random() < 0.85 else [] if rng.random() < 0.7 else rng.choice(lies)
        if rng.random() < 0.98:
            self.told.append(self._line(begun, said))
            if rng.random() < 0.03:  # one node hears something else
                self.false[rng.choice(present), len(self.told) - 1] = self._line(begun, rng.choice([opened, [], *lies]))

    def _line(self, begun: Begun, included: Iterable[int]) -> str:
        return line(begun.session.round_id.hex(), begun.plan.place, begun.members.number, included).pack()

    def _take_back(self) -> None:
        """Nodes did not believe the last line: try the truth, or that the sum was lost."""
        begun = next(b for b in reversed(self.sums) if b.session.round_id.hex() in self.told[-1])
        number = len(self.told) - 1
        self.false = {key: packed for key, packed in self.false.items() if key[1] != number}
        truth, lost = self._line(begun, begun.server.included), self._line(begun, [])
        self.told[-1] = lost if self.told[-1] == truth else truth

    def _history(self, member: int) -> list[str]:
        return [self.false.get((member, number), told) for number, told in enumerate(self.told)]

    def _with_history(self, rng: random.Random, member: int, header: dict[str, Any]) -> Packet:
        """All of it, its end, one with a gap, or none."""
        lines, chance = self._history(member), rng.random()
        after = rng.randint(0, len(lines)) if chance < 0.1 else 0
        told = {"after": after + (chance < 0.005), "lines": lines[after:]}
        return Packet(packets.KEYS, header | ({} if 0.1 < chance < 0.11 else {packets.HISTORY: told}))

    # ------------------------------------------------------------------------------------------- other lies

    @precondition(lambda self: bool(self.asked))
    @rule(back=st.integers(1, 40), to=st.none() | st.integers(0, 99))
    def replays(self, back: int, to: int | None) -> None:
        """Send one of the last messages again, to the same node or to another."""
        member, packet = self.asked[-min(back, len(self.asked))]
        self.ask(member if to is None else self.everybody[to % len(self.everybody)], packet)

    @precondition(lambda self: any(s.server.done for s in self.sums))
    @rule(rng=CHOICES, member=st.integers(0, 6))
    def confirms_otherwise(self, rng: random.Random, member: int) -> None:
        """Use the confirmations of one sum for another."""
        begun = rng.choice(self.sums)
        forged = Confirmations(begun.session.round_id, {n: bytes(64) for n in self.everybody[:-1]}).pack()
        self.ask(member, self._packet(rng, member, begun, packets.UNMASK, forged))

    @rule(rng=CHOICES, kind=st.sampled_from(["newer", "newer", "newer", "older", "invented", "of another authority"]))
    def hands_out_a_roster(self, rng: random.Random, kind: str) -> None:
        """A newer one, to all nodes or to some; or one that they must refuse."""
        now = self.rosters[self.number - 1]
        if kind == "newer":
            if self.number == len(self.rosters) or rng.random() < 0.5:
                return
            new = self.rosters[self.number]
        elif kind == "older":
            new = self.rosters[rng.randrange(self.number)]
        else:
            invented = {100 + n: Member(f"invented{n}", bytes([n]) * 32, joined=now.number + 1) for n in range(3)}
            new = Membership(now.federation, now.number + 1, {**now.members, **invented}, now.signature)
            new = new if kind == "invented" else new.signed(STRANGER)
        everybody = rng.random() < 0.7
        for member in [m for m in now.members if everybody or rng.random() < 0.5]:
            self.ask(member, Packet(packets.NEW_ROSTER, arrays={"roster": as_array(new.pack())}))
            assert open_node(self.liar.fed.nodes[member]).membership in self.rosters
        if kind == "newer":
            self.number += 1

    @rule(member=st.integers(0, 99))
    def restarts(self, member: int) -> None:
        member = self.everybody[member % len(self.everybody)]
        self.liar.fed.sums.pop(self.liar.fed.nodes[member], None)
        self.liar.greet(member)

    @rule(member=st.integers(0, 99))
    def gains_a_user(self, member: int) -> None:
        """Add a new user, who would be the difference of two uploads."""
        member = self.everybody[member % len(self.everybody)]
        folder = self.liar.fed.nodes[member]
        with NodeStore(folder) as store:
            store.add_users(open_node(folder).method(1), [Person(f"new {next(NAMES)}", [1, 2])])
        self.liar.greet(member)

    @rule(member=st.integers(0, 99), item=st.integers(0, N_ITEMS - 1))
    def gains_an_item(self, member: int, item: int) -> None:
        """A user of the node has something to send in a recount."""
        with NodeStore(self.liar.fed.nodes[self.everybody[member % len(self.everybody)]]) as store, store.transaction():
            (row, *_) = store.first_rows(1)
            if not store.counting():
                changes.want(store, row, sorted({*changes.wanted(store, row)} ^ {item}) or [item])

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
        self.restored = {0}
        folder, again = self.liar.fed.nodes[0], self.asked[self.since :][:40]
        shutil.rmtree(folder)
        self.snapshot.rename(folder)  # type: ignore[union-attr]
        self.snapshot = None
        bring_back(folder, self.liar.fed.sums, self.kept)
        self.gains_a_user(0)
        for member, packet in again:
            if member == 0:
                self.ask(0, packet)

    # ------------------------------------------------------------------------------------------ what it learns

    def divisions(self) -> list[Parts]:
        """What nobody may see a part of, for each roster with which some node says that the federation began.

        A batch is what was drawn, whoever has left since. Those who left with the same roster are a part, and so are
        those who stay.
        """
        members = self.rosters[self.number - 1].members
        never = {n: replace(line, left=0) for n, line in members.items()}
        found, newest = [], self.rosters[self.number - 1]
        for founded in sorted(self._began()) or [1]:
            drawn = self._drawn(replace(newest, members=never), founded)
            honest = [batch - self.restored for batch in drawn]
            found.append({frozenset(n for n in b if members[n].left == members[o].left) for b in honest for o in b})
        return found

    def _began(self) -> set[int]:
        found = set()
        for path in self.liar.fed.nodes.values():
            with NodeStore(path) as store:
                found.add(store.get("founded"))
        return found - {None}

    def check(self) -> None:
        found = self.view.violation(self.liar.home.fewest_nodes, self.divisions(), self.restored)
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
STRANGER = authority("another")[0]
# Folders' caches are for few folders in one process.
CACHED = {name: lru_cache(99)(getattr(folder, name).__wrapped__) for name in ("_config", "_agreement")}
WORLDS: dict[Path, tuple[World, list[Membership]]] = {}


def made(root: Path, shape: Shape) -> tuple[World, list[Membership]]:
    """A federation that has not begun, and the rosters that its authority signs one after the other.

    Where people stand in batches, three nodes join later; two of them, then the third, which makes them a batch.
    """
    later = 3 if shape.fewest_people > 1 else 0
    options = {"least_nodes": 3, "corrupt": shape.corrupt, "evaluations": BUDGET, "retries": 0, "season_rounds": 1}
    options |= {"fewest_people": shape.fewest_people, "batches_for_training": 1, "recount_users": 1}
    nodes = shape.founders + later
    fed = world(root, nodes=nodes, users=1, options=options, users_per_round=100, latents_every=shape.latents_every)
    lines: dict[int, Member] = dict(open_server(fed.server).membership.members)
    came = dict.fromkeys(range(shape.founders), 1) | dict(zip(range(shape.founders, nodes), (2, 2, 3), strict=False))
    went = {3: 3, 5: 4, 6: 4} if later else {3: 2, 5: 3}
    lines = {n: replace(member, joined=came[n]) for n, member in lines.items()}

    def at(number: int) -> Membership:
        here = {n: replace(m, left=went.get(n, 0)) for n, m in lines.items() if came[n] <= number}
        members = {n: replace(m, left=m.left if m.left <= number else 0) for n, m in here.items()}
        return following(root, members, number)

    rosters = [at(number) for number in range(1, 5 if later else 4)]
    for path in (fed.server, *fed.nodes.values()):
        name = path.name.removeprefix("node")
        write_roster(path, rosters[came[int(name)] - 1 if name.isdecimal() else 0])
    return fed, rosters


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few nodes are several batches."""
    monkeypatch.setattr(batches, "FEWEST_NODES", 3)


def lie(tmp_path: Path, shape: Shape, runs: int, seed: int = 0, steps: int = 40) -> type[LyingServer]:
    """Run the machine so many times, and return it: it has counted. A violation is an AssertionError."""
    WORLDS[tmp_path / "template"] = made(tmp_path / "template", shape)

    class Machine(LyingServer):
        template, scratch = tmp_path / "template", tmp_path / "scratch"

    Machine.shape, Machine.steps, Machine.opened = shape, 0, Counter()
    how = settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        derandomize=seed == 0,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=how)
    return Machine


@pytest.mark.keep(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_lie_tells_too_much(tmp_path: Path, shape: str) -> None:
    machine = lie(tmp_path, SHAPES[shape], 5)
    assert machine.steps > 200
    assert machine.opened, "otherwise nothing is told because nothing is ever opened"


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_hundred_thousand_steps(tmp_path: Path, shape: str) -> None:
    """The steps are messages; a quarter of them in each federation."""
    steps, opened = 0, Counter[str]()
    while steps < STEPS:
        machine = lie(tmp_path / f"{steps}", SHAPES[shape], 10, seed=1)
        shutil.rmtree(tmp_path / f"{steps}")
        steps, opened = steps + machine.steps, opened + machine.opened
    assert opened.keys() >= {"degrees", "propagate", "train", "evaluate", "changes", "recount"}, opened


MUTANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "evaluations without a budget": (
        "each node alone",
        lambda m: m.setattr(rules, "check_evaluation", lambda *_: None),
    ),
    "masks in the backup": ("a node is restored", lambda m: m.setitem(globals(), "remembered", with_masks)),
    "sums over parts of batches": ("batches", lambda m: m.setattr(rules, "check_batches", lambda *_: None)),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    shape, mutate = MUTANTS[mutant]
    mutate(monkeypatch)

    def is_found(n: int) -> bool:
        try:
            lie(tmp_path / f"{n}", SHAPES[shape], 20, seed=1)
        except AssertionError:
            return True
        return False

    assert any(map(is_found, range(40)))
