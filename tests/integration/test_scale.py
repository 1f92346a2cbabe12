"""
Lists and maintenance at the sizes that the documentation promises: 2,000 jobs, 100,000 checkpoints, operators or rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fsspec.implementations.local import LocalFileSystem
from sqlalchemy import create_engine, insert, select
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.job_list import JobSort, JobsPage
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, FinishAttempt, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, SystemClock
from airflow_provider_statecheck.checkpoint.store import CheckpointPage
from airflow_provider_statecheck.maintenance.gc import CollectedJob, PruneRequest, collect_job, prune_job
from airflow_provider_statecheck.maintenance.job_maintenance import (
    SIDE_BY_SIDE,
    JobMaintenance,
    UnknownRuns,
    each_job,
)
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import ATTEMPTS, CHECKPOINTS, JOB_DAGS, JOBS, OPERATORS, Caller
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.locations import AllowedLocations
from airflow_provider_statecheck.storage.patience import HostPatience
from tests.conformance.databases import own_schema
from tests.contracts.maintenance_contract import NoTokens
from tests.messages import complete_checkpoint, make_acknowledgement, make_owner, make_registration
from tests.sqlite_rows import new_engine
from tests.unit.written_stage import WrittenStage

pytestmark = pytest.mark.soak

JOBS_COUNT, OF_EACH, OLD_ROWS = 2_000, 50, 100_000
LIST_SECONDS, LIST_SECONDS_OF_OPERATORS, COLLECT_SECONDS, WAIT_SECONDS = 0.3, 1.0, 10.0, 0.5
_TOGETHER = 5_000
_SAMPLE_SECONDS = 0.05
Result = TypeVar("Result")


def slowdown() -> float:
    """Return how many times longer work takes now than on a quiet machine, because others use its cores."""
    began, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < _SAMPLE_SECONDS:
        sum(range(1_000))
    return (time.perf_counter() - began) / (time.thread_time() - used)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of a piece of work, and how many seconds it takes on a quiet machine, as in the goals."""
    before, began = slowdown(), time.perf_counter()
    result = work()
    took = time.perf_counter() - began
    return result, took * 2 / (before + slowdown())


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.db)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = new_engine(tmp_path / "state.db")
        yield engine
        engine.dispose()
        return
    with own_schema(request.getfixturevalue("postgres_url")) as url:
        engine = create_engine(url)
        yield engine
        engine.dispose()


def fill(engine: Engine, table: Any, rows: list[dict[str, Any]]) -> None:
    with engine.begin() as connection:
        for start in range(0, len(rows), _TOGETHER):
            connection.execute(insert(table), rows[start : start + _TOGETHER])


def only_row(engine: Engine, table: Any) -> dict[str, Any]:
    with engine.connect() as connection:
        return dict(connection.execute(select(table)).one()._mapping)


def add_jobs(engine: Engine, operators: int, checkpoints: int) -> None:
    """Copy a job until there are 2,000, each with a Dag and operators of its own that have completed checkpoints."""
    coordinator = AttemptCoordinator(SqlJobStore(engine))
    owner = make_owner(airflow=Caller(dag_id="d", run_id="r", task_id="t").pairs)
    attempt = coordinator.register(make_registration(job_name="job", owner=owner)).attempt
    complete_checkpoint(coordinator, attempt)
    coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED, message="disk full"))
    jobs = [job_id_of(f"job {number}") for number in range(JOBS_COUNT)]
    model = only_row(engine, JOBS.table)
    figures = {"checkpoint_id": checkpoints}
    rows = [
        model | figures | {"job_id": job, "name": f"job {n}", "full_size_bytes": n % 100} for n, job in enumerate(jobs)
    ]
    fill(engine, JOBS.table, rows)
    counts = dict.fromkeys((OPERATORS.table, ATTEMPTS.table, JOB_DAGS), 1) | {CHECKPOINTS.table: checkpoints}
    for table, count in counts.items():
        model = only_row(engine, table)
        each = [(job, o, n) for job in jobs for o in range(operators) for n in range(count)]
        fill(engine, table, [model | changes(model, *numbers) for numbers in each])


def changes(model: dict[str, Any], job: JobId, operator: int, number: int) -> dict[str, Any]:
    values = {
        "job_id": job,
        "operator_id": operator_id_of(f"operator {operator}"),
        "uid": f"operator {operator}",
        "checkpoint_id": operator + number + 1,
        "attempt_key": new_key(),
        "request_key": new_key(),
        "dag_id": f"dag {job}",
    }
    return {name: value for name, value in values.items() if name in model}


