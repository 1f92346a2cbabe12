"""A stand-in's routes, served in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

_BACKLOG = 16


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve routes on a free port of this machine, and return their address."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
