"""Several processes on one job."""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, JobAction, RequestStatus
from airflow_provider_statecheck.checkpoint.store import LARGEST_PAGE, CheckpointPage, JobView
from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.actions import JobActions
from airflow_provider_statecheck.maintenance.rewind import JobRewinding
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import document_uris, load_document
from tests.aligned_job import CHECKPOINT
from tests.conformance.databases import own_schema
from tests.conformance.test_aligned_checkpoints import is_loadable, on_database
from tests.integration.hammering import acknowledge, hammer, settle
from tests.messages import complete_checkpoint, make_registration
from tests.unit.written_stage import JOB, WrittenStage

pytestmark = [pytest.mark.db, pytest.mark.soak]

PROCESSES = 8


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    with own_schema(postgres_url) as url:
        yield url


@pytest.mark.parametrize("seconds", [5, 60])
def test_eight_processes_on_one_job_lose_nothing_and_leave_nothing(database: str, tmp_path: Path, seconds: int) -> None:
    base = f"file://{tmp_path}"
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=hammer, args=(database, base, seed, seconds)) for seed in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES

    stage = settle(database, base)
    view = replace(stage.coordinator.describe(job_id_of(JOB)), checkpoints=_all_checkpoints(stage))
    _require_every_id_once(view)
    _require_restorable(stage, view)
    _require_no_orphans(stage, view)
    _require_busy(view)


def _all_checkpoints(stage: WrittenStage) -> tuple[CheckpointRecord, ...]:
    """Read page after page, oldest first; a view leaves old ones out."""
    found: list[CheckpointRecord] = []
    page = CheckpointPage(limit=LARGEST_PAGE)
    while rows := stage.coordinator.checkpoints(job_id_of(JOB), page):
        found += rows
        page = replace(page, before=rows[-1].checkpoint_id)
    return tuple(reversed(found))


def _require_every_id_once(view: JobView) -> None:
    ids = [c.checkpoint_id for c in view.checkpoints]
    assert ids == list(range(1, view.job.next_checkpoint_id))
    epochs = Counter((a.operator_id, a.epoch) for a in view.attempts)
    assert set(epochs.values()) == {1}


def _require_restorable(stage: WrittenStage, view: JobView) -> None:
    verifier = CheckpointVerifier(stage.storage, is_deep=False)
    completed = [c for c in view.checkpoints if c.status is CheckpointStatus.COMPLETED]
    problems = [p for c in completed for p in verifier.verify(c).problems]
    assert problems == []


def _require_no_orphans(stage: WrittenStage, view: JobView) -> None:
    live = [c for c in view.checkpoints if c.status is CheckpointStatus.COMPLETED]
    named = {uri for c in live for uri in document_uris(load_document(stage.storage, c))} | {c.location for c in live}
    found = {f"{stage.storage.base_uri}/{name}" for name in stage.files()}
    orphans = [uri for uri in found if not any(uri.startswith(f"{n}/") or uri == n for n in named)]
    assert orphans == []
    savepoints = CheckpointStorage.open(stage.storage.base_uri.replace("/checkpoints", "/savepoints"))
    directories = {f"{savepoints.base_uri}/{name}" for name in savepoints.list_directories(savepoints.base_uri)}
    assert directories == {c.location for c in live if c.properties.is_savepoint}


def _require_busy(view: JobView) -> None:
    """See that it was a race: attempts were fenced, checkpoints subsumed and savepoints taken."""
    ends = Counter(c.status for c in view.checkpoints)
    assert ends[CheckpointStatus.SUBSUMED]
    assert any(c.properties.is_savepoint for c in view.checkpoints)
    assert len(view.attempts) > PROCESSES


ROUNDS, WRITERS = 60, 3
WAIT_SECONDS = 60.0


@pytest.fixture
def stores(postgres_url: str) -> Iterator[list[SqlJobStore]]:
    """One store for each writer, with an engine of its own, over the same rows."""
    with ExitStack() as stack:
        url = stack.enter_context(own_schema(postgres_url))
        engines = [create_engine(url) for _ in range(WRITERS)]
        for engine in engines:
            stack.callback(engine.dispose)
        yield [SqlJobStore(engine) for engine in engines]


