"""Why a secure sum refuses. Every rule has its own error, so that tests and operators can tell them apart."""


class SecAggError(Exception):
    """A message, an input or a round that secure aggregation refuses."""


class MalformedMessage(SecAggError):
    """Bytes that are no message of this protocol and version."""


class WrongRound(SecAggError):
    """A message of another round: late, early or replayed."""


class WrongStage(SecAggError):
    """A message that is not awaited now: of another stage, or after the end."""


class UnknownSender(SecAggError):
    """A sender that is not on the roster, not in this round, or not who it claims to be."""


class SecondAnswer(SecAggError):
    """A client answered twice in one stage; the first answer stands."""


class BadSignature(SecAggError):
    """Keys that their alleged owner did not sign for this round."""


class BadCiphertext(SecAggError):
    """A share that was not encrypted by its alleged sender, for this receiver, round and model."""


class BadShare(SecAggError):
    """A share that is double, foreign, out of range, or that rebuilds a wrong secret."""


class BadLists(SecAggError):
    """Lists of clients that contradict themselves or what the client saw before."""


class TooFewLeft(SecAggError):
    """Fewer clients than the threshold: the sum cannot be opened, or opening it would not be safe."""


class NotASum(SecAggError):
    """The opened sum is noise: masks did not cancel, so clients did not all take part in the same round."""


class BadInput(SecAggError):
    """A vector or parameters that the ring or the session cannot carry."""
