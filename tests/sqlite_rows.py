"""
The job store of production on SQLite files that have all tables.

Each file is a copy of one empty database, and all engines of a process share the statements that SQLAlchemy has compiled.
Most tests would otherwise spend more time on both than on what they test.
"""

from __future__ import annotations

import functools
import os
import tempfile
import weakref
from pathlib import Path

from sqlalchemy.engine import Engine, make_url
from sqlalchemy.pool import QueuePool

from airflow_provider_statecheck.checkpoint.records import Clock
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine

_WAIT_SECONDS = 30.0


def new_store(clock: Clock | None = None) -> SqlJobStore:
    """Return a store of its own, whose file is removed with it."""
    handle, name = tempfile.mkstemp(prefix="statecheck-rows-", suffix=".db")
    os.close(handle)
    path = Path(name)
    engine = new_engine(path)
    weakref.finalize(engine, path.unlink, missing_ok=True)
    return SqlJobStore(engine, clock)


def new_engine(path: Path) -> Engine:
    """Return the engine of a new database in a file."""
    path.write_bytes(_first()[1])
    return engine_on(path)


def engine_on(path: Path) -> Engine:
    """Return an engine for the database in a file."""
    first = _first()[0]
    # Compiled statements belong to a dialect.
    connect = functools.partial(first.dialect.connect, str(path), timeout=_WAIT_SECONDS, check_same_thread=False)
    engine = Engine(QueuePool(connect), first.dialect, make_url(f"sqlite:///{path}"))
    return engine.execution_options(compiled_cache=_compiled())


@functools.cache
def _first() -> tuple[Engine, bytes]:
    with tempfile.TemporaryDirectory(prefix="statecheck-empty-") as folder:
        path = Path(folder, "state.db")
        engine = open_engine(f"sqlite:///{path}")
        engine.dispose()
        return engine, path.read_bytes()


@functools.cache
def _compiled() -> dict[object, object]:
    return {}
