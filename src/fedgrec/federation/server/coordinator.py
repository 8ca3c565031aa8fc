"""The server's side of a federation: Algorithm 1 over nodes that come, go, and fall silent.

    join → degree counts → warm-up 1..K → (training rounds, now and then an evaluation) → publish
                                     rest → count of changes → recount → training rounds → …         (a season)

Every step but the first and the last is a secure sum (secure_sum.py). After every sum the store holds the progress, so
that a server that was killed goes on with the next sum. A lost sum of the warm-up is tried again with a new session,
and a lost evaluation once; a lost training round is gone, as in the simulation, because users' draws belong to their
round. After a few losses in a row the server stops with an error. Nodes evaluate only models that they have trained on,
so an evaluation is of the model that the last training round began with. A lost count of changes and a lost recount
are tried again before the season begins, then once before each of its next rounds, as long as half of `season_rounds`
are left until the next season. If some nodes may have opened the recount, changes wait for that season.
"""

import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from fedgrec.cable.core import Broadcast, Upload
from fedgrec.errors import ConfigError, SumLostError, many
from fedgrec.federation.common import catalogue, packets
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import Packet, pack_broadcast
from fedgrec.federation.common.plan import CHANGES, EVALUATE, Plan, called, is_recount
from fedgrec.federation.common.transport import Transport
from fedgrec.federation.server import seasons
from fedgrec.federation.server.folder import STOP, ServerFolder, open_server, with_catalogue, with_whole_catalogue
from fedgrec.federation.server.liveness import About
from fedgrec.federation.server.members import Members, Observer
from fedgrec.federation.server.model_keeper import ModelKeeper
from fedgrec.federation.server.participants import Participants
from fedgrec.federation.server.run_folder import RUN, write_run
from fedgrec.federation.server.secure_sum import Prepared, secure_sum
from fedgrec.federation.server.status import promise_of
from fedgrec.federation.server.store import Cost, Season, ServerStore
from fedgrec.methods.contract import DEGREES, RECOUNT, Method
from fedgrec.runs.recorded_sums import RECORDINGS, RecordedSum, write_sum

RESTING, TOLD_AGAIN = 2.0, 60.0  # seconds in a rest: between two looks for nodes; until a failed node is told again
ATTEMPTS = 3  # at a count of changes, and at a recount, before training goes on without it
ALIKE = 100  # rounds, among which there are all kinds of rounds that a season has


def run(transport: Transport, folder: Path, observer: Observer | None = None) -> Path:
    """Drive the federation of this server's folder to its end; returns the run folder that it leaves."""
    home = with_whole_catalogue(open_server(folder))
    with ServerStore(home) as store:
        return Coordinator(transport, home, store, observer or Observer()).run()


