"""
What holds for the newest checkpoints of a job, which readers of its state ask for again and again.

:class:`LatestContract` is a part of a coordinator's contract. :class:`ChangedJobContract` adds what only the owner of
    the rows
can change; a subclass gives the fixture ``store``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness, require_running
from airflow_provider_statecheck.checkpoint.ids import checkpoint_uri, new_key, new_savepoint_uri, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    AttemptRef,
    ConfirmRestore,
    FinishAttempt,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnClear, RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobStore, LatestCheckpoints
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StaleAttemptError
from airflow_provider_statecheck.gateway.verbs import StageGateway as Gateway
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from tests.contracts.maintenance_contract import KnownRuns, MaintenanceContract, NoTokens
from tests.contracts.runs_of_a_job import AGAIN, JOB, day
from tests.job_savepoints import copy_checkpoint
from tests.messages import ManualClock, complete_checkpoint, make_owner, make_registration, make_source, present

OTHER = RowsVersion(0, datetime(2026, 1, 1, tzinfo=UTC))
"""A version that no job has."""


def newest(gateway: Gateway | JobStore) -> LatestCheckpoints:
    """Return the newest checkpoints without regard to what is known."""
    return present(gateway.latest_checkpoints(JOB))


def ids(latest: LatestCheckpoints) -> list[int]:
    """Return the ids of the newest checkpoints in the order of the operators."""
    return [c.checkpoint_id for c in latest.checkpoints]


def started(gateway: Gateway, checkpoints: int = 2) -> AttemptRef:
    """Let an attempt complete checkpoints."""
    attempt = gateway.register(make_registration(num_retained=2)).attempt
    for _ in range(checkpoints):
        complete_checkpoint(gateway, attempt)
    return attempt


OWN_SAVEPOINT = new_savepoint_uri("memory://savepoints", JOB)
OWN_CHECKPOINT = checkpoint_uri("memory://base", JOB, 1)


def restarted(gateway: Gateway, source: str, clear_marker: str = AGAIN) -> AttemptGrant:
    """Let a cleared task begin from a snapshot, which it has not restored yet."""
    owner, snapshot = make_owner(clear_marker=clear_marker), make_source(source)
    return gateway.register(
        make_registration(owner=owner, on_clear=OnClear.RESTART, restore_from=snapshot, num_retained=2)
    )


class LatestContract:
    """What holds for the newest checkpoints, whatever keeps the rows and whatever lies in between."""

    gateway: Gateway

    def test_the_newest_checkpoint_of_each_operator_is_shown_with_all_operators(self) -> None:
        first = started(self.gateway)
        other = self.gateway.register(make_registration(uid="other")).attempt
        self.gateway.register(make_registration(uid="without a checkpoint"))
        complete_checkpoint(self.gateway, other)
        complete_checkpoint(self.gateway, first)
        latest, view = newest(self.gateway), self.gateway.describe(JOB)
        assert latest.job == view.job
        assert [o.uid for o in latest.operators] == ["aggregate", "other", "without a checkpoint"]
        assert set(latest.operators) == set(view.operators)
        assert latest.checkpoints == tuple(self.gateway.latest(JOB, o.operator_id) for o in latest.operators[:2])
        assert ids(latest) == [4, 3]

    def test_nothing_is_read_again_while_the_version_is_the_known_one(self) -> None:
        started(self.gateway)
        known = newest(self.gateway).job.rows_version
        assert self.gateway.latest_checkpoints(JOB, known) is None
        for other in (
            known._replace(number=known.number - 1),
            known._replace(number=known.number + 1),
            known._replace(seen_at=known.seen_at - timedelta(microseconds=1)),
            known._replace(seen_at=known.seen_at + timedelta(microseconds=1)),
        ):
            assert self.gateway.latest_checkpoints(JOB, other) == newest(self.gateway), (
                "a backup of the database was restored"
            )

    def test_a_pending_checkpoint_is_not_shown(self) -> None:
        attempt = started(self.gateway)
        self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        assert ids(newest(self.gateway)) == [2]

    def test_a_checkpoint_that_a_restore_skipped_is_not_shown(self) -> None:
        started(self.gateway)
        retry = self.gateway.register(make_registration(num_retained=2)).attempt
        known = newest(self.gateway).job.rows_version
        skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum differs"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=retry, checkpoint_id=1, skipped=skipped))
        assert ids(present(self.gateway.latest_checkpoints(JOB, known))) == [1]

    def test_a_fresh_start_shows_nothing_until_its_first_checkpoint(self) -> None:
        self.gateway.finish(FinishAttempt(attempt=started(self.gateway), status=AttemptStatus.FINISHED))
        cleared = self.gateway.register(make_registration(owner=make_owner(clear_marker=AGAIN))).attempt
        assert ids(newest(self.gateway)) == []
        complete_checkpoint(self.gateway, cleared)
        assert ids(newest(self.gateway)) == [3]

    @pytest.mark.parametrize("source", [OWN_SAVEPOINT, OWN_CHECKPOINT], ids=["savepoint", "checkpoint"])
    def test_a_restart_from_a_savepoint_of_the_job_shows_the_checkpoint_before_it_until_the_restore(
        self, source: str
    ) -> None:
        self.gateway.finish(FinishAttempt(attempt=started(self.gateway), status=AttemptStatus.FINISHED))
        grant = restarted(self.gateway, source)
        during = newest(self.gateway)
        assert ids(during) == [2]
        assert [c.checkpoint_id for c in grant.effects.discards] == []
        assert {c.checkpoint_id for c in grant.effects.retained} >= {1, 2}, "their files must stay readable"
        self.gateway.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=3))
        after = present(self.gateway.latest_checkpoints(JOB, during.job.rows_version))
        assert (ids(after), after.checkpoints[0].location) == ([3], source)
        complete_checkpoint(self.gateway, grant.attempt)
        assert ids(newest(self.gateway)) == [4]

    def test_restarts_that_fail_before_the_restore_go_on_to_show_the_checkpoint_before_them(self) -> None:
        self.gateway.finish(FinishAttempt(attempt=started(self.gateway), status=AttemptStatus.FINISHED))
        for number in range(2):
            attempt = restarted(self.gateway, OWN_SAVEPOINT, clear_marker=f"restart {number}").attempt
            self.gateway.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED))
            assert ids(newest(self.gateway)) == [2]
        restarted(self.gateway, OWN_SAVEPOINT, clear_marker="last restart")
        assert ids(newest(self.gateway)) == [2]

    def test_a_start_from_a_savepoint_of_another_job_shows_nothing_until_the_restore(self) -> None:
        self.gateway.finish(FinishAttempt(attempt=started(self.gateway), status=AttemptStatus.FINISHED))
        grant = restarted(self.gateway, "memory://savepoints/savepoint-0f6f7c-000000000001")
        assert ids(newest(self.gateway)) == []
        self.gateway.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=3))
        assert ids(newest(self.gateway)) == [3]

    def test_a_restart_after_an_empty_fresh_start_does_not_show_what_was_before_that(self) -> None:
        self.gateway.finish(FinishAttempt(attempt=started(self.gateway), status=AttemptStatus.FINISHED))
        cleared = self.gateway.register(make_registration(owner=make_owner(clear_marker="fresh"))).attempt
        self.gateway.finish(FinishAttempt(attempt=cleared, status=AttemptStatus.FAILED))
        restarted(self.gateway, OWN_SAVEPOINT)
        assert ids(newest(self.gateway)) == []

    @pytest.mark.parametrize("known_version", [None, OTHER, OTHER._replace(number=1)])
    def test_a_job_that_is_unknown_has_none(self, known_version: RowsVersion | None) -> None:
        with pytest.raises(CheckpointNotFoundError, match="no job"):
            self.gateway.latest_checkpoints(JOB, known_version)


class Job:
    """A job and all that can change it."""

    def __init__(self, store: JobStore, clock: ManualClock) -> None:
        self.store = store
        self.coordinator = AttemptCoordinator(store)
        self.rewinding = JobRewinding(store, UnknownLiveness())
        self.maintenance = JobMaintenance(store, KnownRuns(), NoTokens(), clock)
        for number in (1, 2):
            self.work(number)

    def work(self, number: int, **changes: str) -> None:
        """Let the run of a day complete a checkpoint of two operators."""
        for uid in ("aggregate", "totals"):
            registration = make_registration(uid=uid, owner=day(number, **changes), retained_runs=2)
            attempt = self.coordinator.register(registration).attempt
            complete_checkpoint(self.coordinator, attempt)
            self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))

    def complete(self) -> None:
        """Complete a checkpoint of the second operator, which subsumes that of the first run."""
        attempt = self.coordinator.register(make_registration(uid="totals", owner=day(3), retained_runs=2)).attempt
        reply = complete_checkpoint(self.coordinator, attempt)
        gone = tuple(discard.checkpoint_id for discard in reply.effects.discards)
        self.coordinator.confirm_discards(attempt, gone)

    def start_afresh(self) -> None:
        """Rewind the job to before its first run, which then begins a new generation with a checkpoint."""
        self.rewinding.rewind(RewindJob(job_id=JOB, run_key=day(1).run_key))
        self.work(1, clear_marker=AGAIN)

    def take_back(self) -> None:
        """Rewind the job to before its second run."""
        self.rewinding.rewind(RewindJob(job_id=JOB, run_key=day(2).run_key))

    def save(self) -> CheckpointRecord:
        """Take a savepoint of the first operator."""
        operator_id = newest(self.coordinator).operators[0].operator_id
        return copy_checkpoint(self.store, JOB, operator_id)

    def dispose(self, savepoint: CheckpointRecord) -> None:
        """Dispose of a savepoint."""
        JobSavepoints(self.store).dispose(savepoint.location, JOB)

    def recreate(self) -> None:
        """Remove the job, and let a run begin it again under its name."""
        self.remove()
        self.work(1)

    def remove(self) -> None:
        MaintenanceContract.remove(self.maintenance, JOB)

    def add_operator(self) -> None:
        """Register an operator that sorts first."""
        self.coordinator.register(make_registration(uid="a new one", owner=day(3)))


class ChangedJobContract:
    """Each change of a job is noticed by its version, with the newest checkpoints after it."""

    @pytest.fixture
    def job(self, store: JobStore, clock: ManualClock) -> Job:
        """Return a job with checkpoints 1 and 2 of its first run, and 3 and 4 of its second."""
        return Job(store, clock)

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (Job.complete, [3, 5]),
            (Job.start_afresh, [5, 6]),
            (Job.take_back, [1, 2]),
            (Job.save, [3, 4]),
            (Job.recreate, [5, 6]),
            (Job.add_operator, [3, 4]),
        ],
        ids=["completed", "started afresh", "rewound", "savepoint", "removed and created again", "operator added"],
    )
    def test_each_change_of_a_job_is_noticed(
        self, job: Job, store: JobStore, change: Callable[[Job], object], expected: list[int]
    ) -> None:
        known = newest(store)
        assert ids(known) == [3, 4]
        change(job)
        latest = present(store.latest_checkpoints(JOB, known.job.rows_version))
        assert ids(latest) == expected
        assert latest == newest(store)

    def test_an_operator_that_was_added_is_listed(self, job: Job, store: JobStore) -> None:
        job.add_operator()
        assert [o.uid for o in newest(store).operators] == ["a new one", "aggregate", "totals"]

    def test_the_disposal_of_a_savepoint_is_noticed(self, job: Job, store: JobStore) -> None:
        savepoint = job.save()
        known = newest(store).job.rows_version
        job.dispose(savepoint)
        assert ids(present(store.latest_checkpoints(JOB, known))) == [3, 4]

    def test_a_job_that_was_removed_is_unknown_whatever_the_version(self, job: Job, store: JobStore) -> None:
        known = newest(store).job.rows_version
        job.remove()
        for version in (None, known):
            with pytest.raises(CheckpointNotFoundError, match="no job"):
                store.latest_checkpoints(JOB, version)

    def test_a_transaction_is_invisible_before_its_commit(self, job: Job, store: JobStore) -> None:
        known = newest(store).job.rows_version
        with pytest.raises(StaleAttemptError), store.transaction(JOB) as tx:
            require_running(tx, AttemptRef(job_id=JOB, operator_id=operator_id_of("aggregate"), epoch=0))
        assert store.latest_checkpoints(JOB, known) is None

    def test_no_check_is_older_than_a_commit_before_it(self, job: Job, store: JobStore) -> None:
        """Readers that reuse connections check while a stage completes checkpoints."""
        attempt = job.coordinator.register(make_registration(owner=day(3))).attempt
        committed, is_over = [3], Event()

        def behind() -> list[tuple[int, int]]:
            latest, found = newest(store), list[tuple[int, int]]()
            while not is_over.is_set():
                floor = committed[-1]
                latest = store.latest_checkpoints(JOB, latest.job.rows_version) or latest
                if ids(latest)[0] < floor:
                    found.append((ids(latest)[0], floor))
            return found

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(behind) for _ in range(3)]
            try:
                for _ in range(20):
                    reply = complete_checkpoint(job.coordinator, attempt)
                    committed.append(present(reply.checkpoint).checkpoint_id)
            finally:
                is_over.set()
        assert [reader.result() for reader in readers] == [[], [], []]
        assert ids(newest(store))[0] == committed[-1] > 20
