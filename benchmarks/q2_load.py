"""Clients of Q2: each has one connection and sends its next request when the reply has arrived."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any

from benchmarks.answering import answer

_END_OF_HEAD = b"\r\n\r\n"


class _Client(asyncio.Protocol):
    """
    One connection.

    :param requests: The requests, as bytes.
    :param done: Receives the result when all requests are answered.
    """

    def __init__(self, requests: Iterator[bytes], done: asyncio.Future[list[float]]) -> None:
        self._requests = requests
        self._done = done
        self._received = b""
        self._milliseconds: list[float] = []

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Record the time of a complete reply, and send the next request."""
        self._received += data
        head, found, body = self._received.partition(_END_OF_HEAD)
        if not found or len(body) < _content_length(head):
            return
        self._milliseconds.append((time.perf_counter() - self._sent) * 1000)
        self._received = b""
        if head.startswith(b"HTTP/1.1 200"):
            self._send()
        else:
            self._done.set_exception(RuntimeError(f"Expected status 200, found {head!r} {body!r}."))

    def connection_lost(self, error: Exception | None) -> None:
        """Report a connection that the server closed."""
        if not self._done.done():
            self._done.set_exception(RuntimeError(f"Expected a reply, found a closed connection: {error}."))

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._done.set_result(self._milliseconds)
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(request)


def _content_length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0])


def load(*, port: int, paths: Sequence[str], token: str, clients: int, requests: int) -> dict[str, Any]:
    """
    Send requests on one connection per client, and return the percentiles of their times in milliseconds.

    :param port: Port of the server on this machine.
    :param paths: Paths of the requests, repeated as often as necessary.
    :param token: Bearer token of the requests.
    :param clients: Number of connections.
    :param requests: Number of requests of all clients together.
    """
    head = f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nAccept: application/json"
    messages = [f"GET {path} {head}".encode() + _END_OF_HEAD for path in paths]
    begin = time.perf_counter()
    times = asyncio.run(_times(port, messages, clients, requests // clients))
    seconds = time.perf_counter() - begin
    hundredths = statistics.quantiles(times, n=100)
    return {"p50": statistics.median(times), "p99": hundredths[98], "per second": len(times) / seconds}


async def _times(port: int, messages: Sequence[bytes], clients: int, each: int) -> list[float]:
    loop = asyncio.get_running_loop()
    done: list[asyncio.Future[list[float]]] = []
    for client in range(clients):
        done.append(loop.create_future())
        # Each client begins at another request, so that the clients ask for different keys.
        requests = islice(cycle(messages), client * each, (client + 1) * each)
        await loop.create_connection(lambda r=requests, d=done[-1]: _Client(r, d), "127.0.0.1", port)  # type: ignore[misc]
    return [time for times in await asyncio.gather(*done) for time in times]


def main() -> None:
    """Answer requests until standard input ends, on the last core of the machine."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    answer(load)


if __name__ == "__main__":
    main()
