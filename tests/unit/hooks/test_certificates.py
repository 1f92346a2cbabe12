"""Which certificates of an api-server its clients trust."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_provider_statecheck.hooks.connection import CoordinatorAddress
from airflow_provider_statecheck.overriding import override


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    @override
    def log_message(self, *_: object) -> None:
        """Log nothing."""


def certified(folder: Path) -> Path:
    """Write a certificate of localhost that no authority has signed, with its key, into one file."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(hours=1), now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, text = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = folder / "certificate.pem"
    path.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, text, serialization.NoEncryption()))
    return path


@contextmanager
def served(certificate: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with HTTPServer(("localhost", 0), _Answers) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize("setting", ["SSL_CA_FILE", "SSL_CERT", None])
def test_the_certificates_of_the_configuration_are_trusted_and_no_others_of_their_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None
) -> None:
    certificate = certified(tmp_path)
    if setting is not None:
        monkeypatch.setenv(f"AIRFLOW__API__{setting}", str(certificate))
    with served(certificate) as url, CoordinatorAddress(url=url).open_pool() as client:
        if setting is None:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                client.get(url)
        else:
            assert client.get(url).status_code == 204
