"""How a simulation adds uploads up: plainly, or through the real protocol, which gives the same integers.

Under the protocol every user is a client of secure aggregation with keys of its own, and the server's half of the
simulation sees nothing but the opened sum.

Where sums hold noise, each user adds its share before it masks. Shares are so large that those of the fewest planned
users make up all of the noise; a sum of fewer users is lost. A plain sum gets the shares of all its users at once. Here
the noise follows from the seed, so that a run can be repeated; in a federation it comes from the operating system.
"""

import hashlib
import math
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable import noise
from fedgrec.cable.core import Broadcast, Cohort, Ints, Pending, Source, Stage, Upload
from fedgrec.config.options import RunOptions
from fedgrec.errors import ConfigError, RunError, SumLostError
from fedgrec.methods.contract import Method

if TYPE_CHECKING:
    from fedgrec.secagg import Stage as SecureStage

CORRUPT = DROPPED = 0.05  # the shares of users for which neighbours and threshold are chosen
SILENCE_STREAM, NOISE_STREAM = 3, 21
EVERYBODY = 2**63  # in place of a user, where the shares of all are drawn at once


class Sums:
    """The plain integer sum."""

    def __init__(self, options: RunOptions, threads: int) -> None:
        self.options, self.threads = options, threads
        self.opened = 0  # sums that went through the real protocol
        self.lost = 0  # sums that could not be opened: too few users were left

    def total(
        self, method: Method, stage: Stage, cohort: Cohort, broadcast: Broadcast, arrived: Ints | None = None
    ) -> tuple[Upload, Pending]:
        """The sum over those users of the cohort whose upload arrives (None: all), and their pending state."""
        own = cohort if arrived is None else cohort.take(arrived)
        upload, pending = method.local_update(own, stage, broadcast)
        return self.noised(upload, method, stage, broadcast, len(cohort)), pending

    def noised(self, upload: Upload, method: Method, stage: Stage, broadcast: Broadcast, asked: int) -> Upload:
        """The sum with the noise of all its users; `asked`: how many users were asked to take part."""
        spec = method.spec(stage)
        if not spec.noisy:
            return upload
        self.check_left(upload.users, asked, broadcast.round)
        shares = spec.noise(upload.users / self.least(asked), self.source(stage, broadcast))
        return Upload.from_ring(upload.to_ring(spec) + shares, spec, upload.users)

    def least(self, asked: int) -> int:
        """The fewest users planned for: a round may lose twice the average."""
        return max(asked - math.floor(2 * self.options.dropout * asked), 1)

    def check_left(self, left: int, asked: int, round_: int) -> None:
        """Fewer users than planned for would add too little noise, so they do not help to open the sum."""
        if left < self.least(asked):
            self.lost += 1
            raise SumLostError(
                f"the sum of round {round_:,} was not opened: {left} of {asked} users are left, and it takes "
                f"{self.least(asked)} for enough noise to hide each of them"
            )

    def source(self, stage: Stage, broadcast: Broadcast, user: int = EVERYBODY) -> Source:
        """Where the noise of a sum, or a user's share of it, comes from; never from what users draw by their keys."""
        place = [0, broadcast.round, broadcast.level << 32 | zlib.crc32(stage.name.encode()), user]
        draw = np.random.Generator(np.random.Philox(key=[self.options.seed, NOISE_STREAM], counter=place))
        return lambda variance, count: noise.drawn(draw, variance, count)


class SecureSums(Sums):
    """Each sum through secure aggregation, all its parties in this process."""

    def total(
        self, method: Method, stage: Stage, cohort: Cohort, broadcast: Broadcast, arrived: Ints | None = None
    ) -> tuple[Upload, Pending]:
        from fedgrec.secagg import Population, SecAggError, Session, run_round
        from fedgrec.secagg.errors import TooFewLeft

        spec, pending = method.counted(broadcast.degrees).spec(stage), dict[int, Pending]()
        if spec.noisy and arrived is not None:
            self.check_left(len(arrived), len(cohort), broadcast.round)

        def vector(user: int) -> NDArray[Any]:
            upload, pending[user] = method.local_update(cohort.take(np.array([user])), stage, broadcast)
            words = upload.to_ring(spec)
            if spec.noisy:
                words += spec.noise(1 / self.least(len(cohort)), self.source(stage, broadcast, user))
            return words

        neighbours, threshold, least = self._parameters(len(cohort))
        about = f"{self.options.seed} {stage.name} {broadcast.level} {broadcast.round}"
        round_id = hashlib.sha256(about.encode()).digest()[:16]
        session = Session(round_id, spec.rings, spec.users, neighbours, threshold, least=least)
        silent = {} if arrived is None else self._silence(len(cohort), arrived, broadcast.round)
        people = Population(range(len(cohort)))
        try:
            outcome = run_round(session, vector, people, silent, context=broadcast.fingerprint(), threads=self.threads)
        except TooFewLeft as error:
            self.lost += 1
            raise SumLostError(f"the secure sum of round {broadcast.round:,} failed: {error}") from error
        except SecAggError as error:  # among honest parties nothing else can happen
            raise RunError(
                f"the secure sum of round {broadcast.round:,} is wrong: {error}; please report this"
            ) from error
        self.opened += 1
        total = Upload.from_ring(outcome.values, spec, outcome.users)
        kept = [pending[user] for user in outcome.included]
        states = [p.state for p in kept]
        return total, Pending(type(states[0]).joined(states), sum(p.clipped for p in kept), kept[0].settles)

    def _silence(self, n: int, arrived: Ints, round_: int) -> "dict[int, SecureStage]":
        """When each user falls silent: before it sends its upload, which is lost then, or after it, which is not."""
        from fedgrec.secagg import Stage as SecureStage

        counter = [0, round_, 0, 0]
        rng = np.random.Generator(np.random.Philox(key=[self.options.seed, SILENCE_STREAM], counter=counter))
        when, late = rng.integers(0, 6, n), rng.random(n) < self.options.dropout
        before = (SecureStage.KEYS, SecureStage.SHARES, SecureStage.MASKED)
        after = (SecureStage.CONFIRM, SecureStage.UNMASK)
        lost = {user: before[when[user] % 3] for user in np.setdiff1d(np.arange(n), arrived).tolist()}
        return lost | {user: after[when[user] % 2] for user in arrived[late[arrived]].tolist()}

    def _parameters(self, clients: int) -> tuple[int, int, int]:
        """k, t and the fewest users: as the options say, else enough for 5 % corrupt users and the dropouts."""
        o = self.options
        if o.secure_neighbours:
            return o.secure_neighbours, o.secure_threshold, max(2, min(o.secure_threshold, clients))
        from fedgrec.secagg import SecAggError
        from fedgrec.secagg.parameters import choose

        # A share of dropouts is an average: a round may lose twice as many.
        try:
            chosen = choose(clients, corrupt=CORRUPT, dropped=max(DROPPED, 2 * o.dropout))
        except SecAggError as error:
            raise ConfigError(f"{error}: lower dropout, or set secure_neighbours and secure_threshold") from None
        return chosen.neighbours, chosen.threshold, max(chosen.least, 2)
