"""
The contract of maintenance, as a suite that it passes over every store.

Subclass :class:`MaintenanceContract` and give the fixture ``store``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, FinishAttempt, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy, JobStatus
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptStatus,
    CheckpointRequest,
    CheckpointStatus,
    OnClear,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
)
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, RetireJob
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from tests.contracts.runs_of_a_job import AGAIN, day
from tests.messages import ManualClock, complete_checkpoint, make_owner, make_registration, present

DAY = timedelta(days=1).total_seconds()
NAMED, BY_RUN, TEST = "sales", "nightly/2026-01-01", "test/sales"
AIRFLOW = (("dag_id", "nightly"), ("run_id", "run-1"), ("task_id", "features"), ("map_index", "-1"))


def owner_of_run(**changes: Any) -> AttemptOwner:
    """Return the owner of an attempt in the run after which :data:`BY_RUN` is named."""
    return make_owner(**{"run_key": "2026-01-01", "run_id": "run-1", "airflow": AIRFLOW} | changes)


@dataclass
class KnownRuns:
    """Dag runs of which a test says how they ended."""

    over: set[str] = field(default_factory=set)
    """Runs that failed."""
    ended: dict[str, JobStatus] = field(default_factory=dict)
    """How others ended."""
    meanwhile: Callable[[], object] = lambda: None
    """What happens while they are looked at."""

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        """Say what the test said."""
        self.meanwhile()
        return self.ended.get(owner.run_id, JobStatus.FAILED if owner.run_id in self.over else None)


@dataclass
class NoTokens:
    """There are none; remembers until when they should have ended."""

    asked: list[datetime] = field(default_factory=list)

    def is_open(self, attempt: AttemptRef, now: datetime) -> bool:
        """Answer no."""
        return False

    def drop_ended(self, before: datetime, *, dry_run: bool = False) -> int:
        """Count none."""
        self.asked.append(before)
        return 0


class MaintainedJobs:
    """Jobs and their maintenance, as a part of a suite."""

    @pytest.fixture(autouse=True)
    def _parts(self, store: JobStore, clock: ManualClock) -> None:
        self.runs = KnownRuns()
        self.coordinator = AttemptCoordinator(store)
        self.maintenance = JobMaintenance(store, self.runs, NoTokens(), clock)

    def run(
        self, job: str = NAMED, checkpoints: int = 3, status: AttemptStatus | None = AttemptStatus.FAILED
    ) -> AttemptRef:
        """Let an attempt complete checkpoints, of which one is retained, and end."""
        owner = make_owner(run_id="run-1", airflow=AIRFLOW)
        attempt = self.coordinator.register(make_registration(job_name=job, num_retained=1, owner=owner)).attempt
        for _ in range(checkpoints):
            complete_checkpoint(self.coordinator, attempt)
        if status is not None:
            self.coordinator.finish(FinishAttempt(attempt=attempt, status=status))
        return attempt

    @staticmethod
    def confirm_all(maintenance: JobMaintenance, job_id: JobId) -> None:
        """Say of every ended checkpoint that its bytes are gone."""
        ids = tuple(c.checkpoint_id for c in maintenance.describe(job_id).checkpoints)
        maintenance.confirm_discards(job_id, ids)

    @classmethod
    def remove(cls, maintenance: JobMaintenance, job_id: JobId) -> None:
        """Remove a job by its name, step by step."""
        request = RetireJob(job_id=job_id, is_named=True)
        assert maintenance.retire(request) == ()
        cls.confirm_all(maintenance, job_id)
        assert maintenance.remove(request) == ()

    @staticmethod
    def close_abandoned(maintenance: JobMaintenance, job_id: JobId) -> tuple[AttemptRef, ...]:
        """Look twice, as has to be done."""
        assert maintenance.close_abandoned(job_id) == ()
        return maintenance.close_abandoned(job_id)

    def complete_by_run(
        self,
        policy: CheckpointRetentionPolicy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
        *,
        job: str = BY_RUN,
        status: AttemptStatus | None = AttemptStatus.FINISHED,
        uid: str = "aggregate",
        has_commit: bool = False,
    ) -> AttemptRef:
        """Let an attempt of a job that is named after its run complete two checkpoints and end."""
        registration = make_registration(job_name=job, uid=uid, owner=owner_of_run(), retention=policy)
        attempt = self.coordinator.register(registration).attempt
        for is_newest in (False, True):
            complete_checkpoint(self.coordinator, attempt, has_commit=has_commit and is_newest)
        if status is not None:
            self.coordinator.finish(FinishAttempt(attempt=attempt, status=status))
        return attempt


class MaintenanceContract(MaintainedJobs):
    """What holds for maintenance, whatever keeps the rows."""

    # --- close

    def test_one_look_at_a_clock_that_is_far_ahead_closes_no_attempt(self, clock: ManualClock) -> None:
        attempt = self.coordinator.register(make_registration(owner=make_owner(airflow=()))).attempt
        for _ in range(2):
            clock.advance(5 * DAY)
            assert self.maintenance.close_abandoned(attempt.job_id) == ()
            clock.advance(-5 * DAY)
            self.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        assert self.maintenance.describe(attempt.job_id).attempts[0].status is AttemptStatus.RUNNING

    def test_an_attempt_whose_driver_died_on_its_last_try_is_closed(self, clock: ManualClock) -> None:
        attempt = self.run(status=None)
        self.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        self.runs.over.add("run-1")
        clock.advance(4 * DAY + 1)
        assert self.close_abandoned(self.maintenance, attempt.job_id) == (attempt,)
        view = self.maintenance.describe(attempt.job_id)
        assert (view.attempts[0].status, view.attempts[0].ended_at) == (AttemptStatus.FENCED, clock.now())
        assert [c.status for c in view.checkpoints[-2:]] == [CheckpointStatus.COMPLETED, CheckpointStatus.ABORTED]
        assert self.maintenance.close_abandoned(attempt.job_id) == ()
        assert "may still be running" in self.maintenance.retire(RetireJob(job_id=attempt.job_id, is_named=True))[0]
        retry = self.coordinator.register(make_registration(owner=make_owner(run_id="run-1", airflow=AIRFLOW)))
        assert (retry.is_restore, retry.start_reason) == (True, "retry after an attempt that was replaced")

    def test_an_attempt_stays_open_while_its_run_is_not_over(self, clock: ManualClock) -> None:
        attempt = self.run(status=None)
        clock.advance(400 * DAY)
        assert self.maintenance.close_abandoned(attempt.job_id) == ()
        assert self.maintenance.describe(attempt.job_id).attempts[0].status is AttemptStatus.RUNNING

    def test_an_attempt_stays_open_for_days_after_its_last_word(self, clock: ManualClock) -> None:
        attempt = self.run(status=None)
        self.runs.over.add("run-1")
        clock.advance(3 * DAY)
        self.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        clock.advance(4 * DAY)
        assert self.maintenance.close_abandoned(attempt.job_id) == ()
        clock.advance(1)
        assert self.close_abandoned(self.maintenance, attempt.job_id) == (attempt,)

    @pytest.mark.parametrize(("job", "airflow"), [(TEST, AIRFLOW), (NAMED, ())], ids=["test run", "script"])
    def test_no_retry_comes_of_a_test_run_or_a_script(
        self, clock: ManualClock, job: str, airflow: tuple[tuple[str, str], ...]
    ) -> None:
        owner = make_owner(airflow=airflow)
        attempt = self.coordinator.register(make_registration(job_name=job, owner=owner)).attempt
        clock.advance(4 * DAY + 1)
        assert self.close_abandoned(self.maintenance, attempt.job_id) == (attempt,)

    def test_an_attempt_that_speaks_while_it_is_looked_at_stays_open(self, clock: ManualClock) -> None:
        attempt = self.run(status=None)
        self.runs.over.add("run-1")
        self.runs.meanwhile = lambda: self.coordinator.trigger(
            TriggerCheckpoint(attempt=attempt, request_key=new_key())
        )
        clock.advance(5 * DAY)
        assert self.maintenance.close_abandoned(attempt.job_id) == ()
        assert self.maintenance.describe(attempt.job_id).attempts[0].status is AttemptStatus.RUNNING

    # --- the end of a run

    @pytest.mark.parametrize("policy", list(CheckpointRetentionPolicy))
    @pytest.mark.parametrize("end", [JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED])
    def test_the_checkpoints_of_a_run_go_or_stay_as_their_retention_says(
        self, policy: CheckpointRetentionPolicy, end: JobStatus
    ) -> None:
        job_id = self.complete_by_run(policy).job_id
        assert self.maintenance.settle_run(job_id) == (), "the run goes on"
        self.runs.ended["run-1"] = end
        expected = {
            JobStatus.FINISHED: set(CheckpointRetentionPolicy),
            JobStatus.CANCELED: set(CheckpointRetentionPolicy) - {CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION},
            JobStatus.FAILED: {CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION},
        }
        goes = policy in expected[end]
        assert self.maintenance.settle_run(job_id) == ((1, 2) if goes else ())
        rows = self.maintenance.describe(job_id).checkpoints
        assert [(c.awaits_discard, c.is_restorable) for c in rows] == [(goes, not goes)] * 2
        assert self.maintenance.settle_run(job_id) == ()

    def test_a_dry_run_of_forgetting_writes_nothing(self, clock: ManualClock) -> None:
        """The time of a job's last transition tells when somebody last worked on it."""
        job_id = self.complete_by_run().job_id
        before = self.maintenance.describe(job_id).job
        clock.advance(40 * 24 * 3600)
        self.maintenance.forget(job_id, 24 * 3600, dry_run=True)
        assert self.maintenance.describe(job_id).job == before

    def test_what_stays_after_a_failure_is_found_when_the_run_is_cleared(self) -> None:
        job_id = self.complete_by_run(status=AttemptStatus.FAILED).job_id
        self.runs.ended["run-1"] = JobStatus.FAILED
        self.maintenance.settle_run(job_id)
        cleared = owner_of_run(clear_marker="cleared")
        grant = self.coordinator.register(make_registration(job_name=BY_RUN, owner=cleared))
        assert (grant.is_restore, grant.candidates[0].checkpoint_id) == (True, 2)

    def test_a_run_cleared_after_a_success_starts_afresh_whatever_on_clear_says(self) -> None:
        job_id = self.complete_by_run().job_id
        self.runs.ended["run-1"] = JobStatus.FINISHED
        self.maintenance.settle_run(job_id)
        cleared = owner_of_run(clear_marker="cleared")
        grant = self.coordinator.register(make_registration(job_name=BY_RUN, owner=cleared, on_clear=OnClear.RESUME))
        assert not grant.is_restore
        assert grant.start_reason.endswith("but its checkpoints were given up, or deleted with their run or job")

    def test_checkpoints_from_before_a_fresh_start_without_a_checkpoint_end_with_the_run(self) -> None:
        job_id = self.complete_by_run(status=AttemptStatus.FAILED).job_id
        cleared = make_registration(
            job_name=BY_RUN, owner=owner_of_run(clear_marker="cleared"), on_clear=OnClear.RESTART
        )
        attempt = self.coordinator.register(cleared).attempt
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        self.runs.ended["run-1"] = JobStatus.FINISHED
        assert self.maintenance.settle_run(job_id) == (1, 2)
        assert self.maintenance.settle_run(job_id) == ()

    def test_an_attempt_that_did_not_finish_keeps_its_checkpoints_although_its_run_succeeded(self) -> None:
        """A task may fail in a run that succeeds, and is cleared alone."""
        self.complete_by_run(uid="first")
        job_id = self.complete_by_run(uid="second", status=AttemptStatus.FAILED).job_id
        self.runs.ended["run-1"] = JobStatus.FINISHED
        assert self.maintenance.settle_run(job_id) == (1, 2)
        assert [c.is_restorable for c in self.maintenance.describe(job_id).checkpoints] == [False, False, True, True]

    def test_an_attempt_that_has_not_ended_keeps_its_checkpoints(self) -> None:
        """Whatever its retention says: its driver may outlive the run."""
        never = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
        job_id = self.complete_by_run(never, status=None).job_id
        self.runs.ended["run-1"] = JobStatus.FINISHED
        assert self.maintenance.settle_run(job_id) == ()

    def test_what_a_sink_has_not_committed_stays_after_any_end_of_the_run(self) -> None:
        never = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
        failed = AttemptStatus.FAILED
        attempt = self.complete_by_run(never, status=failed, has_commit=True)
        self.complete_by_run(never, status=failed, uid="other")
        self.runs.ended["run-1"] = JobStatus.FAILED
        assert self.maintenance.settle_run(attempt.job_id) == (3, 4)
        cleared = owner_of_run(clear_marker="cleared")
        grant = self.coordinator.register(make_registration(job_name=BY_RUN, owner=cleared))
        assert (grant.is_restore, grant.effects.commits) == (True, (2,))

    @pytest.mark.parametrize("job", [NAMED, f"test/{BY_RUN}"], ids=["explicit name", "test run"])
    def test_only_a_real_job_that_is_named_after_its_run_ends_with_it(self, job: str) -> None:
        job_id = self.complete_by_run(job=job).job_id
        self.runs.ended["run-1"] = JobStatus.FINISHED
        assert self.maintenance.settle_run(job_id) == ()
        assert self.maintenance.describe(job_id).checkpoints[-1].is_restorable

    def test_an_attempt_that_comes_while_the_run_is_looked_at_keeps_what_it_restores(self) -> None:
        job_id = self.complete_by_run().job_id
        self.runs.ended["run-1"] = JobStatus.FINISHED
        cleared = make_registration(
            job_name=BY_RUN, owner=owner_of_run(clear_marker="cleared"), on_clear=OnClear.RESUME
        )
        grants: list[AttemptGrant] = []
        self.runs.meanwhile = lambda: grants.append(self.coordinator.register(cleared))
        assert self.maintenance.settle_run(job_id) == ()
        assert grants[0].is_restore
        assert self.maintenance.describe(job_id).checkpoints[-1].is_restorable

    def test_a_savepoint_stays_and_so_does_one_that_was_restored_without_a_claim(self, store: JobStore) -> None:
        job_id = self.complete_by_run().job_id
        kinds = (CheckpointProperties.for_savepoint(), CheckpointProperties.for_unclaimed_snapshot())
        with store.transaction(job_id) as tx:
            for kind in kinds:
                row = present(tx.checkpoint(1))
                copy = replace(row, checkpoint_id=tx.draw_checkpoint_id(), request_key=new_key(), properties=kind)
                tx.add_checkpoint(copy)
        self.runs.ended["run-1"] = JobStatus.FINISHED
        assert self.maintenance.settle_run(job_id) == (1, 2)
        kept = [c for c in self.maintenance.describe(job_id).checkpoints if c.status is CheckpointStatus.COMPLETED]
        assert [c.properties for c in kept] == list(kinds)

    def test_a_savepoint_that_the_job_has_claimed_is_disposed_of_with_its_checkpoint(self, store: JobStore) -> None:
        job_id = self.complete_by_run().job_id
        with store.transaction(job_id) as tx:
            row = present(tx.checkpoint(2))
            row = replace(row, location=f"memory://base/savepoint-{job_id[:6]}-0f6f7c1e2b3a")
            for properties in (CheckpointProperties.for_savepoint(), row.properties):
                copy = replace(row, checkpoint_id=tx.draw_checkpoint_id(), request_key=new_key(), properties=properties)
                tx.add_checkpoint(copy)
        self.runs.ended["run-1"] = JobStatus.FINISHED
        assert self.maintenance.settle_run(job_id) == (1, 2, 4)
        taken, claiming = self.maintenance.describe(job_id).checkpoints[-2:]
        assert (taken.status, claiming.status) == (CheckpointStatus.DISPOSED, CheckpointStatus.SUBSUMED)

    def request_at_end(self, job: str, status: AttemptStatus | None) -> AttemptRef:
        """Let an attempt request a savepoint at its end, and end without it."""
        registration = make_registration(job_name=job, owner=owner_of_run(), savepoint_at_end=True)
        attempt = self.coordinator.register(registration).attempt
        if status is not None:
            self.coordinator.finish(FinishAttempt(attempt=attempt, status=status))
        return attempt

    @pytest.mark.parametrize("status", [AttemptStatus.FAILED, None, AttemptStatus.FINISHED], ids=str)
    @pytest.mark.parametrize("job", [NAMED, BY_RUN])
    def test_a_savepoint_that_a_stage_could_not_take_at_its_end_fails_when_the_run_ends(
        self, job: str, status: AttemptStatus | None
    ) -> None:
        job_id = self.request_at_end(job, status).job_id
        self.maintenance.settle_run(job_id)
        [waiting] = self.maintenance.describe(job_id).requests
        assert waiting.status is RequestStatus.QUEUED, "the retry takes it over"
        self.runs.ended["run-1"] = JobStatus.FAILED
        assert self.maintenance.settle_run(job_id) == ()
        [failed] = self.maintenance.describe(job_id).requests
        assert (failed.status, failed.failure_message) == (
            RequestStatus.FAILED,
            "not taken before the run ended: the stage did not finish, or has no checkpoint",
        )
        assert failed.ended_at is not None

    def test_a_savepoint_that_a_user_requested_waits_beyond_the_end_of_the_run(self, store: JobStore) -> None:
        attempt = self.complete_by_run(status=AttemptStatus.FAILED)
        with store.transaction(attempt.job_id) as tx:
            tx.save_request(
                CheckpointRequest(
                    job_id=attempt.job_id,
                    request_key=new_key(),
                    operator_id=attempt.operator_id,
                    properties=CheckpointProperties.for_sync_savepoint(terminate=True),
                    requested_at=tx.now,
                )
            )
        self.runs.ended["run-1"] = JobStatus.FAILED
        self.maintenance.settle_run(attempt.job_id)
        assert [r.status for r in self.maintenance.describe(attempt.job_id).requests] == [RequestStatus.QUEUED]

    def test_a_savepoint_at_the_end_of_a_run_that_is_cleared_meanwhile_stays_requested(self) -> None:
        job_id = self.request_at_end(BY_RUN, AttemptStatus.FAILED).job_id
        self.runs.ended["run-1"] = JobStatus.FAILED
        cleared = make_registration(job_name=BY_RUN, owner=owner_of_run(clear_marker="cleared"), savepoint_at_end=True)
        self.runs.meanwhile = lambda: self.coordinator.register(cleared)
        self.maintenance.settle_run(job_id)
        assert [r.status for r in self.maintenance.describe(job_id).requests] == [RequestStatus.QUEUED]

    def test_a_job_that_is_gone_has_no_run_to_end(self) -> None:
        with pytest.raises(CheckpointNotFoundError):
            self.maintenance.settle_run(job_id_of("nowhere"))

    # --- forget

    def test_ended_rows_go_when_they_are_old_and_their_bytes_are_gone(self, clock: ManualClock) -> None:
        job_id = self.run().job_id
        self.maintenance.confirm_discards(job_id, (1,))
        clock.advance(DAY - 1)
        assert len(self.maintenance.forget(job_id, DAY)) == 0
        clock.advance(2)
        assert self.maintenance.forget(job_id, DAY).checkpoint_ids == (1,)
        assert [c.checkpoint_id for c in self.maintenance.describe(job_id).checkpoints] == [2, 3]

    def test_a_retained_checkpoint_is_never_forgotten(self, clock: ManualClock) -> None:
        job_id = self.run().job_id
        self.confirm_all(self.maintenance, job_id)
        clock.advance(400 * DAY)
        self.maintenance.forget(job_id, DAY)
        assert [c.status for c in self.maintenance.describe(job_id).checkpoints] == [CheckpointStatus.COMPLETED]

    def test_a_lost_history_stays_an_error_after_rows_were_forgotten(self, store: JobStore, clock: ManualClock) -> None:
        job_id = self.run().job_id
        with store.transaction(job_id) as tx:
            row = present(tx.checkpoint(3))
            tx.update_checkpoint(replace(row, status=CheckpointStatus.SUBSUMED), expected=row.status)
        self.confirm_all(self.maintenance, job_id)
        clock.advance(400 * DAY)
        self.maintenance.forget(job_id, DAY)
        with pytest.raises(NoRestorableCheckpointError):
            self.coordinator.register(make_registration(owner=make_owner(run_id="run-1")))

    def test_attempts_go_that_newer_ones_followed_and_the_newest_stays(self, clock: ManualClock) -> None:
        job_id = self.run().job_id
        self.run()
        clock.advance(2 * DAY)
        assert [ref.epoch for ref in self.maintenance.forget(job_id, DAY).attempts] == [1]
        assert [a.epoch for a in self.maintenance.describe(job_id).attempts] == [2]
        assert self.coordinator.register(make_registration(owner=make_owner(run_id="run-1"))).is_restore

    def test_the_last_attempt_of_each_retained_run_is_not_forgotten(self, store: JobStore, clock: ManualClock) -> None:
        job_id = job_id_of(NAMED)
        for number in (1, 2, 3):
            grant = self.coordinator.register(make_registration(job_name=NAMED, owner=day(number), retained_runs=3))
            complete_checkpoint(self.coordinator, grant.attempt)
            self.coordinator.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FINISHED))
        clock.advance(400 * DAY)
        assert self.maintenance.forget(job_id, DAY).attempts == ()
        JobRewinding(store, UnknownLiveness()).rewind(RewindJob(job_id=job_id, run_key=day(3).run_key))
        cleared = make_registration(job_name=NAMED, owner=day(2, clear_marker=AGAIN), retained_runs=3)
        assert [c.checkpoint_id for c in self.coordinator.register(cleared).candidates] == [1], "it begins again"

    def test_nothing_of_a_running_attempt_and_none_of_its_forerunners_goes(self, clock: ManualClock) -> None:
        self.run()
        running = self.run(status=None)
        self.confirm_all(self.maintenance, running.job_id)
        clock.advance(400 * DAY)
        gone = self.maintenance.forget(running.job_id, DAY)
        left = self.maintenance.describe(running.job_id)
        assert (len(gone.attempts), len(left.attempts)) == (0, 2)
        assert [c.checkpoint_id for c in left.checkpoints if c.epoch == running.epoch] == [4, 5, 6]

    def test_a_dry_run_says_what_would_be_forgotten_and_forgets_nothing(self, clock: ManualClock) -> None:
        job_id = self.run().job_id
        self.run()
        self.confirm_all(self.maintenance, job_id)
        clock.advance(2 * DAY)
        before = self.maintenance.describe(job_id)
        found = self.maintenance.forget(job_id, DAY, dry_run=True)
        after = self.maintenance.describe(job_id)
        assert (after.checkpoints, after.attempts) == (before.checkpoints, before.attempts)
        assert self.maintenance.forget(job_id, DAY) == found
        assert found.checkpoint_ids

    def test_requests_go_as_long_after_their_end_as_checkpoints(self, store: JobStore, clock: ManualClock) -> None:
        attempt = self.run()
        with store.transaction(attempt.job_id) as tx:
            ended = CheckpointRequest(
                job_id=attempt.job_id,
                request_key="ended",
                operator_id=attempt.operator_id,
                properties=CheckpointProperties.for_savepoint(),
                requested_at=tx.now,
                status=RequestStatus.FAILED,
                ended_at=tx.now,
            )
            tx.save_request(ended)
            tx.save_request(replace(ended, request_key="open", status=RequestStatus.QUEUED, ended_at=None))
        clock.advance(DAY + 1)
        assert self.maintenance.forget(attempt.job_id, DAY).requests == ("ended",)
        assert [r.request_key for r in self.maintenance.describe(attempt.job_id).requests] == ["open"]

    def test_rows_stay_for_a_day_at_least(self) -> None:
        job_id = self.run().job_id
        with pytest.raises(InvalidConfigurationError, match="a day"):
            self.maintenance.forget(job_id, DAY - 1)

    # --- which jobs go as a whole

    def test_a_job_with_a_name_of_its_own_goes_only_when_it_is_named(self) -> None:
        job_id = self.run().job_id
        assert "explicit name" in self.maintenance.retire(RetireJob(job_id=job_id, idle_seconds=DAY))[0]
        assert self.maintenance.describe(job_id).checkpoints[-1].is_restorable
        assert self.maintenance.retire(RetireJob(job_id=job_id, is_named=True)) == ()

    def test_a_job_named_after_a_run_goes_when_the_run_is_over(self, clock: ManualClock) -> None:
        attempt = self.coordinator.register(make_registration(job_name=BY_RUN, owner=owner_of_run())).attempt
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        request = RetireJob(job_id=attempt.job_id, idle_seconds=DAY)
        clock.advance(DAY)
        assert self.maintenance.retire(request) == ("run 'run-1' has not ended",)
        self.runs.over.add("run-1")
        for seconds in (0.0, -1.0, DAY - 1, float("nan")):
            too_soon = RetireJob(job_id=attempt.job_id, idle_seconds=seconds)
            for call in (self.maintenance.refusal, self.maintenance.retire, self.maintenance.remove):
                assert "less than a day" in call(too_soon)[0]
        assert self.maintenance.retire(request) == ()

    def test_a_job_goes_only_after_it_was_idle_and_maintenance_does_not_count(self, clock: ManualClock) -> None:
        job_id = self.run(TEST).job_id
        request = RetireJob(job_id=job_id, idle_seconds=10 * DAY)
        clock.advance(9 * DAY)
        self.maintenance.forget(job_id, DAY)
        assert "its last attempt was at" in self.maintenance.retire(request)[0]
        clock.advance(1.1 * DAY)
        assert self.maintenance.retire(request) == ()

    @pytest.mark.parametrize("is_named", [True, False])
    def test_a_job_with_an_open_attempt_never_goes(self, clock: ManualClock, is_named: bool) -> None:
        job_id = self.run(TEST, status=None).job_id
        clock.advance(400 * DAY)
        before = self.maintenance.describe(job_id).checkpoints
        reasons = self.maintenance.retire(RetireJob(job_id=job_id, is_named=is_named))
        assert "attempt 1 of operator 'aggregate' (dag.task) has not ended" in reasons
        assert self.maintenance.remove(RetireJob(job_id=job_id))
        assert self.maintenance.describe(job_id).checkpoints == before

    def test_a_job_whose_sink_has_not_committed_goes_only_when_it_is_named(self, clock: ManualClock) -> None:
        attempt = self.coordinator.register(make_registration(job_name=TEST)).attempt
        complete_checkpoint(self.coordinator, attempt, has_commit=True)
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED))
        clock.advance(10 * DAY)
        request = RetireJob(job_id=attempt.job_id, idle_seconds=DAY)
        for call in (self.maintenance.refusal, self.maintenance.retire, self.maintenance.remove):
            assert call(request) == ("the sink of operator 'aggregate' has not committed checkpoint 1",)
        assert self.maintenance.describe(attempt.job_id).checkpoints[0].awaits_commit
        self.remove(self.maintenance, attempt.job_id)

    def test_a_job_stays_while_a_replaced_driver_may_live_on(self, clock: ManualClock) -> None:
        """What it writes after the rows are gone, nobody would find."""
        self.run(TEST, status=None)
        job_id = self.run(TEST).job_id
        assert "may still be running" in self.maintenance.retire(RetireJob(job_id=job_id))[0]
        clock.advance(1.1 * DAY)
        assert self.maintenance.retire(RetireJob(job_id=job_id)) == ()

    # --- how they go

    def test_a_retired_job_has_only_discards_left_and_its_rows_go_when_they_are_confirmed(self) -> None:
        attempt = self.run(TEST)
        self.maintenance.retire(RetireJob(job_id=attempt.job_id))
        assert all(c.awaits_discard for c in self.maintenance.describe(attempt.job_id).checkpoints)
        assert "is not confirmed" in self.maintenance.remove(RetireJob(job_id=attempt.job_id))[0]
        self.confirm_all(self.maintenance, attempt.job_id)
        assert self.maintenance.remove(RetireJob(job_id=attempt.job_id)) == ()
        with pytest.raises(CheckpointNotFoundError):
            self.maintenance.describe(attempt.job_id)
        assert self.maintenance.jobs() == ()

    def test_saying_what_would_be_retired_changes_nothing(self) -> None:
        job_id = self.run(TEST).job_id
        before = self.maintenance.describe(job_id)
        assert self.maintenance.refusal(RetireJob(job_id=job_id)) == ()
        assert self.maintenance.describe(job_id) == before

    def test_an_attempt_that_comes_between_retiring_and_removing_starts_afresh_and_keeps_the_job(self) -> None:
        job_id = self.run(TEST).job_id
        self.maintenance.retire(RetireJob(job_id=job_id))
        grant = self.coordinator.register(make_registration(job_name=TEST, owner=make_owner(run_id="run-1")))
        complete_checkpoint(self.coordinator, grant.attempt)
        assert not grant.is_restore
        self.confirm_all(self.maintenance, job_id)
        assert "has not ended" in self.maintenance.remove(RetireJob(job_id=job_id))[0]
        assert self.coordinator.latest(job_id, grant.attempt.operator_id) is not None

    def test_retiring_twice_is_retiring_once(self) -> None:
        job_id = self.run(TEST).job_id
        self.maintenance.retire(RetireJob(job_id=job_id))
        once = self.maintenance.describe(job_id)
        self.maintenance.retire(RetireJob(job_id=job_id))
        again = self.maintenance.describe(job_id)
        assert (again.operators, again.checkpoints) == (once.operators, once.checkpoints)

    def test_a_removed_job_begins_anew_under_its_name_with_higher_numbers_and_others_are_untouched(self) -> None:
        self.run(NAMED)
        other = self.maintenance.describe(job_id_of(NAMED))
        job_id = self.run(TEST).job_id
        self.maintenance.retire(RetireJob(job_id=job_id))
        self.confirm_all(self.maintenance, job_id)
        self.maintenance.remove(RetireJob(job_id=job_id))
        attempt = self.run(TEST, status=None)
        pending = self.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        view = self.maintenance.describe(job_id)
        assert (attempt.epoch, view.attempts[0].generation, pending.checkpoint_id) == (2, 3, 7)
        assert [(a.epoch, a.start_reason) for a in view.attempts] == [(2, "first attempt")]
        assert self.maintenance.describe(job_id_of(NAMED)) == other

    def test_a_removed_job_is_none_until_it_is_registered_again(self, store: JobStore) -> None:
        attempt = self.run(TEST)
        self.remove(self.maintenance, attempt.job_id)
        for call in (self.maintenance.describe, self.maintenance.close_abandoned):
            with pytest.raises(CheckpointNotFoundError):
                call(attempt.job_id)
        with pytest.raises(CheckpointNotFoundError), store.transaction(attempt.job_id):
            pytest.fail("there is no job to work on")
        with pytest.raises(CheckpointNotFoundError):
            self.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))

    def test_who_read_the_rows_before_a_removal_mistakes_nothing_of_the_successor_for_what_was_there(self) -> None:
        """One process reads and sweeps for long; meanwhile another removes the job, and the task is cleared."""
        self.run(TEST)
        job_id = self.run(TEST).job_id
        read = self.maintenance.describe(job_id)
        self.remove(self.maintenance, job_id)
        successor = self.run(TEST, status=None)
        assert successor.epoch > max(a.epoch for a in read.attempts)
        new = self.maintenance.describe(job_id).checkpoints
        assert min(c.checkpoint_id for c in new) > max(c.checkpoint_id for c in read.checkpoints)
        assert min(c.generation for c in new) > max(c.generation for c in read.checkpoints)
        ids = tuple(c.checkpoint_id for c in read.checkpoints)
        self.maintenance.confirm_discards(job_id, ids)
        assert self.maintenance.describe(job_id).checkpoints == new

    def test_confirming_for_no_attempt_leaves_what_is_retained(self) -> None:
        job_id = self.run().job_id
        self.maintenance.confirm_discards(job_id, (1, 3, 99))
        rows = self.maintenance.describe(job_id).checkpoints
        assert [c.discarded_at is not None for c in rows] == [True, False, False]
