"""
The job store of production on SQLite files that have all tables.

Each file is a copy of one empty database, because the creation of the tables takes ten times longer.
"""

from __future__ import annotations

import functools
import os
import tempfile
import weakref
from pathlib import Path

from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.records import Clock
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine


def new_store(clock: Clock | None = None) -> SqlJobStore:
    """Return a store of its own, whose file is removed with it."""
    handle, name = tempfile.mkstemp(prefix="statecheck-rows-", suffix=".db")
    os.close(handle)
    return SqlJobStore(engine_of(Path(name), is_temporary=True), clock)


def engine_of(path: Path, *, is_temporary: bool = False) -> Engine:
    """Return the engine of a new database in a file."""
    path.write_bytes(_empty_database())
    engine = open_engine(f"sqlite:///{path}")
    if is_temporary:
        weakref.finalize(engine, path.unlink, missing_ok=True)
    return engine


@functools.cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory(prefix="statecheck-empty-") as folder:
        path = Path(folder, "state.db")
        open_engine(f"sqlite:///{path}").dispose()
        return path.read_bytes()
