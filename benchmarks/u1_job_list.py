"""
U1: the list of 1,000 jobs and the page of a job with 10,000 checkpoints, on SQLite and PostgreSQL.

The peer is the limit of 0.3 s. Each reading is one request to the api-server's app in this process, by a user who may
read all Dags but one; the 99th percentile is compared with the limit.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import create_engine, insert, select
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.job_list import JobSort, ListedStatus
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.gateway.verbs import JOB_PAGES, VERSION_PATH
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import (
    ATTEMPTS,
    CHECKPOINTS,
    JOB_DAGS,
    JOBS,
    METADATA,
    OPERATORS,
    STATISTICS,
    Caller,
)
from benchmarks.measure import Result, seconds
from benchmarks.postgres import postgres
from tests.messages import complete_checkpoint, make_owner, make_registration

LIMIT_SECONDS = 0.3
_NAME = "nightly sales"
_DAGS = 50
_HIDDEN = "dag 7"
_TASK = Caller(dag_id="dag 0", run_id="run 0", task_id="t")
_STATUSES = tuple(ListedStatus)
_COPIED = (JOBS.table, JOB_DAGS, OPERATORS.table, ATTEMPTS.table, CHECKPOINTS.table, STATISTICS.table)
_FIRST_OLD = 1_000


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure both databases."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        results = _on(f"sqlite:///{folder}/state.db", "SQLite", quick=quick)
        with postgres(Path(folder)) as url:
            return [*results, *_on(url, "PostgreSQL", quick=quick)]


def _on(url: str, database: str, *, quick: bool) -> list[Result]:
    jobs, checkpoints, calls = (100, 1_000, 20) if quick else (1_000, 10_000, 300)
    engine = create_engine(url, pool_pre_ping=True)
    METADATA.create_all(engine)
    job_id = _prepared(engine, jobs, checkpoints)
    sizes = {"jobs": jobs, "checkpoints of one job": checkpoints, "calls": calls}
    with _client(engine) as get:
        results = [
            _result(f"{case} on {database}, p99 vs the limit", get, paths, calls, sizes)
            for case, paths in _cases(job_id).items()
        ]
    engine.dispose()
    return results


def _cases(job_id: JobId) -> dict[str, Sequence[str]]:
    filters = ("", "&contains=sales", "&status=failed", "&dag_id=dag+3")
    orders = itertools.product(JobSort, ("false", "true"), filters)
    lists = [f"{VERSION_PATH}/job-list?sort={sort}&descending={order}{each}" for sort, order, each in orders]
    return {
        "list of jobs as JSON": lists,
        "page of the list of jobs": [JOB_PAGES],
        "page of a job": [f"{JOB_PAGES}/{job_id}"],
        "page of a job's history": [f"{JOB_PAGES}/{job_id}/checkpoints"],
    }


def _result(case: str, get: Callable[[str], None], paths: Sequence[str], calls: int, sizes: dict[str, Any]) -> Result:
    requests = itertools.islice(itertools.cycle(paths), calls + 1)
    readings = [seconds(partial(get, path)) for path in requests][1:]  # without the first one, which warms up
    p99 = sorted(readings)[int(0.99 * (len(readings) - 1) + 0.999)]
    return Result(
        id="U1",
        case=case,
        ours=p99,
        peer=LIMIT_SECONDS,
        unit="s",
        ratio=LIMIT_SECONDS / p99,
        goal=1.0,
        pairs=[[reading, LIMIT_SECONDS] for reading in readings],
        sizes=sizes,
    )


def _prepared(engine: Engine, jobs: int, checkpoints: int) -> JobId:
    """Fill the database with copies of a job of two operators. One of its operators also gets a history."""
    coordinator = AttemptCoordinator(SqlJobStore(engine))
    owner = make_owner(logical_task="dag 0/t", airflow=_TASK.pairs)
    for uid in ("features", "totals"):
        attempt = coordinator.register(make_registration(job_name=_NAME, uid=uid, owner=owner, num_retained=3)).attempt
        for size in (500, 700, 600):
            complete_checkpoint(coordinator, attempt, full_size_bytes=size << 20)
        coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED, message="disk full"))
    with engine.begin() as connection:
        for table in _COPIED:
            rows = [dict(row._mapping) for row in connection.execute(select(table))]
            connection.execute(insert(table), [_copied(row, number) for number in range(1, jobs) for row in rows])
        history = dict(connection.execute(select(CHECKPOINTS.table).limit(1)).one()._mapping)
        history |= {"job_id": job_id_of(_NAME)}
        connection.execute(insert(CHECKPOINTS.table), list(_history(history, checkpoints)))
    return job_id_of(_NAME)


def _copied(row: dict[str, Any], number: int) -> dict[str, Any]:
    name = f"{'sales' if number % 3 else 'clicks'}/{number}"
    changes: dict[str, Any] = {"job_id": job_id_of(name), "attempt_key": new_key(), "request_key": new_key()}
    if "name" in row:
        changes |= {
            "name": name,
            "status": _STATUSES[number % len(_STATUSES)],
            "completed_at": row["completed_at"] - timedelta(minutes=number % 500),
            "failed_at": None if number % 4 else row["failed_at"] - timedelta(hours=number),
            "full_size_bytes": number % 100 << 20,
        }
    if "dag_id" in row:
        changes["dag_id"] = f"dag {number % _DAGS}"
    return row | {key: value for key, value in changes.items() if key in row}


def _history(row: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        at = row["completed_at"] - timedelta(minutes=count - number)
        yield row | {
            "checkpoint_id": _FIRST_OLD + number,
            "request_key": new_key(),
            "status": CheckpointStatus.SUBSUMED,
            **dict.fromkeys(("triggered_at", "completed_at", "ended_at", "discarded_at"), at),
        }


class _Manager:
    """Auth manager with one user, who may read all Dags but one."""

    @staticmethod
    def is_authorized_dag(*, details: Any, **_: Any) -> bool:
        """Return whether the Dag is not the hidden one."""
        return bool(details.id != _HIDDEN)


@contextmanager
def _client(engine: Engine) -> Iterator[Callable[[str], None]]:
    from airflow.api_fastapi.core_api.security import get_user
    from airflow.models.dag import DagModel
    from fastapi.testclient import TestClient

    from airflow_provider_statecheck.api import airflow_access, airflow_app
    from airflow_provider_statecheck.api.app import create_app
    from airflow_provider_statecheck.api.pages import routes
    from airflow_provider_statecheck.api.pages.rendering import PageFiles
    from airflow_provider_statecheck.api.services import Services

    app = create_app(Services(lambda: engine, None))  # type: ignore[arg-type]
    app.include_router(airflow_app.list_router, prefix=VERSION_PATH)
    app.include_router(routes.router)
    app.mount("/static", PageFiles(), name="static")
    app.dependency_overrides[get_user] = lambda: None
    client = TestClient(app)

    def get(path: str) -> None:
        reply = client.get(path)
        assert reply.status_code == 200, reply.text

    # The database of the benchmark has no tables of Airflow.
    teams = patch.object(DagModel, "get_dag_id_to_team_name_mapping", return_value={})
    with patch.object(airflow_access, "get_auth_manager", _Manager), teams:
        yield get
