"""
The job store of production on SQLite files that have all tables.

Each file is a copy of one empty database, and all engines of a process share the statements that SQLAlchemy has
compiled. Otherwise most tests would spend more time on creating tables and compiling statements than on what they test.
"""

from __future__ import annotations

import functools
import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import Dialect, Engine, make_url
from sqlalchemy.pool import QueuePool

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import Clock
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine

_WAIT_SECONDS = 30.0
_COMPILED: dict[object, object] = {}


def new_store(clock: Clock | None = None) -> SqlJobStore:
    """Return a store on a file of its own, which is deleted with the store."""
    handle, name = tempfile.mkstemp(prefix="statecheck-rows-", suffix=".db")
    os.close(handle)
    path = Path(name)
    engine = new_engine(path)
    weakref.finalize(engine, path.unlink, missing_ok=True)
    return SqlJobStore(engine, clock)


def new_engine(path: Path) -> Engine:
    """Return the engine of a new database in a file."""
    path.write_bytes(_template().tables)
    return engine_on(path)


def engine_on(path: Path) -> Engine:
    """Return an engine for the database in a file."""
    # A compiled statement belongs to a dialect, so all engines have the one of the template.
    dialect = _template().dialect
    connect = functools.partial(dialect.connect, str(path), timeout=_WAIT_SECONDS, check_same_thread=False)
    engine = Engine(QueuePool(connect), dialect, make_url(f"sqlite:///{path}"))
    return engine.execution_options(compiled_cache=_COMPILED)


def write_bad_value(store: SqlJobStore, job: str, statement: str) -> None:
    """Execute a statement on the rows of a job, as an administrator may do."""
    with store.engine.begin() as connection:
        assert connection.execute(text(statement), {"job": job_id_of(job)}).rowcount > 0


@dataclass(frozen=True)
class _Template:
    """An empty database: the bytes of its file, and the dialect that its engine has initialized."""

    tables: bytes
    dialect: Dialect


@functools.cache
def _template() -> _Template:
    with tempfile.TemporaryDirectory(prefix="statecheck-empty-") as folder:
        path = Path(folder, "state.db")
        engine = open_engine(f"sqlite:///{path}")
        engine.dispose()
        return _Template(path.read_bytes(), engine.dialect)
