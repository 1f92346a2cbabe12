"""Garbage collection, pruning and the end of a run leave alone what aligned checkpoints need."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy, JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRequest
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.flink.contents import private_states
from airflow_provider_statecheck.flink.plan import ExecutionStatus
from airflow_provider_statecheck.maintenance.gc import CollectedJob, PruneRequest, collect_job, prune_job
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, RetireJob, ended_attempts
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints, serve_idle
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultMode, InProcessPlan, Killed
from tests.aligned_job import CHECKPOINT, JOB, AlignedJob, AlignedTask, future_of
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.conformance.test_aligned_checkpoints import faulty, on_database
from tests.contracts.maintenance_contract import KnownRuns, NoTokens
from tests.soak import every_nth

DAY = 24 * 3600.0
ENDS = [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED]


def maintain(job: AlignedJob) -> CollectedJob:
    """Do whatever maintenance does, as hard as it may."""
    gateway = JobMaintenance(job.jobs, KnownRuns(), NoTokens(), job.clock)
    gateway.settle_run(JOB)
    gateway.close_abandoned(JOB)
    report = collect_job(gateway, JOB, CheckpointStorage.open)
    prune_job(gateway, JOB, PruneRequest(older_than=timedelta(days=1)), CheckpointStorage.open)
    return report


def with_idle_operator(job: AlignedJob) -> AlignedTask:
    """Let checkpoint 2 carry what an operator left in checkpoint 1."""
    idle = AlignedTask("idle")
    job.tasks = (*job.tasks, idle)
    coordinator = job.coordinator()
    job.take(coordinator)
    idle.status = ExecutionStatus.NOT_STARTED
    job.take(coordinator)
    assert (job.status(1), job.status(2)) == ("subsumed", "completed")
    return idle


def restored_files(job: AlignedJob) -> set[str]:
    """Restore in a new process and return the files, each of which was read."""
    coordinator = job.coordinator()
    assert coordinator.restore_latest_checkpointed_state(job.tasks, True)
    latest = coordinator.components.completed_store.get_latest_checkpoint()
    assert latest is not None
    streams = [s for s in private_states(latest.operator_states.values()) if isinstance(s, FileStateHandle)]
    for stream in streams:
        job.storage.read_verified(stream.uri, size=stream.size, sha256=stream.sha256)
    return {stream.uri for stream in streams}


class MaintenanceOfAligned:
    """What holds whatever keeps the rows."""

    def test_leader_change_and_maintenance_lose_nothing_and_leave_no_orphan(self, job: AlignedJob) -> None:
        with_idle_operator(job)
        first = job.coordinator()
        future = first.trigger_checkpoint(CHECKPOINT, request_key="k")
        first.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 3))
        maintain(job)
        job.lead()
        maintain(job)
        assert len(restored_files(job)) == 3
        second = job.coordinator()
        second.receive_acknowledge_message(job.acknowledgement(job.tasks[1], 3))
        assert future.result(0).checkpoint_id == 3
        maintain(job)
        assert len(restored_files(job)) == 3
        job.pass_time(5 * DAY)
        maintain(job)
        assert job.directories() == {"chk-1", "chk-3"}
        job.lead()
        assert len(restored_files(job)) == 3

    def test_carried_state_outlives_the_leader(self, job: AlignedJob) -> None:
        with_idle_operator(job)
        job.pass_time(5 * DAY)
        report = maintain(job)
        assert not any(a.ended_at is None for a in job.jobs.describe(JOB).attempts)
        assert any("other checkpoints use" in line for line in report.kept)
        job.lead()
        files = restored_files(job)
        assert any("/chk-1/" in uri for uri in files)

    def test_a_leader_that_comes_after_the_job_was_retired_starts_afresh(self, job: AlignedJob) -> None:
        coordinator = job.coordinator()
        taken = job.take(coordinator).checkpoint_id
        job.pass_time(5 * DAY)
        gateway = JobMaintenance(job.jobs, KnownRuns(), NoTokens(), job.clock)
        for _ in range(2):
            gateway.close_abandoned(JOB)
        job.pass_time(2 * DAY)
        assert gateway.retire(RetireJob(job_id=JOB, is_named=True)) == ()
        collect_job(gateway, JOB, CheckpointStorage.open)
        assert job.directories() == set()
        job.lead()
        later = job.coordinator()
        assert not later.restore_latest_checkpointed_state(job.tasks, False)
        assert job.take(later).checkpoint_id > taken

    def test_a_checkpoint_that_is_finalized_keeps_what_it_may_name(self, job: AlignedJob) -> None:
        idle = with_idle_operator(job)
        plan = InProcessPlan(mode=FaultMode.KILL)
        sick = faulty(job, plan)
        sick.trigger_checkpoint(CHECKPOINT)
        sick.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 3))
        message = job.acknowledgement(job.tasks[1], 3)
        plan.point = len(plan.calls) + 4
        with pytest.raises(Killed):
            sick.receive_acknowledge_message(message)
        assert job.status(3) == "finalizing"
        job.pass_time(5 * DAY)
        assert any("the next leader resumes" in line for line in maintain(job).kept)
        job.lead()
        job.coordinator()
        assert job.status(3) == "completed"
        assert len(restored_files(job)) == 3
        assert idle.restored is not None

    @pytest.mark.parametrize(("policy", "status"), every_nth(product(CheckpointRetentionPolicy, ENDS), 2))
    def test_rows_and_store_agree_when_the_job_ends(
        self, job: AlignedJob, policy: CheckpointRetentionPolicy, status: JobStatus
    ) -> None:
        properties = CheckpointProperties.for_checkpoint(policy)
        coordinator = job.coordinator()
        pointer = job.take(coordinator, properties).external_pointer
        coordinator.shutdown_store(status)
        coordinator.shutdown_store(status)
        is_gone = properties.discard_on(status)
        assert job.status(1) == ("subsumed" if is_gone else "completed")
        assert job.storage.exists(pointer) is not is_gone
        job.lead()
        again = job.coordinator()
        assert not again.restore_latest_checkpointed_state(job.tasks)
        assert job.status(1) == ("subsumed" if is_gone else "completed")
        job.take(again)
        job.take(again)
        job.lead()
        job.take(job.coordinator())
        job.pass_time(5 * DAY)
        maintain(job)
        assert job.storage.exists(pointer) is not is_gone

    def test_requested_savepoints_wait_for_the_next_leader(self, job: AlignedJob) -> None:
        job.take(job.coordinator())
        leader = job.leader
        assert leader is not None
        AttemptCoordinator(job.jobs).finish(FinishAttempt(attempt=leader, status=AttemptStatus.FAILED))
        with job.jobs.transaction(JOB) as tx:
            tx.save_request(
                CheckpointRequest(
                    job_id=JOB,
                    request_key="asked",
                    operator_id=leader.operator_id,
                    properties=CheckpointProperties.for_savepoint(),
                    requested_at=tx.now,
                )
            )
        view = job.jobs.describe(JOB)
        assert serve_idle(JobSavepoints(job.jobs), view, CheckpointStorage.open, job.savepoint_dir) == []
        job.lead()
        coordinator = job.coordinator()
        coordinator.tick()
        job.acknowledge_all(coordinator, 2)
        assert future_of(coordinator, "asked").result(0).checkpoint_id == 2

    def test_the_end_of_a_run_ends_no_aligned_checkpoint(self, job: AlignedJob) -> None:
        job.take(job.coordinator())
        assert all(a.operator_id != ALIGNED_OPERATOR_ID for a in ended_attempts(job.jobs.describe(JOB)))


class SqlMaintenanceOfAligned(MaintenanceOfAligned):
    @pytest.fixture
    def job(self, engine: Engine, tmp_path: Path) -> AlignedJob:
        return on_database(engine, tmp_path)


class TestSqlite(OnSqlite, SqlMaintenanceOfAligned): ...


@pytest.mark.soak  # the transitions of aligned checkpoints run on PostgreSQL in make test
class TestPostgres(OnPostgres, SqlMaintenanceOfAligned): ...