class Coordinator:
    """One server while it runs."""

    season: Season

    def __init__(self, transport: Transport, folder: ServerFolder, store: ServerStore, observer: Observer) -> None:
        self.store, self.observer, self.options = store, observer, folder.options
        self.members = Members(transport, folder, store, observer)
        self.model = ModelKeeper(self.members)
        self.participants = Participants(self.members)
        self.prepared: Prepared | None = None  # the next sum, whose keys rode on the last one's answers
        self.losses = 0  # in a row
        self._published: Packet | None = None  # what nodes are sent at the end of a season
        self.refused_catalogue = 0  # the last version that was refused

    @property
    def folder(self) -> ServerFolder:
        """With the roster and the catalogue that hold now."""
        return self.members.folder

    @property
    def method(self) -> Method:
        return self.model.method

    def run(self) -> Path:
        self.store.release(self.folder.roster)
        (self.folder.path / STOP).unlink(missing_ok=True)
        o = self.options
        fewest = self.folder.fewest_nodes
        if 0 < o.nodes_per_round < fewest:
            raise ConfigError(
                f"nodes_per_round = {o.nodes_per_round}: {self.folder.corrupt_nodes} of {len(self.folder.roster)} "
                f"nodes may be corrupt, so no sum has fewer than {fewest}: raise it, or lower corrupt everywhere"
            )
        self.later_rounds = seasons.later_rounds(o, self.folder.agreed)
        if o.seasons != 1 and self.folder.method(1).recount is None:
            raise ConfigError(
                f"seasons = {o.seasons}: {self.folder.config.method} learns from what users had at the start; set "
                f"seasons = 1, or choose fedgrec"
            )
        if (agreed := self.folder.agreed).noisy and o.rounds > agreed.dp_rounds:
            raise ConfigError(
                f"rounds = {o.rounds}: all agreed that dp_epsilon = {agreed.dp_epsilon:g} is spent in "
                f"{agreed.dp_rounds} training rounds (dp_rounds), and nodes refuse more: lower it"
            )
        if self.store.get("n_users") is None:
            self._gather(lambda: max(o.start_nodes or len(self.folder.roster), self.folder.fewest_nodes))
        else:  # nodes that were there before come back one after the other
            known = sum(index in self.folder.roster for index, *_ in self.store.nodes())
            self.members.wait(lambda: len(self.members.reachable()) >= known, min(o.deadline, o.start_seconds))
        for stage in self.store.recover():  # unless nodes have told by now what became of it
            self.observer.noticed(f"a sum of stage {stage!r} was going on when the server stopped: it is lost")
        n_users = self.store.get("n_users") or self.store.freeze(self.members.users)
        first = Season(1, 0, o.rounds, n_users, self.folder.n_items)
        self._take_up((self.store.seasons() or [first])[-1])
        with self.store.transaction():
            self.store.put("warm_stages", len(self.method.stages) - 1)
            self.store.put("finished", False)
        if (fewest := self.folder.agreed.evaluation_users) > n_users:
            self.observer.noticed(
                f"there are {n_users:,} users, and nodes judge among {fewest:,} or more (evaluation_users): there will "
                f"be no evaluations"
            )
        while True:
            while (next_ := self._place()) is not None:
                if (self.folder.path / STOP).exists():
                    return self.folder.path / RUN
                self._sum(*next_)
            self._end_season()
            if self.season.number >= o.seasons > 0:
                with self.store.transaction():  # nodes heard of the last sums with the published model
                    self.store.put("finished", True)
                return self.folder.path / RUN
            self._rest()
            self._next_season()

    # -------------------------------------------------------------------------------------------- seasons

    def _take_up(self, season: Season) -> None:
        """Begin this season, or go on with it."""
        if season.number == 1 and season.until != self.options.rounds:  # the option was changed since
            season = replace(season, until=self.options.rounds)
        if self.store.get("round", 0) < season.until:
            season = replace(season, served=None)
        self._keep(season)
        self.model.begin(self.folder.method(season.n_users, season.begun))

    def _keep(self, season: Season) -> None:
        self.season, self._published = season, None
        self.store.keep_season(season)

    def _end_season(self) -> None:
        """Give nodes a model to recommend with: the new one, unless it is worse than the one that they have."""
        season = self.season
        if season.served is None:
            mine = [line for line in self.store.metrics() if line["round"] >= season.begun]
            season = replace(season, line=mine[-1] if mine else None)
            in_vain = not mine and self.store.times(EVALUATE, self.store.trained()[0]) > 0
            served = seasons.to_serve([*self.store.seasons()[:-1], season], in_vain)
            if served != season.number:
                why = "could not be judged" if in_vain else "made the metric worse"
                self.observer.noticed(f"season {season.number} {why}: nodes serve the model of season {served}")
            self._keep_published(season, served)
            self._keep(replace(season, served=served))
            with self.store.transaction():
                self.store.put("ended", time.time())
            if promised := promise_of(self.folder, self.store):
                self.observer.noticed(f"season {season.number} ends: {promised}")
        self.members.greet()
        self._publish()
        write_run(self.folder, self.store, self.model.server)

    def _is_prepared(self, done: Plan) -> bool:
        """Whether this sum makes the first model that nodes can recommend with, before anything is trained."""
        is_round = done.stage == self.method.stages[-1].name
        return self.season.number == 1 and is_round and self.method.prepared(done.round + 1)

    def _serve_first(self) -> None:
        self._keep_published(self.season, self.season.number)
        self._published = seasons.published(self.folder.path, self.season.number)
        self._publish()

    def _keep_published(self, season: Season, served: int) -> None:
        model, arrays = pack_broadcast(self.method.served(self.model.server))
        seasons.publish(self.folder.path, season, model, arrays, self.options.models, served)

    def _publish(self) -> None:
        """Send the model to every node that serves another one, or whose users wait to hear of a sum."""
        packet = self._published = self._published or seasons.published(self.folder.path, self.season.served or 0)
        if packet is None:
            return
        number, present = packet.header["number"], self.members.present()
        silent = [node for node in self.members.reachable() if node not in present]
        for nodes in (present, silent):  # a silent node gets it if it lives; the server does not wait long for it
            behind = [
                node for node in nodes if self.members.serves.get(node) != number or self.members.is_waiting(node)
            ]
            for node, _ in self.members.ask(
                dict.fromkeys(behind, packet), About(packets.FINISH), self.options.deadline
            ):
                self.members.serves[node] = number

    def _rest(self) -> None:
        """Wait until it is time, or enough users have changes; nodes come and go meanwhile."""
        o, ended = self.options, self.store.get("ended", 0.0)
        enough, looked = max(o.enough, self.folder.agreed.recount_users), time.time()
        here, told = set(self.members.reachable()), time.time()
        while time.time() < ended + o.rest:
            if o.look and time.time() >= looked + o.look:
                looked = time.time()
                if (self._count_changes() or 0) >= enough:
                    return
            time.sleep(min(RESTING, max(ended + o.rest - time.time(), 0.0)))
            self.members.greet(again=self._take_catalogue())
            now = set(self.members.reachable())
            if now != here or time.time() >= told + TOLD_AGAIN:
                here, told = now, time.time()
                self._publish()

    def _next_season(self) -> None:
        """Count users with changes, and begin a season; it has a recount if they are enough to hide each other."""
        self._take_catalogue()
        counts = (self._count_changes() for _ in range(ATTEMPTS))
        changed = next((count for count in counts if count is not None), None)
        n_users = max(self.store.users_in_sums(), 1)
        round_, sums = self.store.get("round", 0), len(self.store.sums())
        until = round_ + self.later_rounds
        season = Season(self.season.number + 1, round_, until, n_users, self.folder.n_items, sums + 1, recount=True)
        self._take_up(season if changed is None else self._counted(season, changed))
        if changed is None:
            self._put_recount_off("users with changes could not be counted")

    def _counted(self, season: Season, changed: int) -> Season:
        """The season with this many users with changes; it has a recount if they are enough to hide each other."""
        enough = changed >= self.folder.agreed.recount_users
        if not enough:
            self.observer.noticed(
                f"{many(changed, 'user')} with changes, and {self.folder.agreed.recount_users} would hide each other "
                f"(recount_users): season {season.number} trains on the graph as it was"
            )
        return replace(season, changed=changed, recount=enough)

    def _take_catalogue(self) -> bool:
        """Install a newer catalogue that waits in the folder, if it is signed; nodes get it when they are greeted."""
        path, version = self.folder.path, catalogue.newest(self.folder.path)
        if version is None or version.number in (catalogue.version_of(path), self.refused_catalogue):
            return False
        try:
            self.members.folder = with_catalogue(self.folder, version)
        except FederationError as refusal:
            self.observer.noticed(str(refusal))
            self.refused_catalogue = version.number
            return False
        self.model.begin(self.folder.method(self.season.n_users, self.season.begun))
        self.observer.noticed(f"version {version.number} of the catalogue: {len(version.items):,} items")
        return True

    def _count_changes(self) -> int | None:
        """How many users have items that the degrees do not hold; None if the count was lost."""
        self.members.greet(again=True)
        self.changed: int | None = None
        if len(self.members.reachable()) < self.folder.fewest_nodes:
            return None
        round_ = self.store.get("round", 0)
        self._sum(CHANGES, self.store.times(CHANGES, round_), round_)
        return self.changed

    def _miss_count(self, why: str) -> None:
        """A count of changes, or the recount after it, was lost."""
        if self.season.recount:
            self._put_recount_off(why)
        else:
            self.observer.noticed(f"users' changes could not be counted: {why}")

    def _put_recount_off(self, why: str) -> None:
        """Try again before the next round, unless the next season's recount would follow too soon."""
        next_ = self.store.get("round", 0) + 1
        if 2 * (self.season.until - next_) < self.folder.agreed.season_rounds:
            self._give_recount_up(why)
            return
        with self.store.transaction():
            self.store.put("recount_from", next_)
        self.observer.noticed(f"changes wait until round {next_} is over: {why}")

    def _give_recount_up(self, why: str) -> None:
        self._keep(replace(self.season, recount=False))
        self.observer.noticed(f"changes wait for the next season: {why}")

    # -------------------------------------------------------------------------------------------- nodes

    def _gather(self, wanted: Callable[[], int]) -> None:
        """Wait for this many nodes, which depends on the roster, or stop with an error."""
        if not self.members.wait(lambda: len(self.members.reachable()) >= wanted(), self.options.start_seconds):
            raise FederationError(
                f"{len(self.members.reachable())} of {wanted()} nodes are there after "
                f"{self.options.start_seconds:g} s: start the others, then the server again; it goes on where it is"
            )

    # ------------------------------------------------------------------------------------ where it stands

    def _place(self, after: Plan | None = None) -> tuple[str, int, int] | None:
        """Stage, level and round of the next sum; or of the sum after `after`, if `after` succeeds."""
        warm, round_, (trained, nodes) = self.store.get("warm", 0), self.store.get("round", 0), self.store.trained()
        evaluated, stages, season = self.store.get("evaluated", -1), self.method.stages, self.season
        recount = self.method.recount if season.recount else None
        if after is not None:
            is_warm_up = warm < len(stages) - 1
            warm += is_warm_up
            evaluated = after.round if after.stage == EVALUATE else evaluated
            if after.stage == CHANGES:
                return None
            if is_recount(self.method, after.stage):
                recount = None
            elif not is_warm_up and after.stage != EVALUATE:
                trained, nodes, round_ = round_, self.members.present(), round_ + 1
        if warm < len(stages) - 1:
            return stages[warm].name, warm, round_
        if recount and round_ >= self.store.get("recount_from", 0):
            if season.changed is None:
                return CHANGES, self.store.times(CHANGES, round_), round_
            return recount.name, 0, season.begun
        every = self._evaluate_every()
        due = round_ >= season.until or (every and trained - max(evaluated, 0) >= every)
        prepared = trained >= 0 and self.method.prepares(trained)
        if due and trained > evaluated and not prepared and self._may_judge(nodes):
            return EVALUATE, self.store.times(EVALUATE, trained), trained
        return (stages[-1].name, 0, round_) if round_ < season.until else None

    def _evaluate_every(self) -> int:
        """Rounds between evaluations, so that the agreed number of evaluations lasts to the end.

        With more than one season, each season has one evaluation, at its end.
        """
        o, agreed = self.options, self.folder.agreed.evaluations
        if o.seasons != 1:
            return 0
        return max(o.evaluate_every, -(-o.rounds // (agreed - 1))) if o.evaluate_every and agreed > 1 else 0

    def _may_judge(self, nodes: Iterable[int]) -> bool:
        """Whether nodes agreed to one more evaluation, and these nodes have enough users for it."""
        agreed = self.folder.agreed
        users = sum(self.members.users.get(node, 0) for node in nodes)
        return self.store.times(EVALUATE) < agreed.evaluations and users >= agreed.evaluation_users

    # -------------------------------------------------------------------------------------------- one sum

    def _sum(self, stage: str, level: int, round_: int) -> None:
        """One sum, from the choice of nodes to the new model."""
        self.members.tick()
        self._gather(lambda: self.folder.fewest_nodes)
        begun, network = time.monotonic(), self.members.transport
        up, down = network.up, network.down
        ready, self.prepared = self.prepared, None
        recount = is_recount(self.method, stage)
        try:
            if recount and self.store.half_opened(stage, level, round_):
                self._give_recount_up("some nodes may have opened the last attempt at counting them")
                return
            now = self.folder.membership.digest  # keys are bound to the roster, which may be another one now
            if ready is None or (*ready.plan.place, ready.roster) != (stage, level, round_, now):
                ready = self.participants.prepare(self.method, self.season.begun, stage, level, round_)
        except SumLostError as lost:
            if recount or stage == CHANGES:
                self._miss_count(str(lost))
            elif self._is_optional(stage, round_):
                self.observer.noticed(
                    f"round {round_ + 1} sends no latents, and training goes on with old ones: {lost}"
                )
                self.store.skip(stage, round_, self.folder.membership.number, str(lost))
                self.model.go_back()
            else:
                self._lost(str(lost))
            return
        session = ready.session.round_id.hex()
        number = self.store.begin(session, ready.plan.place, self.folder.membership.number, ready.nodes)
        same = stage == EVALUATE and not self.method.to_rank  # else devices need more to rank than to train
        ready.as_before = same and self.store.is_round(number - 1, round_)
        model = self.model.trained_on() if stage == EVALUATE else self.model.server
        broadcast = ready.plan.broadcast(self.method, model)
        broadcast = replace(broadcast, round=round_)  # a recount that was put off is still of the season's first round
        recorded = self.options.record > 0 and stage == self.method.stages[-1].name
        before = deepcopy(broadcast) if recorded else broadcast  # a sum changes the server's tables in place

        def cost() -> Cost:
            return Cost(time.monotonic() - begun, network.up - up, network.down - down)

        try:
            upcoming = self._upcoming(ready.plan)
            if self.folder.membership.digest != ready.roster:
                raise SumLostError("a new roster came while it was prepared")
            outcome = secure_sum(self.members, ready, broadcast, upcoming, self.options)
            total = self.model.take(ready.plan, session, outcome, cost())
            if stage == CHANGES:
                self.changed = max(int(total.leaves["changed"].values[0, 0]), 0)
        except SumLostError as lost:
            self.store.lose(session, str(lost), cost())
            self.model.go_back()
            if stage == CHANGES or (recount and self.store.times(stage, round_) >= ATTEMPTS):
                self._miss_count(str(lost))
            else:
                self._lost(f"{called(stage, level, round_)}: lost, {lost}", counts=not ready.patient)
            return
        if recount:
            self._keep(replace(self.season, recount=False))
        elif stage == CHANGES and self.season.recount:
            self._keep(self._counted(self.season, self.changed or 0))
        self.losses, self.prepared = 0, upcoming
        if recorded:
            self._record(number, ready, before, total, outcome.included)
        self.observer.summed(self.store.sums(number - 1)[0])
        if self._is_prepared(ready.plan):
            self._serve_first()

    def _is_optional(self, stage: str, round_: int) -> bool:
        """Whether the season does without this round: others open over any nodes, and this one does not.

        The first season needs its sums, since all later rounds rank beside what they find.
        """
        method = self.method
        if self.season.number == 1 and method.prepares(round_):
            return False
        begun = self.season.begun
        others = (r for r in range(begun, min(self.season.until, begun + ALIKE)) if r != round_)
        plans = (Plan(stage, 0, other, method.n_users, method.n_users) for other in others)
        bound = (self.participants.binding(plan, method) for plan in plans)
        return stage == method.stages[-1].name and not all(bound)

    def _record(self, number: int, ready: Prepared, before: Broadcast, total: Upload, included: list[int]) -> None:
        """Keep an applied sum for an audit."""
        seen = RecordedSum(
            number,
            ready.session.round_id.hex(),
            self.folder.config.method,
            before,
            ready.plan.spec(self.method.counted(None)),
            total,
            tuple(included),
            tuple(self.model.names(included)),
        )
        write_sum(self.folder.path / RECORDINGS, seen, self.options.record)

    def _upcoming(self, current: Plan) -> Prepared | None:
        """The sum after this one, so that its keys can ride along; None if there is none, or too few nodes for it."""
        place = self._place(current)
        if place is None or place[0] == EVALUATE or self._is_prepared(current):
            return None  # its nodes are known only once this sum counts, and a model that is served ends all sums
        try:
            ready = self.participants.prepare(self.method, self.season.begun, *place)
        except SumLostError:
            return None
        by_counts = any(leaf.most is not None for leaf in ready.plan.spec(self.method).leaves)
        return None if by_counts and current.stage in (DEGREES.name, RECOUNT.name) else ready  # it waits for the counts

    def _lost(self, sentence: str, counts: bool = True) -> None:
        self.losses += counts
        self.observer.noticed(sentence)
        if self.losses > self.options.retries:
            raise FederationError(
                f"{self.losses} sums in a row were lost; the last: {sentence}. What was trained is kept: start the "
                f"server again when its nodes are there, and it goes on"
            )
        time.sleep(self.options.pause)
