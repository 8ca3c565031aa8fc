"""A node: it takes one message of the server, makes one step, writes it to the disk, and returns one answer.

Flower may start a new process for every message, so nothing is kept in memory in between. A node is one client of
secure aggregation, whatever number of users it hosts: it adds up their uploads, then masks. (Where users mask for
themselves each is a node of one user, and a gateway hosts them: gateway.py.) It answers with messages of secure
aggregation, with the number of its users, and with keyed hashes of their names; nothing else ever leaves it.
"""

import contextlib
import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.core import Broadcast
from fedgrec.errors import RunError
from fedgrec.federation.common import packets, plan
from fedgrec.federation.common.arrays import read_arrays, write_arrays
from fedgrec.federation.common.errors import FederationError, Forgotten
from fedgrec.federation.common.packets import Packet, as_array, hello_part, pack_broadcast, plain, unpack_broadcast
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.common.shared_messages import without
from fedgrec.federation.node import computed_ahead, rules
from fedgrec.federation.node.computed_ahead import Computed
from fedgrec.federation.node.folder import TABLE, NodeFolder, open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.node.uploads import at_home, taking_part
from fedgrec.secagg.client import Client
from fedgrec.secagg.errors import SecAggError
from fedgrec.secagg.frozen import freeze, session_from_json, thaw
from fedgrec.secagg.messages import Neighbourhood, Survivors, parse
from fedgrec.secagg.session import Session, Stage

log = logging.getLogger("fedgrec.node")


def handle(folder: Path, request: Packet) -> Packet:
    """One message of the server → the answer. What it changes is on the disk before this returns."""
    try:
        home = open_node(folder)
        with NodeStore(folder) as store:
            with store.transaction():
                answer = Node(home, store).answer(request)
            return answer
    except Forgotten as refusal:
        return Packet(packets.FORGOTTEN, {"reason": str(refusal)})
    except FederationError as refusal:
        return Packet(packets.ERROR, {"reason": str(refusal)})
    except Exception as failure:  # its words may tell of users: they stay at home
        log.exception("the node failed")
        return Packet(packets.ERROR, {"reason": f"the node failed ({type(failure).__name__}); see its log"})


def work_ahead(folder: Path, request: Packet) -> None:
    """After "shares" is answered the users compute what they will be asked for, while other nodes still share."""
    if request.kind == packets.SHARES:
        with contextlib.suppress(FederationError, RunError), NodeStore(folder) as store:  # nothing comes of this sum
            node = Node(open_node(folder), store)
            *_, inputs, compute = node._task(*node._client(request))
            computed_ahead.keep(folder, inputs, compute())


