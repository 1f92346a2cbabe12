"""Several processes on one job."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import LARGEST_PAGE, CheckpointPage, JobView
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import document_uris, load_document
from tests.aligned_job import CHECKPOINT
from tests.conformance.databases import own_schema
from tests.conformance.test_aligned_checkpoints import is_loadable, on_database
from tests.integration.hammering import acknowledge, hammer, settle
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
