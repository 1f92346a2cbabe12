"""
C3: the check of a job's version before each read of queryable state, on SQLite and PostgreSQL.

The peer reads the same columns by primary key on an open connection of the driver, without a pool, a transaction or
error mapping. A second case reads the newest checkpoints of a changed job with many operators, compared with the whole
view of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from benchmarks.measure import Result, in_turn, median_ratio, medians, seconds
from benchmarks.postgres import postgres
from tests.messages import complete_checkpoint, make_registration

JOB = job_id_of("sales")
OPERATORS = 100
_PLACEHOLDERS = {"sqlite": "?", "postgresql": "%s"}


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure both databases, both sides of a case alternately."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        results = _on(f"sqlite:///{folder}/state.db", "SQLite", quick=quick)
        with postgres(Path(folder)) as url:
            return [*results, *_on(url, "PostgreSQL", quick=quick)]


def _on(url: str, database: str, *, quick: bool) -> list[Result]:
    checks, reads = (200, 10) if quick else (5000, 50)
    # Airflow's engine also tests each connection that it takes from its pool.
    engine = create_engine(url, pool_pre_ping=True)
    coordinator = _prepared(engine)
    version = coordinator.describe(JOB).job.rows_version
    bare = _Bare(engine)
    results = [
        _compared(
            f"version check on {database} vs bare read",
            lambda: coordinator.latest_checkpoints(JOB, version),
            bare.check,
            checks,
            quick=quick,
        ),
        _compared(
            f"newest checkpoints of {OPERATORS} operators on {database} vs whole view",
            lambda: coordinator.latest_checkpoints(JOB),
            lambda: coordinator.describe(JOB),
            reads,
            quick=quick,
        ),
    ]
    bare.close()
    engine.dispose()
    return results


def _compared(case: str, ours: Callable[[], object], peer: Callable[[], object], calls: int, *, quick: bool) -> Result:
    pairs = in_turn(lambda: _microseconds(ours, calls), lambda: _microseconds(peer, calls), 3 if quick else 7)
    mine, theirs = medians(pairs)
    sizes = {"calls per reading": calls, "operators": OPERATORS}
    return Result(
        id="C3",
        case=case,
        ours=mine,
        peer=theirs,
        unit="µs",
        ratio=median_ratio(pairs),
        goal=None,
        pairs=pairs,
        sizes=sizes,
    )


def _microseconds(call: Callable[[], object], calls: int) -> float:
    def repeat() -> None:
        for _ in range(calls):
            call()

    return seconds(repeat) / calls * 1e6


def _prepared(engine: Any) -> AttemptCoordinator:
    METADATA.create_all(engine)
    coordinator = AttemptCoordinator(SqlJobStore(engine))
    for number in range(OPERATORS):
        attempt = coordinator.register(make_registration(uid=f"operator-{number}")).attempt
        complete_checkpoint(coordinator, attempt)
    return coordinator


class _Bare:
    def __init__(self, engine: Any) -> None:
        self._connection: Any = engine.raw_connection()
        if engine.dialect.name == "postgresql":
            self._connection.driver_connection.autocommit = True
        self._cursor = self._connection.cursor()
        self._query = f"SELECT version, seen_at FROM statecheck_job WHERE job_id = {_PLACEHOLDERS[engine.dialect.name]}"

    def check(self) -> int:
        """Read the version of the job."""
        self._cursor.execute(self._query, (JOB,))
        return int(self._cursor.fetchone()[0])

    def close(self) -> None:
        self._connection.invalidate()
