"""HTTP clients of a SuperLink: only TLS 1.3, answers of a bounded size, and retries when the network fails.

Flower's own clients accept TLS 1.2, read answers of any size, and give up after some errors of the network.
"""

import random
import ssl
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

import httpx
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClient, ProtobufRequestContext
from flwr.supercore.retry.retry_invoker import RetryInvoker

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.flower.superlink import HEADER, KEEP

AGAIN, AT_MOST = 0.25, 4.0  # seconds between two attempts at a call: at first, and at most
MOST = 2**30  # the most bytes of an answer
Client = TypeVar("Client", bound=ProtobufClient)


def connected(
    kind: type[Client], address: str, ca: bytes, proofs: Sequence[Any], patience: RetryInvoker | None = None
) -> Client:
    """A client of the SuperLink at this address; `proofs` show who is calling."""
    client = kind(f"https://{address}", interceptors=proofs, verify=False, retry_invoker=patience)
    client._client.close()
    keep = httpx.Limits(keepalive_expiry=KEEP)  # a reused connection needs no new check at the door
    http: Any = httpx.Client(verify=tls(ca), timeout=client._client.timeout, limits=keep)
    http._transport = Bounded(http._transport)
    http._mounts = {where: through and Bounded(through) for where, through in http._mounts.items()}  # proxies
    client._client = http
    return client


def tls(ca: bytes) -> ssl.SSLContext:
    """TLS 1.3, and only servers whose certificate this authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise FederationError(f"ca.crt is no certificate, or was damaged ({error}): copy it again") from None
    return context


def patient(*errors: type[Exception], seconds: float | None = None) -> RetryInvoker:
    """Tries again after these errors, unless we do not trust the server's certificate."""
    return RetryInvoker(
        lambda: longer(AGAIN, AT_MOST),
        errors,
        max_tries=None,
        max_time=seconds,
        should_giveup=is_distrust,
        jitter=None,  # the pauses have it already
    )


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

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        add_headers(context.request, {HEADER: self.secret})
        return call_next(context)


class Bounded(httpx.BaseTransport):
    """Refuses answers that are longer than `MOST` or compressed: unpacked, they may be a thousand times as long."""

    def __init__(self, transport: httpx.BaseTransport) -> None:
        self.transport = transport

    def close(self) -> None:
        self.transport.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        response = self.transport.handle_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            response.close()
            raise httpx.RemoteProtocolError("the server sent a packed answer", request=request)
        response.stream = _Bounded(response.stream)
        return response


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
