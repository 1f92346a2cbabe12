"""Aligned checkpoints over each kind of rows: several coordinators, takeovers and a fault at every durable step."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortCheckpoints,
    AbortScope,
    AcknowledgedCheckpoint,
)
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.flink.contents import private_states
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.gateway.verbs import retrying
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import (
    WRITING_CALLS,
    FaultMode,
    InProcessPlan,
    Killed,
    faulty_rows,
    faulty_storage,
)
from tests.aligned_job import CHECKPOINT, JOB, JOB_NAME, AlignedJob, future_of, reason_of
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.conformance.served import OverHttp
from tests.durable_steps import Observed, changing, rows_in
from tests.messages import ManualClock, make_leadership
from tests.soak import rest_in_soak
from tests.sqlite_rows import engine_on, new_engine

ENDED = {"completed", "aborted", "subsumed"}


def on_database(
    engine: Engine, folder: Path, clock: ManualClock | None = None, rows: AlignedCheckpoints | None = None
) -> AlignedJob:
    clock = clock or ManualClock()
    return AlignedJob(
        SqlJobStore(engine, clock),
        CheckpointStorage.open(str(folder / "checkpoints")),
        clock,
        savepoint_dir=str(folder / "savepoints"),
        rows=rows,
    )


@contextmanager
def on_sqlite(folder: Path) -> Iterator[AlignedJob]:
    """Open the job in a folder, which is new if the folder has none."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "state.db"
    engine = engine_on(path) if path.exists() else new_engine(path)
    yield on_database(engine, folder)
    engine.dispose()