def test_one_of_the_attempts_takes_the_choice_and_none_restores_a_newer_checkpoint(stores: list[SqlJobStore]) -> None:
    start = threading.Barrier(WRITERS)

    def registered(store: SqlJobStore, job: str) -> AttemptGrant:
        start.wait(WAIT_SECONDS)
        return AttemptCoordinator(store).register(make_registration(job_name=job))

    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(ROUNDS):
            job = f"job-{number}"
            key = _choose(stores[0], job)
            racing = [pool.submit(registered, store, job) for store in stores]
            grants = sorted((each.result(WAIT_SECONDS) for each in racing), key=lambda g: g.attempt.epoch)
            assert [[c.checkpoint_id for c in g.candidates] for g in grants] == [[1], *[[1]] * (WRITERS - 1)]
            assert ["chose" in g.start_reason for g in grants] == [True, *[False] * (WRITERS - 1)]
            view = stores[0].describe(job_id_of(job))
            assert [a.is_restore_chosen for a in view.attempts] == [False, *[True] * WRITERS]
            (action,) = view.actions
            assert (action.request_key, action.status) == (key, RequestStatus.COMPLETED)
            assert action.message == "attempt 2 restores checkpoint 1"


def test_a_choice_that_meets_a_registration_is_taken_by_it_or_by_the_next_one(stores: list[SqlJobStore]) -> None:
    start = threading.Barrier(2)
    coordinator = AttemptCoordinator(stores[1])
    taken = {True: 0, False: 0}

    def registered(job: str) -> AttemptGrant:
        start.wait(WAIT_SECONDS)
        return coordinator.register(make_registration(job_name=job))

    def chosen(job: str) -> None:
        start.wait(WAIT_SECONDS)
        _actions(stores[0]).request(_restore(job))

    with ThreadPoolExecutor(2) as pool:
        for number in range(ROUNDS):
            job = f"met-{number}"
            _two_checkpoints(stores[0], job)
            choosing, registering = pool.submit(chosen, job), pool.submit(registered, job)
            choosing.result(WAIT_SECONDS)
            first = registering.result(WAIT_SECONDS)
            second = coordinator.register(make_registration(job_name=job))
            is_first = "chose" in first.start_reason
            taken[is_first] += 1
            assert [c.checkpoint_id for c in first.candidates] == ([1] if is_first else [2, 1])
            assert [c.checkpoint_id for c in second.candidates] == [1]
            assert ("chose" in second.start_reason) is not is_first
            with pytest.raises(StaleAttemptError):
                complete_checkpoint(coordinator, first.attempt)
    assert sum(taken.values()) == ROUNDS


def _two_checkpoints(store: SqlJobStore, job: str) -> None:
    coordinator = AttemptCoordinator(store)
    grant = coordinator.register(make_registration(job_name=job))
    for _ in range(2):
        complete_checkpoint(coordinator, grant.attempt)


def _choose(store: SqlJobStore, job: str) -> str:
    _two_checkpoints(store, job)
    return _actions(store).request(_restore(job)).request_key


def _actions(store: SqlJobStore) -> JobActions:
    return JobActions(store, JobSavepoints(store), JobRewinding(store, UnknownLiveness()))


def _restore(job: str) -> UserAction:
    return UserAction(
        job_id=job_id_of(job),
        action=JobAction.RESTORE,
        operator_id=operator_id_of("aggregate"),
        checkpoint_id=1,
        request_key=new_key(),
        requested_by="anna",
    )


CHECKPOINTS = 12


def test_each_checkpoint_completes_exactly_once(postgres_url: str, tmp_path: Path) -> None:
    with own_schema(postgres_url) as url:
        engine = create_engine(url)
        job = on_database(engine, tmp_path)
        coordinator = job.coordinator(max_concurrent_checkpoints=CHECKPOINTS)
        ids = range(1, CHECKPOINTS + 1)
        futures = [coordinator.trigger_checkpoint(CHECKPOINT) for _ in ids]
        assert [future.checkpoint_id for future in futures] == list(ids)

        spawn = multiprocessing.get_context("spawn")
        told, begin = spawn.Queue(), spawn.Barrier(2)
        arguments = [(url, str(tmp_path), job.leader, task, ids, told, begin) for task in (0, 1)]
        workers = [spawn.Process(target=acknowledge, args=each) for each in arguments]
        for worker in workers:
            worker.start()
        announced = sorted(number for _ in workers for number in told.get(timeout=60))
        for worker in workers:
            worker.join()

        assert [worker.exitcode for worker in workers] == [0, 0]
        assert announced == list(ids)
        assert [future.result(0).checkpoint_id for future in futures] == list(ids)
        counts = job.statistics().create_snapshot().counts
        assert (counts.completed, counts.failed, counts.in_progress) == (CHECKPOINTS, 0, 0)
        assert CHECKPOINTS in is_loadable(job)
        engine.dispose()
