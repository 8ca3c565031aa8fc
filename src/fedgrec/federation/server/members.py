"""The nodes as the server knows them: who has joined, at which address, and how each is asked."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedgrec.errors import many
from fedgrec.federation.common import packets
from fedgrec.federation.common.catalogue import newest, version_of
from fedgrec.federation.common.errors import FederationError, RefusedError
from fedgrec.federation.common.history import unpack
from fedgrec.federation.common.packets import Packet, as_array, hello_part, plain
from fedgrec.federation.common.plan import CHANGES, EVALUATE
from fedgrec.federation.common.roster import ROSTER, Member, check_successor, differences, read_roster
from fedgrec.federation.common.transport import Transport, within
from fedgrec.federation.server.bundling import Bundling
from fedgrec.federation.server.folder import ServerFolder
from fedgrec.federation.server.history import History
from fedgrec.federation.server.liveness import About, Patience, Silences
from fedgrec.federation.server.store import WAITS_FOR, ServerStore

NAMED = 10  # nodes in one sentence
WAIT, LOOK = 0.2, 5.0  # seconds between two looks for nodes, and, in an exchange that is late, at who started again


class Observer:
    """Watches a federation; the command line draws progress with it."""

    def joined(self, name: str, users: int) -> None: ...
    def summed(self, line: dict[str, Any]) -> None: ...
    def evaluated(self, line: dict[str, Any]) -> None: ...
    def noticed(self, sentence: str) -> None: ...


class Members:
    """Asks nodes by their place on the roster; what became of earlier sums rides on every question."""

    def __init__(self, transport: Transport, folder: ServerFolder, store: ServerStore, observer: Observer) -> None:
        self.folder, self.store, self.observer = folder, store, observer
        self.transport = Bundling(transport, folder.roster)
        self.users: dict[int, int] = {}  # of each node that has joined
        self.serves: dict[int, Any] = {}  # the number of the model that each of them recommends with
        self._address: dict[int, int] = {}
        self.history = History(store)
        self._missing: set[int] = set()  # nodes that were reported as gone
        self._late: list[int] = []  # nodes for which everybody has waited for long
        self.patience, self._silences = Patience(), Silences()
        self._doubles = set[tuple[int, bytes]]()  # nodes and users whom another node has, as was noticed
        self._looked: Any = None  # what roster.json looked like when it was last read

    # --------------------------------------------------------------------------------------------- joining

    def greet(self, again: bool = False) -> None:
        """Let in new nodes that prove who they are; `again`: all nodes report their number of users again."""
        deadline = self.folder.options.deadline
        taken = self._take_roster()
        known_before = dict(self.users) if again or taken else {}
        if again and not taken:  # nodes that are silent just now keep their place and their last report
            silent = self._resting()
            self._address = {node: address for node, address in self._address.items() if address in silent}
        for refusal in self.transport.meet(self.patience, deadline):
            self.observer.noticed(refusal)
        known = {*self._address.values(), *self._resting()}
        new = [address for address in self.transport.signs() if address not in known]
        nonces = {address: secrets.token_bytes(32) for address in new}
        about = {
            "federation": self.folder.federation,
            "sums": len(self.history.lines),
            "roster": [self.folder.membership.number, self.folder.membership.digest],
            packets.TURN: self.store.get(packets.TURN, 0),
        }
        questions = {address: Packet(packets.HELLO, about, {"nonce": nonce}) for address, nonce in nonces.items()}
        answers = dict(self._exchange(questions, About(packets.HELLO), deadline))
        for is_behind, newest_of in ((self._has_old_roster, self._roster), (self._has_old_items, self._items)):
            if behind := [address for address, answer in answers.items() if is_behind(answer)]:
                lesson = newest_of()
                taught = self._exchange(dict.fromkeys(behind, lesson), About(lesson.kind), deadline)
                anew = {address: questions[address] for address, answer in taught if answer.kind == lesson.kind}
                answers |= dict(self._exchange(anew, About(packets.HELLO), deadline))
        come, shorter = self._let_in_all(questions, answers)
        come += self._let_in_all(shorter, dict(self._exchange(shorter, About(packets.HELLO), deadline)))[0]
        joined = Counter[str]()  # users of gateways, who join one by one
        for index in come:
            member, users = self.folder.roster[index], self.users[index]
            if users and known_before.get(index) != users:
                joined[member.gateway] += 1
                if not member.gateway:
                    self.observer.joined(member.name, users)
        for gateway in filter(None, joined):
            self.observer.joined(gateway, joined[gateway])

    def _let_in_all(
        self, questions: Mapping[int, Packet], answers: Mapping[int, Packet]
    ) -> tuple[list[int], dict[int, Packet]]:
        """Let in the nodes that answered so, or refuse them.

        Returns who came in, and questions to nodes that are to join again without users whom other nodes have.
        """
        come: list[int] = []
        again: dict[int, Packet] = {}
        refused: dict[int, Packet] = {}

        def checked(step: Callable[..., Any], at: int, *more: Any) -> Any:
            """What this step finds about the node at this address, or None: the node is refused."""
            try:
                return step(at, answers[at], *more)
            except FederationError as refusal:
                signs = self.transport.signs()
                if answers[at].kind == packets.ERROR:  # its own trouble, such as a full disk, which may end soon
                    self._silences.begin([at], signs)
                else:
                    self._silences.refuse(at, signs.get(at))
                self.observer.noticed(str(refusal))
                final = isinstance(refusal, RefusedError)
                refused[at] = Packet(packets.REFUSED, {"reason": str(refusal), "final": final})
                return None

        found = {at: checked(self._identified, at, questions[at].blobs["nonce"]) for at in answers}
        members = {at: member for at, member in found.items() if member}
        self._hear_of_sums([answers[at] for at in members])
        for at, member in members.items():
            taken = checked(self._let_in, at, member, packets.TAKEN in questions[at].blobs)
            if taken:
                again[at] = replace(questions[at], blobs=questions[at].blobs | {packets.TAKEN: b"".join(taken)})
            elif taken is not None:
                come.append(answers[at].header["index"])
        list(self.transport.exchange(refused, within(self.folder.options.deadline)))
        return come, again

    def _hear_of_sums(self, answers: Iterable[Packet]) -> None:
        """A restored copy of a server hears from nodes which rounds were used since."""
        told = {answer.header["index"]: answer.header.get(packets.HISTORY) for answer in answers}  # one voice a node
        tellings = [history.get("lines") for history in told.values() if isinstance(history, Mapping)]
        if found := self.history.believe(tellings, self.folder.corrupt_nodes + 1):
            self.observer.noticed(
                f"nodes know of {many(found, 'sum')} that this server does not: it is a restored copy"
            )

    def _take_roster(self) -> bool:
        """Take up a newer roster that was copied into the folder, if it is signed; everybody joins anew then."""
        try:
            about = (self.folder.path / ROSTER).stat()
        except FileNotFoundError:  # it is being replaced
            return False
        if self._looked == (looked := (about.st_ino, about.st_size, about.st_mtime_ns)):
            return False
        self._looked, now = looked, self.folder.membership
        try:
            new = read_roster(self.folder.path, self.folder.federation)
            if new.digest == now.digest:
                return False
            check_successor(new, now)
        except FederationError as refusal:
            self.observer.noticed(str(refusal))
            return False
        self.folder = replace(self.folder, membership=new)
        self.transport.use(new.present)
        self.store.release(new.present)
        for known in (self.users, self.serves):
            for node in known.keys() - new.present.keys():
                del known[node]
        self._address, self._silences = {}, Silences()
        self.observer.noticed(f"{now} is followed by {new}: {differences(new, now)}")
        return True

    def _has_old_roster(self, answer: Packet) -> bool:
        """Whether the answer is from a node of the federation with an older roster."""
        number, index = answer.header.get("roster"), answer.header.get("index")
        known = type(index) is int and index in self.folder.roster
        return answer.kind == packets.HELLO and known and type(number) is int and number < self.folder.membership.number

    def _roster(self) -> Packet:
        packed = as_array(self.folder.membership.pack())  # an array is in a gateway's bundle once
        return Packet(packets.NEW_ROSTER, arrays={"roster": packed})

    def _has_old_items(self, answer: Packet) -> bool:
        """Whether the answer is from a node with an older catalogue."""
        version = answer.header.get("catalogue")
        return answer.kind == packets.HELLO and type(version) is int and version < version_of(self.folder.path)

    def _items(self) -> Packet:
        version = newest(self.folder.path)
        return Packet(packets.NEW_ITEMS, {}, {"catalogue": version.pack() if version else b""})

    def _identified(self, address: int, answer: Packet, nonce: bytes) -> Member:
        """The node that answers, which must prove who it is."""
        header, tags, where = answer.header, answer.arrays.get("tags"), self.transport.where(address)
        index, signature = header.get("index"), answer.blobs.get("signature", b"")
        if answer.kind != packets.HELLO or tags is None or tags.dtype != np.uint8 or tags.shape[1:] != (32,):
            raise FederationError(f"the node at {where} did not introduce itself: {plain(header.get('reason'))}")
        roster = self.folder.membership
        member = roster.members.get(index) if type(index) is int else None
        if member is None or type(index) is not int:
            raise FederationError(f"the node at {where} is not on the roster: enrol it, or stop it")
        if member.left:
            raise RefusedError(
                f"the node at {where} is {member.name}, which was removed with roster {member.left}: stop it"
            )
        part = hello_part(self.folder.federation, nonce, index, str(header.get("agreement")), tags)
        try:
            Ed25519PublicKey.from_public_bytes(member.key).verify(signature, part)
        except (InvalidSignature, ValueError):
            raise RefusedError(f"the node at {where} has not the key of {member.name}: it is refused") from None
        return member

    def _let_in(self, address: int, answer: Packet, member: Member, was_told: bool) -> list[bytes]:
        """Let this node in; if other nodes have users of it, return these instead. `was_told`: of such users before."""
        header, tags, index = answer.header, answer.arrays["tags"], answer.header["index"]
        if header.get("roster") != self.folder.membership.number:  # in a sum it would spoil the others' keys
            raise FederationError(f"node {member.name} did not take up {self.folder.membership}: its log says why")
        if header.get("agreement") != self.folder.agreement:
            raise FederationError(
                f"node {member.name} has another method, options or catalogue: copy config.toml, agreement.toml and "
                f"items.txt to it"
            )
        if not len(tags) and not member.gateway:  # the place of a gateway's user goes on after the user has left
            raise FederationError(f"node {member.name} has no users: add some")
        if member.gateway and len(tags) > 1:
            raise FederationError(f"node {member.name} is one user of {member.gateway}, and brings {len(tags)}")
        if member.users and len(tags) > member.users:
            raise FederationError(
                f"node {member.name} brings {len(tags):,} users and was enrolled for at most {member.users:,}: if it "
                f"may have more,  fedgrec federation add-users FED {member.name} --users N  enrols N more"
            )
        self.history.let_in(index, header.get(packets.HISTORY), member.name)
        taken = self.store.join(index, member.name, (tag.tobytes() for tag in tags))
        if taken:
            self._notice_taken(index, taken, was_told)
            return list(taken)
        self._address[index], self.users[index] = address, len(tags)
        self._missing.discard(index)
        self.serves[index] = header.get("serves")
        return []

    def _notice_taken(self, index: int, taken: Mapping[bytes, int], was_told: bool) -> None:
        """Say once which nodes have the same users; `was_told`: the node does not leave them out, and is refused."""
        sentence = (
            f"node {self.folder.roster[index].name} brings {many(len(taken), 'user')} that "
            f"{self._names(sorted(set(taken.values())))} brought first: take them off one of the nodes; until then the "
            f"node that came second leaves them out"
        )
        if was_told:
            raise FederationError(sentence)
        if not self._doubles.issuperset(new := {(index, tag) for tag in taken}):
            self._doubles |= new
            self.observer.noticed(sentence)

    def wait(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Let nodes in until there are enough, or the time is over."""
        end = time.monotonic() + seconds
        self.greet()
        while not enough() and time.monotonic() < end:
            time.sleep(WAIT)
            self.tick()
            self.greet()
        return enough()

    def reachable(self) -> list[int]:
        """Nodes that have joined and can be reached now."""
        there = set(self.transport.signs())
        return [node for node, address in sorted(self._address.items()) if address in there]

    def present(self) -> list[int]:
        """Reachable nodes that are not silent, or have shown a sign of life since; all, if these are too few."""
        here, resting = self.reachable(), self._resting()
        awake = [node for node in here if self._address[node] not in resting]
        return awake if len(awake) >= self.folder.fewest_nodes else here

    def _resting(self) -> set[int]:
        """Addresses that the server should not ask now."""
        return self._silences.hold(self.transport.signs()) if self._silences else set()

    def tick(self) -> None:
        """Another sum begins: each rest gets shorter by one, and nodes that left are named."""
        self._silences.tick()
        self._name_missing(self._address.keys() - set(self.reachable()), "cannot be reached")

    def _wait_for(self, nodes: list[int]) -> None:
        """Everybody waits for these nodes, and has done so for long: `/health` and a metric say so too."""
        self._late = nodes
        with self.store.transaction():
            self.store.put(WAITS_FOR, [self.folder.membership.members[node].name for node in nodes])
        if nodes:
            self.observer.noticed(f"a sum waits for {self._names(nodes)}, longer than is usual")

    def _name_missing(self, nodes: Iterable[int], how: str) -> None:
        """Name missing nodes, once until they are back."""
        if gone := sorted(set(nodes) - self._missing):
            self._missing.update(gone)
            self.observer.noticed(f"{self._names(gone)} {how}: sums go on without, until there is a sign of life")

    def _names(self, nodes: list[int]) -> str:
        names = [self.folder.membership.members[node].name for node in nodes]
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        return f"node{'s' * (len(names) > 1)} {', '.join(names[:NAMED])}{more}"

    # ---------------------------------------------------------------------------------------------- asking

    def is_waiting(self, node: int) -> bool:
        """Whether the node has not heard yet of a sum that changes its users."""
        return any(unpack(packed).stage not in (EVALUATE, CHANGES) for packed in self.history.unheard(node))

    def ask(
        self, requests: Mapping[int, Packet], about: About, most: float, enough: int = 0
    ) -> Iterator[tuple[int, Packet]]:
        """Good answers, at most one of each node; failures are reported and left out.

        The wait depends on recent answers to questions `about` the same; it is `most` seconds until `enough` nodes have
        answered.
        """
        told = {node: self.history.message(node) for node in requests}
        at = {self._address[node]: node for node in requests}
        questions = {
            self._address[node]: replace(request, header={**request.header, packets.HISTORY: told[node]})
            for node, request in requests.items()
        }
        for address, answer in self._exchange(questions, about, most, enough):
            node = at[address]
            self.store.hear(node)
            if answer.kind == requests[node].kind:
                self.history.heard(node, told[node])
                yield node, answer
            else:
                reason = plain(answer.header.get("reason", f"an answer of kind {answer.kind!r}"))
                self.observer.noticed(f"node {self.folder.roster[node].name}: {reason}")

    def _exchange(
        self, requests: Mapping[int, Packet], about: About, most: float, enough: int = 0
    ) -> Iterator[tuple[int, Packet]]:
        """One exchange. A silent node is left out of the next ones."""
        wait = self.patience.begin(about, requests, most, enough)
        nodes = {address: node for node, address in self._address.items() if address in requests}
        back, anew, before, looked = set[int](), set[int](), self.transport.signs(), 0.0

        def left() -> float:
            nonlocal looked
            if not wait.is_late:
                return wait.left()
            if not self._late:
                self._wait_for(sorted(nodes[address] for address in wait.missing if address in nodes))
            if self.patience.clock() - looked > LOOK:
                looked, now = self.patience.clock(), self.transport.signs()
                known = wait.missing & before.keys() & now.keys()  # who started again knows nothing of the question
                anew.update(address for address in known if now[address].since != before[address].since)
            return 0.0 if wait.missing <= anew else wait.left()

        try:
            for address, answer in self.transport.exchange(requests, left):
                wait.heard(address)
                self._silences.end(address)
                if address in nodes and answer.kind != packets.ERROR:  # such as that of a node of another version
                    back |= {nodes[address]} & self._missing
                yield address, answer
        finally:  # also if the caller stops early
            if self._late:
                self._wait_for([])
            if back:
                self._missing -= back
                self.observer.noticed(f"{self._names(sorted(back))} {'are' if len(back) > 1 else 'is'} back")
        if missed := wait.missed():
            self._silences.begin(missed, self.transport.signs())
            self._name_missing((nodes[address] for address in missed if address in nodes), "fell silent")
