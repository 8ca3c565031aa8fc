"""Strangers at a SuperLink's door, without credentials: `python strangers.py PORT KIND` runs until it is ended."""

import contextlib
import socket
import ssl
import sys
import threading
import time

HELLO = bytes.fromhex("16030102000100") + b"\x01"  # the first bytes of a TLS handshake that says it is longer
HALF_OPEN, A_SECOND = 5000, 250  # connections, and how many closed ones are opened again in a second
SLOW = 300
HUGE = 2 * 2**30
HEAD = "POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-type: application/protobuf\r\n"


def reach(port: int, tls: bool = True) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", port), 30)
    if not tls:
        return raw
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(raw)


def send_bodies(port: int, chunked: bool) -> None:
    """Send 2 GB at a time, as long as the server accepts them."""
    piece = bytes(2**20)
    head = HEAD + ("transfer-encoding: chunked\r\n\r\n" if chunked else f"content-length: {HUGE}\r\n\r\n")
    framed = b"100000\r\n" + piece + b"\r\n" if chunked else piece
    while True:
        with contextlib.suppress(OSError), reach(port) as connection:
            connection.sendall(head.encode())
            for _ in range(HUGE // len(piece)):
                connection.sendall(framed)
        time.sleep(0.2)


def hold_open(port: int) -> None:
    """Hold connections open: half of them send nothing, half begin a handshake."""
    held: list[socket.socket] = []
    while True:
        opened = 0
        while len(held) < HALF_OPEN and (opened < A_SECOND or not held or len(held) < HALF_OPEN - A_SECOND):
            with contextlib.suppress(OSError):
                connection = reach(port, tls=False)
                held.append(connection)
                if len(held) % 2:
                    connection.sendall(HELLO)
            opened += 1
            if opened > HALF_OPEN:
                break
        time.sleep(1)
        alive, closed = [], 0
        for connection in held:
            connection.setblocking(False)
            try:
                gone = connection.recv(1) == b"" and closed < A_SECOND
            except BlockingIOError:
                gone = False
            except OSError:
                gone = closed < A_SECOND
            closed += gone
            connection.close() if gone else alive.append(connection)
        held = alive


def send_slowly(port: int) -> None:
    """Send a byte a second: of a handshake, of headers, or of a body."""
    held: list[tuple[socket.socket, bytes]] = []
    while True:
        while len(held) < SLOW:
            with contextlib.suppress(OSError):
                kind = len(held) % 3
                connection = reach(port, tls=kind > 0)
                if kind == 2:
                    connection.sendall((HEAD + "content-length: 1000000\r\n\r\n").encode())
                held.append((connection, HELLO[:1] if kind == 0 else b"a"))
        time.sleep(1)
        alive = []
        for connection, byte in held:
            with contextlib.suppress(OSError):
                connection.sendall(byte)
                alive.append((connection, byte))
        held = alive


def main() -> None:
    port, kind = int(sys.argv[1]), sys.argv[2]
    if kind == "bodies":
        jobs = [(send_bodies, port, chunked) for chunked in (False, True, False, True)]
    else:
        jobs = [({"half-open": hold_open, "slow": send_slowly}[kind], port)]  # type: ignore[list-item]
    threads = [threading.Thread(target=job, args=words) for job, *words in jobs]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
