"""HTTP clients of a SuperLink: only TLS 1.3, answers of a bounded size, and retries when the network fails.

Flower's own clients accept TLS 1.2, read answers of any size, and give up after some errors of the network.
"""

import random
import ssl
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.flower.internals import RetryInvoker, private
from fedgrec.federation.flower.superlink import HEADER, KEEP, clock_error

AGAIN, AT_MOST = 0.25, 4.0  # seconds between two attempts at a call: at first, and at most
MOST = 2**30  # the most bytes of an answer


def connected(
    kind: Any, address: str, ca: bytes, proofs: Sequence[Any], patience: Any = None, answer: float | None = None
) -> Any:
    """A client of this kind of the SuperLink at this address; `proofs` show who is calling.

    `answer`: seconds that it waits for one; Flower's own number without it.
    """
    client = kind(f"https://{address}", interceptors=proofs, verify=False, retry_invoker=patience)
    usual = private(client, "_client")
    usual.close()
    keep = httpx.Limits(keepalive_expiry=KEEP)  # a reused connection needs no new check at the door
    timeout = httpx.Timeout(**usual.timeout.as_dict() | ({"read": answer} if answer else {}))
    client._client = httpx.Client(verify=tls(ca), timeout=timeout, limits=keep, event_hooks=BOUNDED)
    return client


def public_bytes(key: Any) -> bytes:
    """A node's public key as Flower knows it."""
    return bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def tls(ca: bytes) -> ssl.SSLContext:
    """TLS 1.3, and only servers whose certificate this authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise FederationError(f"ca.crt is no certificate, or was damaged ({error}): copy it again") from None
    return context


def patient(*errors: type[Exception], seconds: float | None = None) -> Any:
    """Tries again after these errors, unless we do not trust the server's certificate."""
    return RetryInvoker(
        lambda: longer(AGAIN, AT_MOST),
        errors,
        max_tries=None,
        max_time=seconds,
        should_giveup=is_distrust,
        jitter=None,  # the pauses have it already
    )


def clock_trouble(answer: httpx.Response) -> str:
    """How wrong the clock here is by an answer's date; "" where the server takes what is signed by this clock."""
    if not (date := answer.headers.get("date")):
        return ""
    error = clock_error((datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds())
    return error and f"the clock here is wrong, {error} the server's: set it (NTP)"


def longer(first: float, most: float) -> Generator[float, None, None]:
    """Pauses between attempts: each doubles the last, up to `most`, and is then shortened by up to half.

    The shortening is random, so that the nodes of a server that comes back do not all call at the same moment.
    """
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, most)


def is_distrust(error: Exception) -> bool:
    """Whether we do not trust the server's certificate: asking again would not help."""
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


class Secret:
    """Adds the secret of this start to a request, for the SuperLink's `Door`."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers[HEADER] = self.secret
        return call_next(context)


def plainly(request: httpx.Request) -> None:
    """Ask for an answer that is not compressed: unpacked, it may be a thousand times as long."""
    request.headers["accept-encoding"] = "identity"


def bounded(response: httpx.Response) -> None:
    """Refuse answers that are compressed all the same, or longer than `MOST`."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx.RemoteProtocolError("the server sent a packed answer", request=response.request)
    response.stream = _Bounded(response.stream)


BOUNDED: dict[str, list[Any]] = {"request": [plainly], "response": [bounded]}  # hooks of a client


class _Bounded(httpx.SyncByteStream):
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[bytes]:
        length = 0
        for chunk in self.stream:
            length += len(chunk)
            if length > MOST:
                raise httpx.RemoteProtocolError(f"the server sent an answer of more than {MOST} bytes")
            yield chunk

    def close(self) -> None:
        self.stream.close()