class Node:
    """A node for the time of one message."""

    def __init__(self, folder: NodeFolder, store: NodeStore) -> None:
        self.folder, self.store = folder, store

    def answer(self, request: Packet) -> Packet:
        """The verdicts first: whatever else is asked builds on them."""
        steps: dict[str, Callable[[Packet], Packet]] = {
            packets.HELLO: self._hello,
            packets.REFUSED: self._refused,
            packets.KEYS: self._keys,
            packets.SHARES: self._shares,
            packets.MASKED: self._masked,
            packets.CONFIRM: self._confirm,
            packets.UNMASK: self._unmask,
            packets.FINISH: self._finish,
        }
        if request.kind not in steps:
            raise FederationError(f"a node cannot answer a message of kind {request.kind!r}")
        for session, included in request.header.get("verdicts", {}).items():
            self.store.settle(session, bool(included))
        try:
            return steps[request.kind](request)
        except SecAggError as refusal:  # no failure: what the client makes of it is written down
            return Packet(packets.ERROR, {"reason": f"{type(refusal).__name__}: {refusal}"})

    # ------------------------------------------------------------------------------------ joining, leaving

    def _hello(self, request: Packet) -> Packet:
        if request.header.get("federation") != self.folder.federation:
            raise FederationError(f"node {self.folder.name} belongs to another federation")
        nonce, count = request.blobs.get("nonce", b""), self.store.count()
        if len(nonce) < 16:
            raise FederationError("a node signs only what the server made up for it: the nonce is too short")
        if type(warm := request.header.get("warm")) is int:  # now, before it says of any sum that it is lost
            rules.check_memory(self.folder, self.folder.method(1), self.store.counted(), warm)
        names = sorted(hmac.digest(self.folder.user_salt, user.encode(), "sha256") for user in self.store.ids(count))
        tags = np.frombuffer(b"".join(names), np.uint8).reshape(-1, 32)
        self.store.put("announced", count)
        self.store.put("refused", None)
        part = hello_part(self.folder.federation, nonce, self.folder.index, self.folder.agreement, tags)
        header = {
            "index": self.folder.index,
            "agreement": self.folder.agreement,
            "waiting": self.store.waiting(),
        }
        return Packet(packets.HELLO, header, {"signature": self.folder.identity.sign(part)}, {"tags": tags})

    def _refused(self, request: Packet) -> Packet:
        """The server will not have this node; the reason is kept for whoever runs it."""
        reason = plain(request.header.get("reason"))
        self.store.put("refused", reason)
        log.error("the server refused this node: %s", reason)
        return Packet(packets.REFUSED)

    def _finish(self, request: Packet) -> Packet:
        """Training is over: the last model stays here."""
        broadcast = unpack_broadcast(request.header.get("model", {}), request.arrays)
        rules.check_model(self.folder, broadcast)
        self._keep_model(broadcast, {"session": "", "stage": plan.EVALUATE, "context": broadcast.fingerprint().hex()})
        self.store.forget_clients()
        return Packet(packets.FINISH)

    # ------------------------------------------------------------------------------------- the five stages

    def _keys(self, request: Packet) -> Packet:
        return Packet(packets.KEYS, blobs={packets.SECAGG: self._begin(request.header["session"])})

    def _begin(self, values: dict[str, Any]) -> bytes:
        """A client for a new sum; whatever another sum was at is over."""
        session = session_from_json(values)
        rules.check_session(self.folder, session)
        name = session.round_id.hex()
        if self.store.knows_session(name):
            raise FederationError(f"node {self.folder.name} was asked into this sum before")
        client = Client(session, self.folder.index, self.folder.identity, self._roster)
        keys = client.start()
        self.store.begin_session(name, values, freeze(client))
        return keys

    def _shares(self, request: Packet) -> Packet:
        """The plan and the model come down; from here on both are bound into all keys."""
        client, name = self._client(request)
        if client.stage is not Stage.SHARES:  # the model that was bound stays the one that is trained on
            raise FederationError(f"node {self.folder.name} has the plan and the model of this sum already")
        sum_ = Plan.read(request.header.get("plan", {}))
        broadcast = unpack_broadcast(request.header.get("model", {}), request.arrays)
        self._check(client.session, sum_, broadcast)
        self.store.put("n_users", sum_.n_users)
        self.store.put("round", sum_.round)
        company = parse(request.blobs[packets.SECAGG])
        if isinstance(company, Neighbourhood):  # anything else the client refuses
            rules.check_company(self.folder, client.session, company.clients)
        client.context = sum_.context(broadcast)
        self._keep_model(broadcast, {"session": name, "stage": sum_.stage, "context": client.context.hex()})
        answer = self._receive(client, request)
        self.store.keep_plan(name, asdict(sum_))
        return Packet(packets.SHARES, blobs={packets.SECAGG: answer})

    def _check(self, session: Session, sum_: Plan, broadcast: Broadcast) -> None:
        """The server cannot size the integers, nor name the round, other than the method says."""
        method = self.folder.method(sum_.n_users)
        rules.check_plan(self.folder, method, sum_, self.store.get("announced", 0))
        rules.check_model(self.folder, broadcast)
        if self.store.get("n_users", sum_.n_users) != sum_.n_users:
            raise FederationError("the number of users that the federation started with has changed")
        spec = sum_.spec(method)
        if (session.values, session.bits, session.users) != (spec.size, spec.bits, spec.users):
            raise FederationError(f"the session does not fit the uploads of stage {sum_.stage!r}")
        if (broadcast.round, broadcast.level) != (sum_.round, sum_.level):
            raise FederationError("the model is not that of the sum's round and level")
        if rules.is_warm_up(method, sum_):
            rules.check_memory(self.folder, method, self.store.counted(), sum_.level)
        elif self.store.took_part(sum_.place) is not None:
            raise FederationError(f"node {self.folder.name} has sent its part of stage {sum_.stage!r} of this round")

    def _masked(self, request: Packet) -> Packet:
        """Train at home, add up, mask. The new state is pending until a verdict comes."""
        client, name = self._client(request)
        if self.store.waiting():
            raise FederationError(f"node {self.folder.name} still waits for the verdict on an earlier sum")
        sum_, rows, inputs, compute = self._task(client, name)
        words, pending = computed_ahead.take(self.folder.path, inputs) or compute()
        client.submit(words, len(rows))
        answer = self._receive(client, request)
        self.store.take_part(name, sum_.place, rows, pending)
        return Packet(packets.MASKED, arrays={packets.SECAGG: as_array(answer)})

    def _task(self, client: Client, name: str) -> tuple[Plan, list[int], Any, Callable[[], Computed]]:
        """The sum, who takes part, all that what they send depends on, and how to compute it."""
        (arrays, about), sum_ = read_arrays(self.folder.shared / TABLE), self._plan(name)
        if about.get("session") != name or about.get("context") != client.context.hex():
            raise FederationError("the model on this node is not that of the sum")
        method, least = self.folder.method(sum_.n_users), self.folder.least_users
        rows = taking_part(self.store, sum_)
        if rules.is_warm_up(method, sum_):  # opened twice, it must not tell of those who came in between
            rows = self.store.took_part(sum_.place) or rows
        broadcast = unpack_broadcast(about, arrays)
        inputs = name, client.context, method, least, rows, self.store.states(rows)  # the context: plan and model
        return sum_, rows, inputs, lambda: at_home(self.store, method, sum_, rows, broadcast, least)

    def _confirm(self, request: Packet) -> Packet:
        """Sign the list of survivors, unless another one was opened before."""
        client, name = self._client(request)
        lists = parse(request.blobs[packets.SECAGG])
        alive = lists.alive if isinstance(lists, Survivors) else ()  # anything else the client refuses
        rules.check_survivors(self.folder, alive)
        digest = hashlib.sha256(client.context + json.dumps(alive).encode()).digest()
        self._check_opened(self._plan(name), digest)
        answer = self._receive(client, request)
        self.store.keep_survivors(name, digest)
        return Packet(packets.CONFIRM, blobs={packets.SECAGG: answer})

    def _unmask(self, request: Packet) -> Packet:
        """Open shares. The keys for the next sum, if it is announced, ride along: that saves an exchange."""
        client, name = self._client(request)
        answer = self._receive(client, request)
        sum_, digest = self._plan(name), self.store.survivors(name)
        assert digest is not None
        self._check_opened(sum_, digest)
        self.store.keep_opened(sum_.place, digest)
        blobs = {packets.SECAGG: answer}
        if request.header.get("next"):
            blobs[packets.NEXT] = self._begin(request.header["next"])
        return Packet(packets.UNMASK, blobs=blobs)

    def _check_opened(self, sum_: Plan, digest: bytes) -> None:
        """Of one stage and round a node helps to open one sum: two that differ by one node *are* that node's upload."""
        if (self.store.opened(sum_.place) or digest) != digest:
            raise FederationError(
                f"node {self.folder.name} has helped to open stage {sum_.stage!r} of round {sum_.round} with other "
                f"nodes: all of them must be there to do it again"
            )

    # ------------------------------------------------------------------------------------------ its memory

    @property
    def _roster(self) -> dict[int, bytes]:
        return {index: member.key for index, member in self.folder.roster.items()}

    def _client(self, request: Packet) -> tuple[Client, str]:
        name = str(request.header.get("session"))
        client = self.store.client(name)
        if client is None:
            raise FederationError(f"node {self.folder.name} takes no part in this sum, or not any more")
        if packets.SECAGG not in request.blobs:
            raise FederationError("a message of secure aggregation is missing")
        return thaw(client, self.folder.identity, self._roster), name

    def _receive(self, client: Client, request: Packet) -> bytes:
        """The client's answer. What it is afterwards is kept, also where it refused; its secrets go with its end."""
        try:
            return client.receive(without(parse(request.blobs[packets.SECAGG]), self.folder.index).pack())
        finally:
            left = None if client.stage is Stage.DONE else freeze(client)
            self.store.keep_client(client.session.round_id.hex(), left)

    def _plan(self, name: str) -> Plan:
        found = self.store.plan(name)
        if found is None:
            raise FederationError(f"node {self.folder.name} was not told the plan of this sum")
        return Plan.read(found)

    def _keep_model(self, broadcast: Broadcast, about: dict[str, str]) -> None:
        """On the disk, once for all users of a gateway: `context` tells whether they were sent the same one."""
        model, arrays = pack_broadcast(broadcast)
        path = self.folder.shared / TABLE
        with contextlib.suppress(RunError):  # there is none yet, or it was damaged
            if read_arrays(path)[1] == model | about:
                return
        write_arrays(path, arrays, model | about)