class AlignedContract:
    """What holds for aligned checkpoints whatever keeps the rows."""

    def test_checkpoint_is_completed_subsumed_and_restored(self, job: AlignedJob) -> None:
        coordinator = job.coordinator()
        futures = []
        for number in (1, 2):
            futures.append(coordinator.trigger_checkpoint(CHECKPOINT))
            job.acknowledge_all(coordinator, number)
        assert [future.result(0).checkpoint_id for future in futures] == [1, 2]
        assert (job.status(1), job.status(2)) == ("subsumed", "completed")
        assert job.coordinator().restore_latest_checkpointed_state(job.tasks, True)
        assert job.tasks[1].restored is not None
        assert job.tasks[1].restored[0] == 2

    def test_acknowledgements_may_reach_different_coordinators_of_one_leader(self, job: AlignedJob) -> None:
        one, two = job.coordinator(), job.coordinator()
        future = one.trigger_checkpoint(CHECKPOINT, request_key="k")
        one.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
        two.receive_acknowledge_message(job.acknowledgement(job.tasks[1], 1))
        assert future.result(0) == future_of(two, "k").result(0)
        assert job.tasks[0].heard("complete") == [1]
        assert one.trigger_checkpoint(CHECKPOINT).checkpoint_id == 2
        job.acknowledge_all(one, 2)
        assert one.restore_latest_checkpointed_state(job.tasks)
        assert job.tasks[0].restored is not None
        assert job.tasks[0].restored[0] == 2

    def test_new_coordinator_goes_on_with_pending_checkpoints(self, job: AlignedJob) -> None:
        first = job.coordinator()
        first.trigger_checkpoint(CHECKPOINT, request_key="k")
        first.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
        job.lead()
        second = job.coordinator()
        second.receive_acknowledge_message(job.acknowledgement(job.tasks[1], 1))
        assert future_of(second, "k").result(0).checkpoint_id == 1

    def test_pending_checkpoint_whose_parts_are_gone_fails_with_the_job(self, job: AlignedJob) -> None:
        first = job.coordinator()
        first.trigger_checkpoint(CHECKPOINT, request_key="k")
        first.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
        job.storage.delete_directory(job.location(1))
        job.lead()
        assert reason_of(future_of(job.coordinator(), "k")) is CheckpointFailureReason.JOB_FAILURE

    def test_ids_begin_above_what_the_storage_holds(self, job: AlignedJob) -> None:
        """Rows that came from a backup, or are new, know less than the storage."""
        request = make_leadership(job_name=JOB_NAME, storage_base=job.storage.base_uri, newest_on_storage=7)
        assert job.rows.count_ids(job.rows.lead(request), draws=True) == 8
        assert job.rows.count_ids(job.rows.lead(request)) == 9
        lower = replace(request, attempt_key=new_key(), newest_on_storage=5)
        assert job.rows.count_ids(job.rows.lead(lower)) == 9

    @pytest.mark.parametrize("found", [-1, 10_000_001])
    def test_a_number_on_storage_that_no_coordinator_draws_is_refused(self, job: AlignedJob, found: int) -> None:
        with pytest.raises(InvalidConfigurationError, match="newest_on_storage"):
            job.rows.lead(make_leadership(newest_on_storage=found))

    def test_earlier_leader_changes_nothing(self, job: AlignedJob) -> None:
        first = job.coordinator()
        first.trigger_checkpoint(CHECKPOINT)
        messages = [job.acknowledgement(task, 1) for task in job.tasks]
        job.lead()
        assert not any(first.receive_acknowledge_message(message) for message in messages)
        first.receive_decline_message(job.decline(job.tasks[0], 1))
        first.shutdown()
        error = first.trigger_checkpoint(CHECKPOINT).exception(0)
        assert error is not None
        assert job.status(1) == "pending"
        second = job.coordinator()
        for message in messages:
            second.receive_acknowledge_message(message)
        assert job.status(1) == "completed"

    def test_silent_finalizer_is_replaced_when_its_lease_ends(self, job: AlignedJob) -> None:
        plan = InProcessPlan(mode=FaultMode.KILL)
        first = faulty(job, plan)
        first.trigger_checkpoint(CHECKPOINT, request_key="k")
        first.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
        message = job.acknowledgement(job.tasks[1], 1)
        # The verdict, the manifest and the last acknowledgement come before.
        plan.point = len(plan.calls) + 4
        with pytest.raises(Killed):
            first.receive_acknowledge_message(message)
        second = job.coordinator()
        assert job.status(1) == "finalizing"
        job.pass_time(600)
        second.tick()
        assert future_of(second, "k").result(0).checkpoint_id == 1

    def test_late_finalizer_writes_no_metadata_of_a_deleted_checkpoint(
        self, job: AlignedJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        late, other = job.coordinator(), job.coordinator()
        late.trigger_checkpoint(CHECKPOINT)
        late.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
        held: list[AcknowledgedCheckpoint] = []
        with monkeypatch.context() as paused:
            paused.setattr(late.steps, "finalize", held.append)
            late.receive_acknowledge_message(job.acknowledgement(job.tasks[1], 1))
        job.pass_time(600)
        other.tick()
        other.trigger_checkpoint(CHECKPOINT)
        job.acknowledge_all(other, 2)
        assert job.status(1) == "subsumed"
        # The references of its manifest are gone with the checkpoint.
        monkeypatch.setattr("airflow_provider_statecheck.checkpoint.aligned.steps.contents", lambda *_: [])
        late.steps.try_finalize(held[0])
        assert job.directories() == {"chk-2"}

    def test_a_clock_that_was_far_ahead_holds_up_no_finalization(self, job: AlignedJob) -> None:
        plan = InProcessPlan(mode=FaultMode.KILL)
        first = faulty(job, plan)
        job.clock.advance(24 * 3600)
        first.trigger_checkpoint(CHECKPOINT, request_key="k")
        first.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
        plan.point = len(plan.calls) + 4
        with pytest.raises(Killed):
            first.receive_acknowledge_message(job.acknowledgement(job.tasks[1], 1))
        job.clock.advance(-24 * 3600)
        second = job.coordinator()
        second.tick()
        assert future_of(second, "k").result(0).checkpoint_id == 1

    def test_a_repeated_choice_names_the_request_that_is_too_early_again(self, job: AlignedJob) -> None:
        taken(job)
        enqueue(job, "a" * 32, is_periodic=True)
        leader, paused = job.lead(), replace(DECIDER, min_pause_seconds=3600.0)
        first, again = (job.rows.choose(leader, paused) for _ in range(2))
        assert [r.request_key for r in first.dropped] == ["a" * 32]
        assert again.dropped == first.dropped

    def test_a_request_that_another_process_has_begun_since_is_not_too_early(self, job: AlignedJob) -> None:
        job.coordinator().trigger_checkpoint(CHECKPOINT, request_key="a" * 32)
        enqueue(job, "b" * 32)
        assert job.leader is not None
        reason = CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
        for key in ("a" * 32, "b" * 32):
            early = AbortCheckpoints(leader=job.leader, scope=AbortScope.QUEUED, reason=reason, request_key=key)
            assert job.rows.abort(early) == ()
        assert job.status(1) == "pending"
        failed = job.rows.outcome(job.leader, "b" * 32).request
        assert failed is not None
        assert failed.failure_reason == reason.value

    def test_a_repeated_request_names_those_that_the_full_queue_refused_again(self, job: AlignedJob) -> None:
        enqueue(job, "a" * 32, is_periodic=True)
        assert [enqueue(job, "b" * 32) for _ in range(2)] == [["a" * 32]] * 2
        assert [enqueue(job, "c" * 32) for _ in range(2)] == [["c" * 32]] * 2

    def test_a_repeated_end_names_what_is_left_to_the_user_again(self, job: AlignedJob) -> None:
        checkpoint = taken(job)
        leader = job.lead()
        kept = [job.rows.end_handles(leader, None, "a" * 32) for _ in range(2)]
        assert [[c.checkpoint_id for c in each] for each in kept] == [[checkpoint.checkpoint_id]] * 2
        assert job.rows.end_handles(job.lead(), None, "b" * 32) == ()


DECIDER = CheckpointRequestDecider(max_concurrent=1, min_pause_seconds=0.0, max_queued=1)


def taken(job: AlignedJob, properties: CheckpointProperties = CHECKPOINT) -> CheckpointRecord:
    """Complete a checkpoint and return its row."""
    return job.row(job.take(job.coordinator(), properties).checkpoint_id)


def enqueue(job: AlignedJob, key: str, **changes: Any) -> list[str]:
    """Request a checkpoint and return the keys of the requests that the full queue refuses."""
    values: dict[str, Any] = {"properties": CHECKPOINT} | changes
    return [r.request_key for r in job.rows.enqueue(job.leader or job.lead(), DECIDER, key, **values)]


def faulty(job: AlignedJob, plan: InProcessPlan) -> CheckpointCoordinator:
    """Return a coordinator whose durable steps a plan counts, over the same rows and bytes."""
    leader = job.leader or job.lead()
    sick: Any = AlignedJob(
        job.jobs,
        faulty_storage(job.storage, plan, WRITING_CALLS),
        job.clock,
        tasks=job.tasks,
        savepoint_dir=job.savepoint_dir,
        rows=faulty_rows(job.rows, plan),
    )
    sick.leader = leader
    return sick.coordinator()  # type: ignore[no-any-return]


def retried(job: AlignedJob, plan: InProcessPlan) -> CheckpointCoordinator:
    """Return a coordinator whose transitions a plan counts, and which repeats them as a client of the API does."""
    leader = job.leader or job.lead()
    sick = AlignedJob(
        job.jobs,
        job.storage,
        job.clock,
        tasks=job.tasks,
        savepoint_dir=job.savepoint_dir,
        rows=retrying(faulty_rows(job.rows, plan), sleep=lambda _: None),
    )
    sick.leader, sick.failed = leader, job.failed
    return sick.coordinator(tolerable=0)


def scenario(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    """Complete one checkpoint, abort one, complete another that subsumes the first."""
    calls = [
        lambda: coordinator.trigger_checkpoint(CHECKPOINT),
        lambda: job.acknowledge_all(coordinator, 1),
        lambda: coordinator.trigger_checkpoint(CHECKPOINT),
        lambda: coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 2)),
        lambda: coordinator.receive_decline_message(job.decline(job.tasks[1], 2)),
        lambda: coordinator.trigger_checkpoint(CHECKPOINT),
        lambda: job.acknowledge_all(coordinator, 3),
    ]
    for call in calls:
        try:
            call()
        except (StateCheckError, StopIteration):
            continue


