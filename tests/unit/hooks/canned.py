"""Servers that a connection may lead to by mistake, and one that has the API beside Airflow's own paths."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answers = Mapping[str, tuple[int, Any]]

HEALTH, VERSION, LOGIN = "/statecheck/v1/health", "/api/v2/version", "/auth/token"
PAGE = "<!doctype html><title>a page for any path</title>"


@contextmanager
def answering(answers: Answers, otherwise: tuple[int, Any]) -> Iterator[str]:
    """Serve some paths, and one answer for all others; return the root."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = answers.get(self.path, otherwise)
            body = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
