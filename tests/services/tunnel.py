"""
A way to a stand-in for clients that know the address of a real service, and speak TLS to it.

The clients are used unchanged: two variables of the environment tell them to connect through a proxy, which leads them
to the stand-in whatever address they ask for, and to trust its certificate.
"""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from socketserver import StreamRequestHandler, ThreadingTCPServer

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM."""

    key: bytes
    chain: bytes


@cache
def certificate_of(host: str) -> Certificate:
    """Return the certificate of a host, the same throughout this process, whose clients read their roots once."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stand-in")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        chain=certificate.public_bytes(serialization.Encoding.PEM),
    )


@contextmanager
def proxy_to(port: int) -> Iterator[str]:
    """Serve a proxy whose tunnels all lead to a port of this machine, and return its address."""

    class Tunnel(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass  # the address that is asked for, and headers
            with socket.create_connection(("127.0.0.1", port)) as there:
                self.connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=_copy, args=(there, self.connection), daemon=True)
                back.start()
                _copy(self.connection, there)
                back.join()

    with ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