def is_loadable(job: AlignedJob, coordinator: CheckpointCoordinator | None = None) -> set[int]:
    """Return the ids in the completed store, when every file that they name was found."""
    store = (coordinator or job.coordinator()).components.completed_store
    store.recover()
    for checkpoint in store.get_all_checkpoints():
        for stream in private_states(checkpoint.operator_states.values()):
            assert isinstance(stream, FileStateHandle)
            job.storage.read_verified(stream.uri, size=stream.size, sha256=stream.sha256)
    return {checkpoint.checkpoint_id for checkpoint in store.get_all_checkpoints()}


def test_process_that_ends_between_two_durable_steps_loses_nothing(tmp_path: Path) -> None:
    folder, states = tmp_path / "job", list[Any]()

    def save() -> None:
        # A step that changes nothing leaves what the step before it has left.
        left = rows_in(folder / "state.db"), sorted(path for path in folder.rglob("*") if path.parent != folder)
        if left not in states[-1:]:
            states.append(left)
            shutil.copytree(folder, tmp_path / str(len(states)))

    with on_sqlite(folder) as job:
        coordinator = faulty(job, Observed(after=save))
        scenario(job, coordinator)
    assert len(states) > 20
    for number in range(1, len(states) + 1):
        # The rows name the files by their paths.
        shutil.rmtree(folder)
        (tmp_path / str(number)).rename(folder)
        with on_sqlite(folder) as job:
            require_no_loss(job, number)


