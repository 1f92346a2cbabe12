"""A savepoint of a whole job whose process ends, or meets an error, at each of its durable steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.failure import CheckpointException
from airflow_provider_statecheck.checkpoint.ids import new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, RequestStatus
from airflow_provider_statecheck.exceptions import StateCheckError, StoppedWithSavepointError
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import document_uris
from airflow_provider_statecheck.testing.faults import (
    WRITING_CALLS,
    FaultMode,
    InProcessPlan,
    Killed,
    faulty_rows,
    faulty_storage,
)
from tests.durable_steps import Observed, changing, rows_in
from tests.soak import rest_in_soak
from tests.unit.maintenance.test_job_savepoints import SavedJob

# What happens after a step is the harder half.
FAULTS = rest_in_soak(FaultMode, FaultMode.KILL_AFTER)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_savepoint_is_taken_once_wherever_its_process_fails(tmp_path: Path, fault: FaultMode) -> None:
    at_each_step(tmp_path, fault, take_savepoint)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_stops_once_wherever_the_process_of_its_savepoint_fails(tmp_path: Path, fault: FaultMode) -> None:
    at_each_step(tmp_path, fault, stop_with_savepoint)


def at_each_step(tmp_path: Path, fault: FaultMode, run: Callable[[SavedJob, InProcessPlan], None]) -> None:
    """Run something with a fault at each of its durable steps."""
    job, left = SavedJob(tmp_path / "none"), []
    assert isinstance(job.stage.store, SqlJobStore)
    database = Path(str(job.stage.store.engine.url.database))
    plan = Observed(after=lambda: left.append((rows_in(database), sorted((tmp_path / "none").rglob("*")))))
    run(job, plan)
    # A process that ends after a step that changes nothing leaves what it left before.
    points = changing(left) if fault is FaultMode.KILL_AFTER else range(1, len(left) + 1)
    assert len(points) > 10
    for point in points:
        run(SavedJob(tmp_path / str(point)), InProcessPlan(point=point, mode=fault))


def take_savepoint(job: SavedJob, plan: InProcessPlan) -> None:
    """Take a savepoint of a stage that has ended and of one that runs, and go on after a failure."""
    extracted = job.run("extract")
    running = job.begin("load")
    sound, job.service = job.service, faulty(job, plan)
    key = requested(job, sound)
    survived(job.serve, job, sound)
    job.stage.clock.advance(1)
    loaded = job.take(running)
    survived(job.serve, job, sound)
    job.service = sound
    running.finish(AttemptStatus.FINISHED)
    for _ in range(3):
        # Longer than the lease of a finalizer that has ended.
        job.stage.clock.advance(120)
        job.serve()
    if job.outcome(key).status is RequestStatus.FAILED:
        # An error, in contrast to the end of a process, fails a savepoint that is triggered or finalized.
        assert not plan.mode.is_kill
        assert not CheckpointStorage.open(job.target).list_files(job.target)
        key = job.request()
        job.serve()
    require_savepoint(job, key, {"extract": extracted.checkpoint_id, "load": loaded.checkpoint_id})


def stop_with_savepoint(job: SavedJob, plan: InProcessPlan) -> None:
    """
    Suspend a job with an ended stage and a running one, and go on after a failure of the process of its savepoint.
    """
    extracted, sound = job.run("extract"), job.service
    running = job.begin("load", driver={"pause": lambda _: carry_on(job, sound)})
    job.service = faulty(job, plan)
    key = requested(job, sound, kind=CheckpointType.SAVEPOINT_SUSPEND)
    for _ in range(3):
        job.stage.clock.advance(1)
        if stops(job, running):
            require_savepoint(job, key, {"extract": extracted.checkpoint_id, "load": newest_of(job, "load")})
            return
        # The stage goes on, because the savepoint is not triggered yet, has failed or begins again.
        carry_on(job, sound)
        if job.outcome(key).status is RequestStatus.FAILED:
            assert not plan.mode.is_kill
            key = job.request(kind=CheckpointType.SAVEPOINT_SUSPEND)
    raise AssertionError("Expected the stage to stop.")


def stops(job: SavedJob, running: StageAttempt) -> bool:
    """Take a checkpoint, and return whether the stage stops with it."""
    try:
        job.take(running)
    except StoppedWithSavepointError:
        return True
    return False


def carry_on(job: SavedJob, sound: WholeJobSavepoints) -> None:
    """Let another process go on with the savepoint, longer than the lease of one that has ended."""
    survived(job.serve, job, sound)
    job.service = sound
    job.stage.clock.advance(120)


def newest_of(job: SavedJob, uid: str) -> int:
    """Return the id of the newest checkpoint of a stage."""
    return max(c.checkpoint_id for c in job.view.of_operator(operator_id_of(uid)))


def requested(job: SavedJob, sound: WholeJobSavepoints, kind: CheckpointType = CheckpointType.SAVEPOINT) -> str:
    """Request a savepoint, again if the request has failed."""
    key = new_key()
    survived(lambda: job.service.request(job.view, kind=kind, request_key=key), job, sound)
    if job.has(key) and job.outcome(key).status.is_open:
        return key
    if not job.has(key):
        sound.request(job.view, kind=kind, request_key=key)
        return key
    assert not CheckpointStorage.open(job.target).list_files(job.target)
    return job.request(kind=kind)


def faulty(job: SavedJob, plan: InProcessPlan) -> WholeJobSavepoints:
    """Return a service whose transitions and whose writes fail as planned."""
    savepoints: Any = JobSavepoints(job.stage.store)
    return replace(
        job.service,
        rows=faulty_rows(AlignedCheckpoints(job.stage.store), plan),
        savepoints=faulty_rows(savepoints, plan, JobSavepoints),
        open_storage=lambda uri: faulty_storage(CheckpointStorage.open(uri), plan, WRITING_CALLS),
    )


def survived(step: Any, job: SavedJob, sound: WholeJobSavepoints) -> None:
    """Run a step; after the end of its process, another process goes on."""
    try:
        step()
    except Killed:
        job.service = sound
    except (StateCheckError, CheckpointException):
        pass


def require_savepoint(job: SavedJob, key: str, members: dict[str, int]) -> None:
    """Require one complete savepoint with these members, and nothing that it leaves behind."""
    outcome = job.outcome(key)
    assert outcome.status is RequestStatus.COMPLETED, outcome.failure_message
    assert job.members(key) == members
    assert [o.pinned_checkpoint for o in job.view.operators] == [None] * len(job.view.operators)
    location = job.savepoint(key).location
    files = CheckpointStorage.open(job.target).list_files(location)
    named = {uri.removeprefix(f"{location}/") for uri in document_uris(job.document(key))}
    unnamed = [n for n in files if n not in named and not any(n.startswith(f"{each}/") for each in named)]
    assert "_metadata" in unnamed
    manifests = [name for name in unnamed if name != "_metadata"]
    assert len(manifests) <= len(members) + 1, "the metadata, and the manifests that it was merged from"
