"""Whose a snapshot is and whether it may be deleted."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmDiscards,
    ConfirmRestore,
    DeclineCheckpoint,
    DisposeSavepoint,
    FinishAttempt,
    RequestSavepoint,
    RestoreSource,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.statistics_snapshot import custody_of
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from tests.messages import (
    ManualClock,
    complete_checkpoint,
    make_acknowledgement,
    make_registration,
)
from tests.sqlite_rows import new_store

JOB = job_id_of("sales")
SAVEPOINTS = "memory://savepoints"
PLACE = f"{SAVEPOINTS}/savepoint-0f6f7c-000000000001"


class Job:
    """A job with one operator."""

    def __init__(self, **registration: object) -> None:
        store = new_store(ManualClock())
        self.coordinator, self.savepoints = AttemptCoordinator(store), JobSavepoints(store)
        self.attempt = self.register(**registration)

    def register(self, **changes: object) -> AttemptRef:
        return self.coordinator.register(make_registration(**changes)).attempt

    def complete(self) -> None:
        complete_checkpoint(self.coordinator, self.attempt)

    def finish(self) -> None:
        self.coordinator.finish(FinishAttempt(attempt=self.attempt, status=AttemptStatus.FINISHED))

    def take_savepoint(self) -> None:
        asked = self.savepoints.request(
            RequestSavepoint(job_id=JOB, operator_id=operator_id_of("aggregate"), request_key=new_key())
        )
        message = TriggerCheckpoint(
            attempt=self.attempt, request_key=new_key(), serves=asked.request_key, savepoint_dir=SAVEPOINTS
        )
        pending = self.coordinator.trigger(message)
        self.coordinator.acknowledge(make_acknowledgement(self.attempt, pending))

    def custody(self) -> list[tuple[str, bool]]:
        view = self.coordinator.describe(JOB)
        found = [custody_of(view, checkpoint) for checkpoint in view.checkpoints]
        return [(each.owner.value, each.is_safe_to_delete) for each in found]

    def because(self) -> str:
        view = self.coordinator.describe(JOB)
        return custody_of(view, view.checkpoints[-1]).because


def test_a_retained_checkpoint_belongs_to_its_job_and_is_needed() -> None:
    job = Job()
    job.complete()
    assert job.custody() == [("job", False)]


def test_a_checkpoint_in_progress_is_being_written() -> None:
    job = Job()
    job.coordinator.trigger(TriggerCheckpoint(attempt=job.attempt, request_key=new_key()))
    assert (job.custody(), job.because()) == ([("job", False)], "it is being written")


def test_a_subsumed_checkpoint_may_go() -> None:
    job = Job(num_retained=1)
    job.complete()
    job.complete()
    assert job.custody() == [("job", True), ("job", False)]


def test_an_aborted_checkpoint_may_go() -> None:
    job = Job()
    pending = job.coordinator.trigger(TriggerCheckpoint(attempt=job.attempt, request_key=new_key()))
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED
    job.coordinator.decline(DeclineCheckpoint(attempt=job.attempt, checkpoint_id=pending.checkpoint_id, reason=reason))
    assert job.custody() == [("job", True)]


def test_a_subsumed_checkpoint_stays_while_the_attempt_runs_that_was_restored_from_it() -> None:
    job = Job(num_retained=1)
    job.complete()
    job.attempt = job.register(num_retained=1)
    job.complete()
    assert job.custody() == [("job", False), ("job", False)]
    job.finish()
    assert job.custody() == [("job", True), ("job", False)]


def test_a_checkpoint_whose_bytes_are_gone_needs_no_care() -> None:
    job = Job(num_retained=1)
    job.complete()
    job.complete()
    job.coordinator.confirm_discards(ConfirmDiscards(job_id=JOB, checkpoint_ids=(1,), attempt=job.attempt))
    view = job.coordinator.describe(JOB)
    assert custody_of(view, view.checkpoints[0]).because == "its files are deleted"


def test_a_savepoint_belongs_to_the_user_and_never_counts_as_safe() -> None:
    job = Job()
    job.take_savepoint()
    assert job.custody() == [("user", False)]
    assert "dispose deletes it, unless another job claimed it" in job.because()


def test_a_disposed_savepoint_may_go() -> None:
    job = Job()
    job.take_savepoint()
    place = job.coordinator.describe(JOB).checkpoints[-1].location
    job.savepoints.dispose(DisposeSavepoint(pointer=place, job_id=JOB))
    assert job.custody() == [("user", True)]


def source(mode: RestoreMode, pointer: str = PLACE) -> RestoreSource:
    return RestoreSource(
        pointer=pointer, metadata_uri=f"{pointer}/_metadata", metadata_size=0, metadata_sha256="", mode=mode
    )


def test_a_snapshot_that_was_restored_without_a_claim_belongs_to_somebody_else_for_ever() -> None:
    job = Job(restore_from=source(RestoreMode.NO_CLAIM), num_retained=1)
    for _ in range(2):
        job.complete()
    job.finish()
    assert job.custody() == [("other", False), ("job", True), ("job", False)]


def test_a_snapshot_that_was_claimed_belongs_to_the_job_which_may_go_on_using_its_files() -> None:
    job = Job(restore_from=source(RestoreMode.CLAIM), num_retained=1)
    job.coordinator.confirm_restore(ConfirmRestore(attempt=job.attempt, checkpoint_id=1, claim=True))
    assert job.custody() == [("job", False)]
    job.complete()
    job.finish()
    assert job.custody() == [("job", False), ("job", False)]
    view = job.coordinator.describe(JOB)
    assert "later checkpoints may reference its files" in custody_of(view, view.checkpoints[0]).because