@pytest.mark.soak  # make test ends the process between the steps, which is the harder half
@pytest.mark.parametrize("fault", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_fault_at_every_durable_step_loses_nothing(tmp_path: Path, fault: FaultMode) -> None:
    with on_sqlite(tmp_path / "count") as job:
        points = len(run_with_fault(job, fault, None))
    for point in range(1, points + 1):
        with on_sqlite(tmp_path / str(point)) as job:
            run_with_fault(job, fault, point)
            require_no_loss(job, point)


def run_with_fault(job: AlignedJob, fault: FaultMode, point: int | None) -> list[str]:
    """Run the scenario with a coordinator that fails at a durable step, and return the names of the steps."""
    plan = InProcessPlan(mode=fault)
    coordinator = faulty(job, plan)
    plan.calls.clear()
    plan.point = point
    scenario(job, coordinator)
    return plan.calls


@pytest.mark.parametrize("is_changing", rest_in_soak([True, False], True), ids=["changing", "reading"])
def test_a_lost_reply_that_is_repeated_has_the_consequences_of_one_that_arrived(
    tmp_path: Path, is_changing: bool
) -> None:
    folder, seen = tmp_path / "none", []
    plan = Observed(after=lambda: seen.append(rows_in(folder / "state.db")))
    with on_sqlite(folder) as job:
        expected = consequences(job, plan)
    points = changing(seen) if is_changing else sorted({*range(1, len(seen) + 1)} - {*changing(seen)})
    assert len(points) > 20
    for point in points:
        lost = InProcessPlan(point=point, mode=FaultMode.REPLY_LOST)
        with on_sqlite(tmp_path / str(point)) as job:
            assert consequences(job, lost) == expected, point


def consequences(job: AlignedJob, plan: InProcessPlan) -> tuple[Any, ...]:
    """Let one checkpoint be declined, one expire and one be taken over; return the changes and the notifications."""
    coordinator = retried(job, plan)
    scenario(job, coordinator)
    coordinator.trigger_checkpoint(CHECKPOINT)
    job.pass_time(100_000)
    coordinator.tick()
    leave_finalizing(job)
    job.pass_time(600)
    coordinator.shutdown()
    heard = [task.heard(each) for task in job.tasks for each in ("complete", "aborted")]
    return [(c.checkpoint_id, c.status) for c in rows(job)], heard, len(job.failed.causes), job.directories()


def leave_finalizing(job: AlignedJob) -> None:
    """Take a checkpoint with a process that ends before it has finalized it."""
    plan = InProcessPlan(mode=FaultMode.KILL)
    ending = faulty(job, plan)
    number = ending.trigger_checkpoint(CHECKPOINT).checkpoint_id
    assert number is not None
    ending.receive_acknowledge_message(job.acknowledgement(job.tasks[0], number))
    plan.point = len(plan.calls) + 4
    with pytest.raises(Killed):
        ending.receive_acknowledge_message(job.acknowledgement(job.tasks[1], number))
    assert job.status(number) == "finalizing"


def require_no_loss(job: AlignedJob, point: int) -> None:
    """Require another process to go on with what one has left, without a loss of a completed checkpoint."""
    completed = {c.checkpoint_id for c in rows(job) if c.status is CheckpointStatus.COMPLETED}
    job.lead()
    survivor = job.coordinator()
    assert completed <= is_loadable(job, survivor) | {1}, point
    for _ in range(3):
        job.pass_time(700)
        survivor.tick()
    assert {c.status.value for c in rows(job)} <= ENDED, point
    assert max(is_loadable(job, survivor), default=0) >= max(completed, default=0), point
    number = job.take(survivor).checkpoint_id
    assert is_loadable(job) == {number}, point
    ids = [c.checkpoint_id for c in rows(job)]
    assert ids == sorted(set(ids)), point


def rows(job: AlignedJob) -> tuple[Any, ...]:
    return job.jobs.describe(JOB).checkpoints


class SqlContract(AlignedContract):
    @pytest.fixture
    def job(self, engine: Engine, tmp_path: Path) -> AlignedJob:
        return on_database(engine, tmp_path)


class TestSqlite(OnSqlite, SqlContract):
    pass


class TestPostgres(OnPostgres, SqlContract):
    pass


class HttpContract(OverHttp, AlignedContract):
    @pytest.fixture
    def job(self, engine: Engine, tmp_path: Path, clock: ManualClock, rows: AlignedCheckpoints) -> AlignedJob:
        return on_database(engine, tmp_path, clock, rows)


class TestSqliteOverHttp(OnSqlite, HttpContract):
    pass


@pytest.mark.soak  # HTTP with SQLite and PostgreSQL without HTTP run in make test
class TestPostgresOverHttp(OnPostgres, HttpContract):
    pass
