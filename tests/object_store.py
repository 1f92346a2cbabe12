"""
An S3 server of its own process, and a proxy before it that fails when a test says so.

::

    with running_object_store() as store:
        store.faults.inject(Fault.SLOW_DOWN, method="PUT", key="_metadata", times=2)
        CheckpointStorage.open(f"s3://{store.bucket}/checkpoints", **store.storage_options)

All that is in ``storage_options`` is plain data, and the endpoint is reached by TCP: another process, a JVM too, may
use it. No fault waits by itself: a stalled request ends when its client gives up.
"""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "AKIASTATECHECKTEST00"
SECRET = "statecheck/secret+of/the/tests/0123456789"  # with slashes, as those of AWS have
REGION = "us-east-1"

_SERVER = """
import logging, sys, threading
from moto.server import create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").disabled = True
server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""


class Fault(StrEnum):
    """How a request fails."""

    SLOW_DOWN = "slow_down"
    """503, code SlowDown."""
    INTERNAL_ERROR = "internal_error"
    """500, code InternalError."""
    THROTTLED = "throttled"
    """429, code TooManyRequests."""
    DENIED = "denied"
    """403, code AccessDenied."""
    DROPPED = "dropped"
    """The connection is reset and the server never sees the request."""
    STALLED = "stalled"
    """No answer until the client gives up; the server never sees the request."""
    REPLY_LOST = "reply_lost"
    """The server carries it out, then the connection is reset."""
    CUT_SHORT = "cut_short"
    """The server carries it out, and the connection is closed in the middle of the body."""


_REFUSALS = {
    Fault.SLOW_DOWN: (503, "SlowDown", "Please reduce your request rate."),
    Fault.INTERNAL_ERROR: (500, "InternalError", "We encountered an internal error. Please try again."),
    Fault.THROTTLED: (429, "TooManyRequests", "Too many requests."),
    Fault.DENIED: (403, "AccessDenied", "Access Denied"),
}


@dataclass(slots=True)
class _Rule:
    fault: Fault
    method: str
    target: re.Pattern[str]
    skip: int
    times: int


@dataclass(slots=True)
class Faults:
    """Which requests fail, and which have been made."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and decoded path with its query of each request so far."""
    _rules: list[_Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(self, fault: Fault, *, method: str = ".*", key: str = "", times: int = 1, skip: int = 0) -> None:
        """
        Make requests fail.

        :param method: Regular expression for the whole HTTP method.
        :param key: Regular expression for a part of the decoded path with its query.
        :param times: How many matching requests fail.
        :param skip: How many matching requests go through before that.
        """
        with self._lock:
            self._rules.append(_Rule(fault, method, re.compile(key), skip, times))

    def clear(self) -> None:
        """Forget all faults and all requests."""
        with self._lock:
            self._rules.clear()
            self.requests.clear()

    def count(self, method: str, key: str = "") -> int:
        """Return how many requests there were."""
        with self._lock:
            return sum(m == method and re.search(key, target) is not None for m, target in self.requests)

    def choose(self, method: str, target: str) -> Fault | None:
        """Note a request and return how it is to fail."""
        with self._lock:
            self.requests.append((method, target))
            for rule in self._rules:
                if re.fullmatch(rule.method, method) and rule.target.search(target) and rule.times > 0:
                    if rule.skip > 0:
                        rule.skip -= 1
                        continue
                    rule.times -= 1
                    return rule.fault
        return None


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Where it is, and what a client needs."""

    endpoint_url: str
    """Of the proxy, which is what clients use."""
    direct_url: str
    """Of the server behind it, which never fails."""
    bucket: str
    faults: Faults

    @property
    def storage_options(self) -> dict[str, Any]:
        """For s3fs: small time-outs, and one try of each request."""
        return {
            "key": KEY,
            "secret": SECRET,
            "endpoint_url": self.endpoint_url,
            "client_kwargs": {"region_name": REGION},
            "config_kwargs": {
                "connect_timeout": 5,
                "read_timeout": 2,
                "retries": {"total_max_attempts": 1},
                "s3": {"addressing_style": "path"},
            },
        }

    def make_bucket(self) -> str:
        """Return the name of a new, empty bucket."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        request = urllib.request.Request(f"{self.direct_url}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        return name


@contextmanager
def running_object_store() -> Iterator[ObjectStore]:
    """Run the server and the proxy, with one bucket."""
    with running_server(_SERVER) as port, _running_proxy(port) as (proxy_port, faults):
        urls = f"http://127.0.0.1:{proxy_port}", f"http://127.0.0.1:{port}"
        bucket = ObjectStore(*urls, "", faults).make_bucket()
        yield ObjectStore(*urls, bucket, faults)


@contextmanager
def running_server(program: str) -> Iterator[int]:
    """Run a server that prints its port, and ends with its standard input, whatever becomes of this process."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the object store did not start; are the packages of the extra 'dev' installed?"
            yield int(line)
        finally:
            process.kill()


@contextmanager
def _running_proxy(port: int) -> Iterator[tuple[int, Faults]]:
    faults = Faults()
    with _Proxy(("127.0.0.1", 0), _Forwarder) as proxy:
        proxy.port_behind, proxy.faults = port, faults
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy.server_port, faults
        finally:
            proxy.shutdown()
            thread.join()


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    port_behind: int
    faults: Faults

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go away when they like, and that is what the tests are about."""


class _Forwarder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Proxy

    def handle_one_request(self) -> None:
        for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
            setattr(self, f"do_{method}", self._serve)
        super().handle_one_request()

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        body = self._read_body()
        fault = self.server.faults.choose(self.command, urllib.parse.unquote(self.path))
        if fault in _REFUSALS:
            self._refuse(*_REFUSALS[fault])
        elif fault is Fault.DROPPED:
            self._reset()
        elif fault is Fault.STALLED:
            self._wait_for_client()
        else:
            self._forward(body, fault)

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def _forward(self, body: bytes, fault: Fault | None) -> None:
        connection = HTTPConnection("127.0.0.1", self.server.port_behind, timeout=60)
        try:
            skipped = {"transfer-encoding", "content-length", "expect", "connection"}
            headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if fault is Fault.REPLY_LOST:
            self._reset()
        else:
            self._answer(response, data, cut=fault is Fault.CUT_SHORT)

    def _answer(self, response: HTTPResponse, data: bytes, *, cut: bool) -> None:
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        # HEAD says how long the body would be.
        length = response.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = cut

    def _refuse(self, status: int, code: str, message: str) -> None:
        text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        body = b"" if self.command == "HEAD" else text.encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        # Without lingering the connection ends with a reset, not with an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _wait_for_client(self) -> None:
        self.close_connection = True
        self.connection.settimeout(60)
        with suppress(OSError):
            self.connection.recv(1)
