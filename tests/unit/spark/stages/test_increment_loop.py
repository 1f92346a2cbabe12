"""What is committed, confirmed and told when, around increments that need no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnClear
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    StoppedWithSavepointError,
    StorageError,
)
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink
from airflow_provider_statecheck.spark.sinks.sink import SinkContext, SinkTaskContext
from airflow_provider_statecheck.spark.stages.executor.operator_run import SnapshotMoment
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.increment_loop import SinkCommits
from airflow_provider_statecheck.spark.stages.stage_state import RestoredStageState, driver_state
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_owner, make_savepoint_request, source_at
from tests.unit.maintenance.test_job_savepoints import SavedJob
from tests.unit.spark.stages.loop_without_spark import Job, JobsWithoutSpark, LoopWithoutSpark, RecordedSink, one_output
from tests.unit.written_stage import JOB, WrittenStage

MINUTES = 60.0
LIMIT_SECONDS = 60.0
SCHEMA = pa.schema([("number", pa.int64())])


@pytest.fixture
def written(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(f"file://{tmp_path}/checkpoints"))


def begun(written: WrittenStage) -> StageAttempt:
    attempt = written.attempt()
    attempt.restore()
    return attempt


def ask_to_stop(written: WrittenStage, attempt: StageAttempt, place: Path) -> None:
    ask(written, attempt, place, CheckpointType.SAVEPOINT_SUSPEND)


def ask(written: WrittenStage, attempt: StageAttempt, place: Path, kind: CheckpointType) -> None:
    written.savepoints.request(make_savepoint_request(attempt.grant.attempt, target=f"file://{place}", kind=kind))


def opened_sink(target: Path, *, epoch: int, generation: int, restored: int | None) -> ParquetSink:
    sink = ParquetSink(str(target))
    sink.open(
        SinkContext(
            job_id=job_id_of(JOB),
            job_name=JOB,
            uid="aggregate/sink",
            operator_id="0" * 32,
            epoch=epoch,
            generation=generation,
            restored_checkpoint_id=restored,
            restored_epoch=None if restored is None else 1,
            is_fresh=restored is None,
            schema=SCHEMA,
        )
    )
    return sink


def staged(sink: ParquetSink, epoch: int, number: int) -> tuple[dict[str, Any], ...]:
    writer = sink.writer(SinkTaskContext(subtask=0, epoch=epoch, task_id=new_key(), schema=SCHEMA))
    writer.write(pa.table({"number": [number]}, schema=SCHEMA))
    return tuple(writer.prepare_commit())


def written_rows(target: Path) -> list[int]:
    return sorted(row["number"] for file in target.glob("*.parquet") for row in pq.read_table(file).to_pylist())


def restarted_from(written: WrittenStage, pointer: str, job: str = JOB) -> StageAttempt:
    source, cleared = source_at(written.storage, pointer), make_owner(clear_marker="4/0")
    return written.attempt(job, owner=cleared, on_clear=OnClear.RESTART, restore_from=source)


def nothing_given(_: int, __: SnapshotMoment) -> Sequence[TaskReport]:
    return [TaskReport(vertex=0, subtask=0)]


def test_each_increment_is_committed_with_its_checkpoint(written: WrittenStage) -> None:
    attempt, sink = begun(written), RecordedSink()
    LoopWithoutSpark(attempt, sink).run(3)
    assert sink.commits == [(1, [1]), (2, [2]), (3, [3])]
    attempt.finish(AttemptStatus.FINISHED)


def test_functions_are_told_the_id_of_the_checkpoint_that_holds_their_state(written: WrittenStage) -> None:
    told = []

    def job(increment: int, moment: SnapshotMoment) -> Sequence[TaskReport]:
        told.append((moment.checkpoint.checkpoint_id, moment.is_end_of_input))
        return one_output(increment, moment)

    LoopWithoutSpark(begun(written), RecordedSink(), job=job, checkpoint_interval="1 h").run(3)
    assert told == [(0, False), (0, False), (1, True)]


def test_stage_that_stops_with_a_savepoint_has_committed_what_the_savepoint_goes_on_from(
    written: WrittenStage, tmp_path: Path
) -> None:
    attempt, sink = begun(written), RecordedSink()
    ask_to_stop(written, attempt, tmp_path / "savepoints")
    with pytest.raises(StoppedWithSavepointError):
        LoopWithoutSpark(attempt, sink).run(3)
    assert sink.commits == [(1, [1])]
    attempt.finish(AttemptStatus.FAILED)
    assert not begun(written).grant.effects.commits


def test_savepoint_of_this_stage_is_known_by_the_checkpoint_that_it_copies(
    written: WrittenStage, tmp_path: Path
) -> None:
    attempt = begun(written)
    ask_to_stop(written, attempt, tmp_path / "savepoints")
    with pytest.raises(StoppedWithSavepointError) as stopped:
        LoopWithoutSpark(attempt, RecordedSink()).run(3)
    attempt.finish(AttemptStatus.FAILED)
    again = restarted_from(written, stopped.value.pointer)
    parts = RestoredStageState(again, again.restore())
    assert parts.checkpoint_id != parts.own_checkpoint_id == 1


def test_savepoint_of_another_job_is_none_of_the_checkpoints_here(written: WrittenStage, tmp_path: Path) -> None:
    attempt = begun(written)
    ask_to_stop(written, attempt, tmp_path / "savepoints")
    with pytest.raises(StoppedWithSavepointError) as stopped:
        LoopWithoutSpark(attempt, RecordedSink()).run(3)
    other = restarted_from(written, stopped.value.pointer, job="another")
    parts = RestoredStageState(other, other.restore())
    assert (parts.own_checkpoint_id, parts.checkpoint_id) == (None, 1)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000], ids=["empty", "half", "no text", "deep"])
def test_state_of_a_coordinator_that_is_no_json_is_corrupt(written: WrittenStage, data: bytes) -> None:
    LoopWithoutSpark(begun(written), RecordedSink()).run(1)
    attempt = written.attempt()
    restored = attempt.restore()
    assert restored is not None
    states = tuple(
        replace(
            driver_state(f"{restored.document.uid}/{uid}", None), coordinator_state=ByteStreamStateHandle("1", data)
        )
        for uid in ("source", "sink", "function")
    )
    parts = RestoredStageState(attempt, replace(restored, document=replace(restored.document, operator_states=states)))
    for read in (lambda: parts.source, lambda: parts.open_commits, lambda: parts.schemas_of(parts.functions[0])):
        with pytest.raises(CorruptStateError, match="restore another checkpoint"):
            read()


@pytest.mark.parametrize("restored", ["open", [1], {"one": []}, {"1": 1}])
def test_commits_of_another_form_are_corrupt(written: WrittenStage, restored: Any) -> None:
    with pytest.raises(CorruptStateError, match="Expected the commits of a sink"):
        SinkCommits(None, begun(written), restored)


def test_stage_that_began_again_can_end_although_an_earlier_try_left_a_commit_open(written: WrittenStage) -> None:
    first = begun(written)
    with pytest.raises(StorageError):
        LoopWithoutSpark(first, RecordedSink(error=StorageError("away"))).run(1)
    first.finish(AttemptStatus.FAILED)
    # Its source has changed: it begins with nothing, and nothing is what it gives.
    second = begun(written)
    LoopWithoutSpark(second, RecordedSink(), job=nothing_given).run(2).end()
    second.finish(AttemptStatus.FINISHED)


def test_interval_begins_when_a_checkpoint_is_completed_and_not_an_increment_later(written: WrittenStage) -> None:
    clock, told = [0.0], []

    def job(increment: int, moment: SnapshotMoment) -> Sequence[TaskReport]:
        told.append(moment.checkpoint.checkpoint_id)
        clock[0] += 6 * MINUTES
        return one_output(increment, moment)

    attempt = begun(written)
    LoopWithoutSpark(attempt, RecordedSink(), job=job, checkpoint_interval="5 min", monotonic=lambda: clock[0]).run(6)
    assert told == [0, 1, 0, 2, 0, 3]


def test_restart_from_a_savepoint_keeps_the_output_until_there_and_replaces_what_came_after(
    written: WrittenStage, tmp_path: Path
) -> None:
    target = tmp_path / "output"
    attempt, sink = begun(written), opened_sink(target, epoch=1, generation=1, restored=None)
    asked: list[int] = []

    def job(increment: int, moment: SnapshotMoment) -> Sequence[TaskReport]:
        if increment == 3 and not asked:
            asked.append(increment)
            ask(written, attempt, tmp_path / "savepoints", CheckpointType.SAVEPOINT)
        return [TaskReport(vertex=0, subtask=0, committables=staged(sink, 1, increment), rows=1)]

    LoopWithoutSpark(attempt, sink, job=job).run(4)
    attempt.finish(AttemptStatus.FINISHED)
    savepoint = next(c for c in written.coordinator.describe(job_id_of(JOB)).checkpoints if c.properties.is_savepoint)
    again = restarted_from(written, savepoint.location)
    own = RestoredStageState(again, again.restore()).own_checkpoint_id
    sink = opened_sink(target, epoch=2, generation=2, restored=own)
    sink.commit(savepoint.checkpoint_id + 10, staged(sink, 2, 30))
    kept = written_rows(target)
    assert kept == [*range(1, (own or 0) + 1), 30]
    assert own in (2, 3)


def test_stage_waits_for_the_savepoint_with_which_its_job_stops_after_its_commit(tmp_path: Path) -> None:
    job, sink, jobs = SavedJob(tmp_path), RecordedSink(), JobsWithoutSpark()
    committed: list[int] = []

    def take_savepoint(_: float) -> None:
        committed.append(len(sink.commits))
        job.serve()

    attempt = job.begin("load", driver={"pause": take_savepoint})
    key = job.request(kind=CheckpointType.SAVEPOINT_SUSPEND)
    job.stage.clock.advance(1)
    with pytest.raises(StoppedWithSavepointError):
        # The next increment runs meanwhile.
        LoopWithoutSpark(attempt, sink, job=_never_ending(jobs), jobs=jobs).run(3)
    assert committed == [1]
    assert [(job.parts(key)["load"], [1])] == sink.commits


def test_loop_that_is_closed_does_not_wait_for_the_savepoint_of_its_job(tmp_path: Path) -> None:
    job = SavedJob(tmp_path)
    attempt = job.begin("load")
    job.request(kind=CheckpointType.SAVEPOINT_SUSPEND)
    job.stage.clock.advance(1)

    def interrupted(increment: int, moment: SnapshotMoment) -> Sequence[TaskReport]:
        if increment == 2:
            raise KeyboardInterrupt
        return one_output(increment, moment)

    with pytest.raises(KeyboardInterrupt):
        LoopWithoutSpark(attempt, RecordedSink(), job=interrupted).run(3)
    attempt.finish(AttemptStatus.FAILED)


def test_stage_that_stopped_says_so_although_its_next_increment_failed(written: WrittenStage, tmp_path: Path) -> None:
    attempt = begun(written)
    ask_to_stop(written, attempt, tmp_path / "savepoints")

    def job(increment: int, moment: SnapshotMoment) -> Sequence[TaskReport]:
        if increment == 2:
            raise RuntimeError("planned")
        return one_output(increment, moment)

    with pytest.raises(StoppedWithSavepointError):
        LoopWithoutSpark(attempt, RecordedSink(), job=job).run(3)


def test_error_of_an_increment_is_raised_after_the_checkpoint_before_it_was_committed(written: WrittenStage) -> None:
    sink = RecordedSink()

    def job(increment: int, moment: SnapshotMoment) -> Sequence[TaskReport]:
        if increment == 2:
            raise RuntimeError("planned")
        return one_output(increment, moment)

    with pytest.raises(RuntimeError, match="planned"):
        LoopWithoutSpark(begun(written), sink, job=job).run(3)
    assert sink.commits == [(1, [1])]


class JobsWithoutNumpy(JobsWithoutSpark):
    """Fails as Spark does if the Python of its executors lacks a package."""

    def collect(self, frame: Any) -> list[dict[str, bytes]]:
        raise RuntimeError("Job aborted\nModuleNotFoundError: No module named 'numpy'")


def test_package_that_the_executors_lack_is_named_with_what_to_do(written: WrittenStage) -> None:
    with pytest.raises(EnvironmentNotReadyError, match="pip install numpy"):
        LoopWithoutSpark(begun(written), RecordedSink(), jobs=JobsWithoutNumpy()).run(1)


def test_job_of_an_increment_is_cancelled_when_the_stage_has_to_stop(written: WrittenStage, tmp_path: Path) -> None:
    attempt, jobs = begun(written), JobsWithoutSpark()
    ask_to_stop(written, attempt, tmp_path / "savepoints")
    with pytest.raises(StoppedWithSavepointError):
        LoopWithoutSpark(attempt, RecordedSink(), job=_never_ending(jobs), jobs=jobs).run(3)


def test_job_of_an_increment_is_cancelled_when_the_commit_before_it_fails(written: WrittenStage) -> None:
    jobs = JobsWithoutSpark()
    with pytest.raises(StorageError, match="target is gone"):
        LoopWithoutSpark(
            begun(written), RecordedSink(error=StorageError("target is gone")), job=_never_ending(jobs), jobs=jobs
        ).run(3)


def _never_ending(jobs: JobsWithoutSpark) -> Job:
    def job(increment: int, moment: SnapshotMoment) -> Sequence[TaskReport]:
        if increment == 2:
            assert jobs.cancelled.wait(LIMIT_SECONDS)
            raise RuntimeError("cancelled")
        return one_output(increment, moment)

    return job


def test_the_time_of_the_increment_is_no_part_of_its_checkpoints_duration(written: WrittenStage) -> None:
    """The id is drawn before the increment, and the row is of that moment until the checkpoint has ended."""

    def slow_job(increment: int, moment: SnapshotMoment) -> Sequence[TaskReport]:
        written.clock.advance(600)
        return one_output(increment, moment)

    attempt = begun(written)
    loop = LoopWithoutSpark(attempt, RecordedSink(), job=slow_job, monotonic=lambda: written.clock.now().timestamp())
    loop.run(2)
    assert attempt.latest is not None
    assert attempt.latest.completed_at == attempt.latest.triggered_at