@pytest.mark.parametrize(
    ("operators", "checkpoints", "limit"),
    [(1, OF_EACH, LIST_SECONDS), (OF_EACH, 1, LIST_SECONDS_OF_OPERATORS)],
    ids=["100,000 checkpoints", "100,000 operators"],
)
def test_lists_of_2000_jobs_are_fast_for_every_reader(
    engine: Engine, operators: int, checkpoints: int, limit: float
) -> None:
    add_jobs(engine, operators, checkpoints)
    store = SqlJobStore(engine)
    dags = store.dag_ids()
    for sort in JobSort:
        for readable in (None, dags, frozenset(sorted(dags)[:-1])):
            page = JobsPage(sort=sort, readable_dag_ids=readable)
            counts, readings = {}, []
            for _ in range(4):
                found, took = timed(partial(store.job_overviews, page))
                counts = found.counts
                readings.append(took)
            assert sum(counts.values()) >= JOBS_COUNT - 1
            # Without the first one, for which the statement is compiled.
            assert min(readings[1:]) < limit, (sort, len(readable or ()), readings)


class _Remote(LocalFileSystem):  # type: ignore[misc]
    """A storage that answers after as many milliseconds as an object store."""

    cachable = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("info", "ls", "find", "cat_file", "rm_file", "rm", "pipe_file"):
            threading.Event().wait(0.01)
        return super().__getattribute__(name)


def test_collection_of_200_jobs_waits_for_their_storage_side_by_side(tmp_path: Path) -> None:
    engine = new_engine(tmp_path / "state.db")
    storage = CheckpointStorage.open(str(tmp_path / "base"))
    stage = WrittenStage(storage, store=SqlJobStore(engine))
    names = [f"job {number}" for number in range(200)]
    for name in names:
        stage.run(name)
    # As in the command, whose calls have deadlines.
    configured = AllowedLocations.only([storage.base_uri])
    remote = CheckpointStorage(_Remote(), storage.base_uri).guarded(configured, HostPatience())
    collected = partial(
        each_job,
        map(job_id_of, names),
        lambda job_id: collect_job(stage.maintenance, job_id, lambda _: remote),
        CollectedJob,
        side_by_side=SIDE_BY_SIDE,
    )
    reports, took = timed(lambda: list(collected()))
    assert [len(report.deleted) for report in reports] == [4] * 200
    assert took < COLLECT_SECONDS
    engine.dispose()


def test_checkpoints_of_a_stage_wait_briefly_while_100000_old_rows_are_removed(engine: Engine) -> None:
    coordinator = AttemptCoordinator(SqlJobStore(engine))
    failed = coordinator.register(make_registration()).attempt
    complete_checkpoint(coordinator, failed)
    coordinator.finish(FinishAttempt(attempt=failed, status=AttemptStatus.FAILED, message="disk full"))
    attempt = coordinator.register(make_registration()).attempt
    complete_checkpoint(coordinator, attempt)
    add_old_rows(engine, coordinator, attempt)
    maintenance = JobMaintenance(SqlJobStore(engine), UnknownRuns(), NoTokens(), SystemClock())
    before = slowdown()
    with live_stage(coordinator, attempt) as waits:
        report = prune_job(maintenance, attempt.job_id, PruneRequest(), CheckpointStorage.open)
    slow = (before + slowdown()) / 2
    assert report.checkpoints == OLD_ROWS - OLD_ROWS // 50, "all but the last of each run"
    waits.sort()
    assert waits[int(len(waits) * 0.99)] / slow < WAIT_SECONDS, (slow, waits[-20:])


def add_old_rows(engine: Engine, coordinator: AttemptCoordinator, attempt: AttemptRef) -> None:
    model = coordinator.checkpoints(attempt.job_id, CheckpointPage(limit=1))[0]
    past = model.triggered_at - timedelta(days=60)
    times: dict[str, Any] = dict.fromkeys(("completed_at", "ended_at", "discarded_at"), past)
    values = CHECKPOINTS.values_of(replace(model, epoch=0, status=CheckpointStatus.SUBSUMED, **times))
    rows = (
        values | {"checkpoint_id": 10**6 + n, "request_key": new_key(), "run_key": f"run {n // 50}"}
        for n in range(OLD_ROWS)
    )
    fill(engine, CHECKPOINTS.table, list(rows))


@contextmanager
def live_stage(coordinator: AttemptCoordinator, attempt: AttemptRef) -> Iterator[list[float]]:
    """Take checkpoints in another thread, and collect how long each of their calls takes."""
    waits: list[float] = []
    has_ended = threading.Event()

    def waited(call: Any, *arguments: Any) -> Any:
        began = time.perf_counter()
        result = call(*arguments)
        waits.append(time.perf_counter() - began)
        return result

    def take() -> None:
        while not has_ended.wait(0.05):
            pending = waited(coordinator.trigger, TriggerCheckpoint(attempt=attempt, request_key=new_key()))
            reply = waited(coordinator.acknowledge, make_acknowledgement(attempt, pending.checkpoint_id))
            gone = tuple(discard.checkpoint_id for discard in reply.effects.discards)
            waited(coordinator.confirm_discards, attempt, gone)

    stage = threading.Thread(target=take)
    stage.start()
    try:
        yield waits
    finally:
        has_ended.set()
        stage.join()
    assert len(waits) > 20
