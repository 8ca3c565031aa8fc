"""A federation on one GPU: users, server and sums live there, and a round is two launches of one recorded graph.

An engine takes over a method's server and population, runs rounds, and gives both back when something reads them (an
evaluation, a checkpoint). Its rounds are those of the verbs: the same draws, the same rounded integers, the same order.
The loops are in `_triton`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgrec.cable.core import Cohort, Floats, Ints, ServerState, UploadSpec, UserState
from fedgrec.cable.draws import feedback_bound, shelves
from fedgrec.errors import FedgrecError, missing_extra
from fedgrec.kernels.devices import place

try:
    import torch
    import triton
except ImportError:
    raise missing_extra("training on a GPU", "torch") from None

from fedgrec.kernels import _state_triton as memory
from fedgrec.kernels import _triton as loops
from fedgrec.kernels import reference
from fedgrec.kernels._negatives_triton import negatives
from fedgrec.kernels._steps_triton import user_step

STRETCH = 256  # rounds whose users are sent to the GPU at once
UNBIASED_AFTER = 40_000  # steps after which Adam's bias corrections are 1 in every precision of training
LOSSES = {"bpr": 0, "mse": 1, "mse0": 2, "softmax": 3}
STATE = ("embeddings", "sent", "moment1", "moment2", "steps")


@dataclass(frozen=True)
class Launch:
    """How the loops are cut: this changes speed, and the last bits of sums of real numbers."""

    rows: int = 32  # negatives of one user, held at a time
    warps: int = 4
    positives: int = 64  # of one user, held at a time
    positive_warps: int = 8
    split: int = 256  # negatives of one program
    drawn: int = 256  # negatives drawn by one program
    items: int = 32  # of the server, held at a time
    registers: int | None = 128  # the most that a thread gets, so that enough threads fit


class Engine:
    """The population of a method on a GPU."""

    def __init__(
        self,
        method: Any,  # FedGRec, or one that is FedGRec with other options
        server: ServerState,
        users: Cohort,
        device: str = "cuda",
        launch: Launch | None = None,
    ) -> None:
        self.method, self.device, self.launch = method, place(device), launch or Launch()
        o = self.options = method.options_of(0, server.degrees)
        spec = method.spec(method.stages[-1])
        if spec.bits != 32:
            raise FedgrecError("sums of this many users at these clips need 64 bits, and the GPU adds in 32")
        longest = max(int(users.degrees.max(initial=0)), 1)
        self.S, self.D = min(o.users_per_round, len(users)), max(triton.next_power_of_2(o.dim), 16)
        self.cap = min(o.max_positives or longest, longest)
        wanted = o.negatives if o.loss != "mse" else 0
        self.n_negatives = min(wanted, method.n_items)
        self.shelves = shelves(server.degrees, wanted, o.popular_negatives)
        self.splits = triton.next_power_of_2(max(triton.cdiv(self.n_negatives, self.launch.split), 1))
        self.round = server.round
        self.users = self._users(users, *method.edge_weights(users, server.degrees))
        self.server = self._server(server)
        self.untouched = method.untouched(server) if o.levels else 0
        self.scratch = self._scratch()
        self.numbers = self._numbers(spec)
        self.federation = self._federation()
        self.tensors = memory.Tensors(self.federation, self.users, self.server, self.scratch, self.numbers)
        self.size, self.rules = memory.constants(self._size()), memory.constants(self._rules())
        self._graph: Any = None

    def _place(self, array: Any) -> Any:
        return torch.tensor(np.ascontiguousarray(array), device=self.device)  # a copy, also on the host

    def _new(self, dtype: Any, *shape: int) -> Any:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _federation(self) -> memory.Federation:
        return memory.Federation(
            counter=self._new(torch.int32, 1) + self.round,
            now=self._new(torch.int32, 1),
            first_round=self._new(torch.int32, 1) + self.round,
            sampled=self._new(torch.int32, STRETCH, self.S),
            counts=self._new(torch.int32, STRETCH),
            cut=self._new(torch.int64, 1),
        )

    def _users(self, users: Cohort, gather: Floats, push: Floats) -> memory.Users:
        targets = np.ones(len(users.items)) if users.targets is None else users.targets
        there = (
            users.keys.view(np.int64),
            users.indptr.astype(np.int64),
            users.items.astype(np.int32),
            gather,
            push,
            targets.astype(self.options.precision),
            *(getattr(users.state, name) for name in STATE),
            *self._shelved(users),
        )
        return memory.Users(*map(self._place, there))

    def _shelved(self, users: Cohort) -> tuple[Ints, Ints, Ints]:
        """Users.ranked, taken and begins: where each user's negatives come from."""
        places, shelves = self.shelves.place[users.items], self.shelves
        places = places[np.lexsort((places, users.owner))]
        shelf = users.owner * len(shelves.quotas) + np.searchsorted(shelves.first, places, side="right") - 1
        taken = np.bincount(shelf, minlength=len(users) * len(shelves.quotas)).reshape(len(users), -1)
        if not self.options.exclude_positives:
            taken = 0 * taken
        given = np.minimum(shelves.quotas, np.diff(shelves.first) - taken)
        starts = [np.pad(np.cumsum(counts, axis=1), ((0, 0), (1, 0))).astype(np.int32) for counts in (taken, given)]
        return places.astype(np.int32), starts[0], starts[1]

    def _server(self, server: ServerState) -> memory.Server:
        o, items = self.options, self._place(server.items)
        alphas = self._place(np.asarray(o.weights(), o.precision))
        a = torch.zeros_like(items[0]) if o.combine == "concat" else torch.tensordot(alphas[1:], items[1:], 1)
        f, rest, c = alphas[0] * items[0] + a, a, a
        if o.combined:
            rest = torch.tensordot(alphas[2:], items[1:-1], 1)
            f, c = self._place(reference.combine(server.items, np.asarray(o.weights(), o.precision), o.download, True))
        steps = scales = np.ones(1, o.precision)
        if o.levels:
            steps = self.method.row_steps(server)
            scales = self.method.step_scales(server.degrees).astype(o.precision)
        return memory.Server(
            items=items,
            moment1=self._place(server.moment1),
            moment2=self._place(server.moment2),
            a=a,
            f=f,
            rest=rest,
            c=c,
            steps=self._place(steps),
            step_scales=self._place(scales),
            sums=self._new(torch.int64, o.layers + 1, self.method.n_items, self.D // 2),
            touched=self._new(torch.int8, self.method.n_items),
            order=self._place(self.shelves.order.astype(np.int32)),
            first=self._place(self.shelves.first.astype(np.int32)),
        )

    def _scratch(self) -> memory.Scratch:
        o, S, D = self.options, self.S, self.D
        real, tau = getattr(torch, o.precision), o.local_steps + 1
        self.width, self.C = self.cap + self.n_negatives, max(triton.next_power_of_2(self.cap), 32)
        return memory.Scratch(
            rows=self._new(torch.int32, S, self.width),
            edges=self._new(torch.int32, S, self.C),
            scores=self._new(real, S, self.C),
            gathered=self._new(torch.int64, S, self.C),
            positives=self._new(real, S, self.C, 4, D),
            slopes=self._new(real, S, tau, max(self.n_negatives, 1)),
            partners=self._new(torch.int32, S, o.local_steps, max(self.n_negatives, 1)),
            f=self._new(real, S, tau, D),
            B=self._new(real, S, D),
            norms=self._new(real, S, tau) + 1,
            logs=self._new(real, S, tau),
            parts=self._new(real, S, self.splits, D),
            leans=self._new(real, S, self.splits),
            tops=self._new(real, S, self.splits) + memory.LOWEST.value,
            totals=self._new(real, S, self.splits),
            moments=self._new(real, S, 2, D),
        )

    def _numbers(self, spec: UploadSpec) -> memory.Numbers:
        o, alpha, items, real = self.options, self.options.weights(), spec.leaf("items"), self._real
        latents = spec.leaf("latents") if o.layers else items
        live = alpha[1] if o.live and o.layers else 0.0
        # The betas as the loops see them. Local moments lack their factor 1 − β, so rate and ε take it over.
        beta1, beta2 = (float(np.dtype(o.precision).type(beta)) for beta in (o.beta1, o.beta2))
        step = np.arange(1, o.local_steps + 2)
        root = np.sqrt((1 - beta2**step) / (1 - beta2))
        steps = np.maximum(np.arange(UNBIASED_AFTER + 1), 1)
        reals = memory.Reals(
            share=alpha[0],
            live_share=live,
            l2=o.l2,
            item_rate=o.item_rate,
            user_rate=o.user_rate,
            beta1=o.beta1,
            beta2=o.beta2,
            epsilon=o.adam_epsilon,
            to_item_steps=1 / items.step,
            item_bound=items.bound,
            to_latent_steps=1 / latents.step,
            latent_bound=int(latents.clip / 2 / latents.step),
            fall=1 / o.half_life if o.half_life >= 1 else 0.0,
            server_rate=o.server_rate,
            latent_rate=o.latent_rate * latents.step,
            item_step=items.step,
            levels=o.levels,
            per_temperature=1 / (o.temperature or 1.0),
            negative_weight=o.negative_weight,
        )
        wholes = memory.Wholes(
            n_items=self.method.n_items,
            most_positives=self.cap,
            unbiased_after=UNBIASED_AFTER,
            feedback_bound=feedback_bound(o.feedback),
            latents_every=o.latents_every,
            sampled=self.method.sampled,
            n_users=self.method.n_users,
            fine_rounds=self.method.fine_rounds,
            untouched=self.untouched,
            coarsest=self.method.coarsest if o.levels else 0,
            begun=self.method.begun,
        )
        return memory.Numbers(
            real=memory.Reals(*real(reals).split(1)),
            whole=memory.Wholes(*self._place(np.array(wholes)).split(1)),
            alphas=real(alpha),
            rates=real(o.item_rate * (1 - beta1) / (1 - beta1**step) * root),
            epsilons=real(o.adam_epsilon * root),
            unbias1=real(1 / (1 - beta1**steps)),
            unbias2=real(1 / (1 - beta2**steps)),
        )

    def _size(self) -> memory.Sizes:
        o = self.options
        return memory.Sizes(
            S=self.S,
            K=o.layers,
            D=self.D,
            DIM=o.dim,
            M=self.width,
            C=self.C,
            MANY=max(self.n_negatives, 1),
            TAU=o.local_steps,
            SHELVES=len(self.shelves.quotas),
            PAIRED=int(o.loss == "bpr"),
            COMBINED=o.combined,
            KIND=memory.KINDS[o.download] if o.combined else 0,
        )

    def _rules(self) -> memory.Rules:
        o = self.options
        return memory.Rules(
            LOSS=LOSSES[o.loss],
            COSINE=o.similarity == "cosine",
            MEAN=o.reduction == "mean",
            PER_ROW=o.l2_scaling == "row",
            CONCAT=o.combine == "concat",
            LIVE=bool(o.live and o.layers),
            ITEM_ADAM=o.item_optimizer == "adam",
            USER_ADAM=o.user_optimizer == "adam",
            KEPT=o.user_moments == "kept",
            WITHHELD=o.feedback < 1,
            FAST=self.device.type == "cuda" and o.precision == "float32",
            NARROW=o.levels > 0,
        )

    def _real(self, values: Any) -> Any:
        return self._place(np.asarray(values, self.options.precision))

    # ------------------------------------------------------------------------------------------- rounds

    def run(self, rounds: Sequence[Ints]) -> None:
        """Train rounds, each with these users: those whose upload arrives."""
        there = self.federation
        for at in range(0, len(rounds), STRETCH):
            stretch = rounds[at : at + STRETCH]
            sampled = np.zeros((len(stretch), self.S), np.int32)
            counts = np.array([len(users) for users in stretch], np.int32)
            for row, users in zip(sampled, stretch, strict=True):
                row[: len(users)] = users
            there.sampled[: len(stretch)].copy_(self._sent(sampled), non_blocking=True)
            there.counts[: len(stretch)].copy_(self._sent(counts), non_blocking=True)
            there.first_round.copy_(there.counter)
            for _ in stretch:
                self._round()
            self.round += len(stretch)

    def _sent(self, array: Any) -> Any:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if self.device.type == "cuda" else tensor  # the host then need not wait for the copy

    def _round(self) -> None:
        """One round; on a GPU recorded once and replayed, so that it costs a single launch."""
        if self.device.type != "cuda":  # Triton's interpreter
            self._launch()
            return
        if self._graph is None:
            self._record()
        self._graph.replay()

    def _record(self) -> None:
        """Compile by a run without users: it changes only the counter."""
        there = self.federation
        before, waiting = there.counter.clone(), there.counts.clone()
        there.counts.zero_()
        self._launch()
        torch.cuda.synchronize(self.device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._launch()
        there.counts.copy_(waiting)
        there.counter.copy_(before)

    def _launch(self) -> None:
        o, cut, S, K = self.options, self.launch, self.S, self.options.layers
        many = {"SPLIT": cut.split, "BLOCK": cut.rows, "num_warps": cut.warps}
        if cut.registers:
            many |= {"maxnreg": cut.registers}
        drawing = triton.cdiv(self.n_negatives, cut.drawn)
        loops.prepare[(S, K + 1 + drawing)](self.tensors, self.size, DRAWN=cut.drawn, BLOCK=cut.rows)
        programs = triton.cdiv(self.n_negatives, cut.split)
        self._launch_steps(programs, many)
        loops.send[(S, K + 1 + programs)](self.tensors, self.size, self.rules, **many)
        loops.server_round[(triton.cdiv(self.method.n_items, cut.items),)](
            self.federation, self.server, self.numbers, K=K, D=self.D, DIM=o.dim, BLOCK=cut.items,
            ADAM=o.server_optimizer == "adam", CONCAT=o.combine == "concat",
            NARROW=o.levels > 0, COMBINED=o.combined, KIND=memory.KINDS[o.download] if o.combined else 0,
        )  # fmt: skip

    def _launch_steps(self, programs: int, many: dict[str, int]) -> None:
        """The local steps, two launches each: rows do not stay on the chip, but are computed again."""
        both = self.tensors, self.size, self.rules
        few = {"BLOCK": self.launch.positives, "num_warps": self.launch.positive_warps}
        for step in range(self.options.local_steps + 1):
            user_step[(self.S,)](step, *both, SPLITS=self.splits, **few)
            if step < self.options.local_steps and programs:
                negatives[(self.S, programs)](step, *both, SPLITS=self.splits, **many)

    # ---------------------------------------------------------------------------------- looking at it

    def give_back(self, server: ServerState, state: UserState) -> int:
        """Copy everything back to where it came from; how many words the clip has cut since the last time."""
        for name in STATE:
            setattr(state, name, getattr(self.users, name).cpu().numpy().copy())
        for name in ("items", "moment1", "moment2"):
            setattr(server, name, getattr(self.server, name).cpu().numpy().copy())
        server.round, server.kept = self.round, {}  # the loops add numbers, not steps
        if not (np.isfinite(state.embeddings).all() and np.isfinite(server.items).all()):
            raise FedgrecError("the tables are not finite: training diverged; lower the learning rates")
        cut = int(self.federation.cut.item())
        self.federation.cut.zero_()
        return cut
