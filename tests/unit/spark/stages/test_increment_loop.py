"""What is committed, confirmed and told when, around increments that need no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
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
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.stages.executor.node_run import StateCapture
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.sink_commits import SinkCommits
from airflow_provider_statecheck.spark.stages.stage_state import RestoredStageState, driver_state
from tests.messages import make_owner, make_savepoint_request, source_at
from tests.unit.maintenance.test_job_savepoints import SavedJob
from tests.unit.spark.stages.loop_without_spark import (
    Job,
    JobsWithoutSpark,
    LoopWithoutSpark,
    RecordedSink,
    numbers_in,
    one_output,
    open_sink,
    staged,
)
from tests.unit.written_stage import JOB, WrittenStage

MINUTES = 60.0
LIMIT_SECONDS = 60.0


def begun(stage: WrittenStage) -> StageAttempt:
    attempt = stage.attempt()
    attempt.restore()
    return attempt


def ask(stage: WrittenStage, attempt: StageAttempt, place: Path, kind: CheckpointType) -> None:
    stage.savepoints.request(make_savepoint_request(attempt.grant.attempt, target=f"file://{place}", kind=kind))


def stopped(stage: WrittenStage, place: Path, **loop: Any) -> tuple[StageAttempt, str]:
    """Let a stage stop with a savepoint; return its attempt and the pointer of the savepoint."""
    attempt = begun(stage)
    ask(stage, attempt, place, CheckpointType.SAVEPOINT_SUSPEND)
    with pytest.raises(StoppedWithSavepointError) as caught:
        LoopWithoutSpark(attempt, **{"sink": RecordedSink()} | loop).run(3)
    return attempt, caught.value.pointer


def failing_at(number: int, error: BaseException) -> Job:
    def job(increment: int, moment: StateCapture) -> Sequence[TaskReport]:
        if increment == number:
            raise error
        return one_output(increment, moment)

    return job


def restarted_from(stage: WrittenStage, pointer: str, job: str = JOB) -> StageAttempt:
    source, cleared = source_at(stage.storage, pointer), make_owner(clear_marker="4/0")
    return stage.attempt(job, owner=cleared, on_clear=OnClear.RESTART, restore_from=source)


def nothing_given(_: int, __: StateCapture) -> Sequence[TaskReport]:
    return [TaskReport(vertex=0, subtask=0)]


def test_each_increment_is_committed_with_its_checkpoint(stage: WrittenStage) -> None:
    attempt, sink = begun(stage), RecordedSink()
    LoopWithoutSpark(attempt, sink).run(3)
    assert sink.commits == [(1, [1]), (2, [2]), (3, [3])]
    attempt.finish(AttemptStatus.FINISHED)


def test_functions_are_told_the_id_of_the_checkpoint_that_holds_their_state(stage: WrittenStage) -> None:
    told = []

    def job(increment: int, moment: StateCapture) -> Sequence[TaskReport]:
        told.append((moment.checkpoint.checkpoint_id, moment.is_end_of_input))
        return one_output(increment, moment)

    LoopWithoutSpark(begun(stage), RecordedSink(), job=job, checkpoint_interval="1 h").run(3)
    assert told == [(0, False), (0, False), (1, True)]


def test_stage_that_stops_with_a_savepoint_has_committed_what_the_savepoint_goes_on_from(
    stage: WrittenStage, tmp_path: Path
) -> None:
    sink = RecordedSink()
    attempt, _ = stopped(stage, tmp_path / "savepoints", sink=sink)
    assert sink.commits == [(1, [1])]
    attempt.finish(AttemptStatus.FAILED)
    assert not begun(stage).grant.effects.commits


@pytest.mark.parametrize(("job", "own"), [(JOB, 1), ("another", None)], ids=["this stage", "another job"])
def test_savepoint_is_known_in_its_own_stage_alone_by_the_checkpoint_that_it_copies(
    stage: WrittenStage, tmp_path: Path, job: str, own: int | None
) -> None:
    attempt, pointer = stopped(stage, tmp_path / "savepoints")
    attempt.finish(AttemptStatus.FAILED)
    again = restarted_from(stage, pointer, job)
    parts = RestoredStageState(again, again.restore())
    assert parts.checkpoint_id is not None
    assert parts.checkpoint_id != parts.own_checkpoint_id == own


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000], ids=["empty", "half", "no text", "deep"])
def test_state_of_a_coordinator_that_is_no_json_is_corrupt(stage: WrittenStage, data: bytes) -> None:
    LoopWithoutSpark(begun(stage), RecordedSink()).run(1)
    attempt = stage.attempt()
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
def test_commits_of_another_form_are_corrupt(stage: WrittenStage, restored: Any) -> None:
    with pytest.raises(CorruptStateError, match="Expected the commits of a sink"):
        SinkCommits(None, begun(stage), restored)


def test_stage_that_began_again_can_end_although_an_earlier_try_left_a_commit_open(stage: WrittenStage) -> None:
    first = begun(stage)
    with pytest.raises(StorageError):
        LoopWithoutSpark(first, RecordedSink(error=StorageError("away"))).run(1)
    first.finish(AttemptStatus.FAILED)
    # Its source has changed: it begins with nothing, and nothing is what it gives.
    second = begun(stage)
    LoopWithoutSpark(second, RecordedSink(), job=nothing_given).run(2).end()
    second.finish(AttemptStatus.FINISHED)


def test_interval_begins_when_a_checkpoint_is_completed_and_not_an_increment_later(stage: WrittenStage) -> None:
    clock, told = [0.0], []

    def job(increment: int, moment: StateCapture) -> Sequence[TaskReport]:
        told.append(moment.checkpoint.checkpoint_id)
        clock[0] += 6 * MINUTES
        return one_output(increment, moment)

    attempt = begun(stage)
    LoopWithoutSpark(attempt, RecordedSink(), job=job, checkpoint_interval="5 min", monotonic=lambda: clock[0]).run(6)
    assert told == [0, 1, 0, 2, 0, 3]


def test_restart_from_a_savepoint_keeps_the_output_until_there_and_replaces_what_came_after(
    stage: WrittenStage, tmp_path: Path
) -> None:
    target = tmp_path / "output"
    attempt, sink = begun(stage), ParquetSink(str(target))
    open_sink(sink, attempt, RestoredStageState(attempt, None))
    asked: list[int] = []

    def job(increment: int, moment: StateCapture) -> Sequence[TaskReport]:
        if increment == 3 and not asked:
            asked.append(increment)
            ask(stage, attempt, tmp_path / "savepoints", CheckpointType.SAVEPOINT)
        return [TaskReport(vertex=0, subtask=0, committables=staged(sink, attempt, increment), rows=1)]

    LoopWithoutSpark(attempt, sink, job=job).run(4)
    attempt.finish(AttemptStatus.FINISHED)
    savepoint = next(c for c in stage.coordinator.describe(job_id_of(JOB)).checkpoints if c.properties.is_savepoint)
    again = restarted_from(stage, savepoint.location)
    restored, second = RestoredStageState(again, again.restore()), ParquetSink(str(target))
    open_sink(second, again, restored)
    second.commit(savepoint.checkpoint_id + 10, staged(second, again, 30))
    own = restored.own_checkpoint_id
    assert own in (2, 3)
    assert numbers_in(target) == [*range(1, own + 1), 30]


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
    assert [(job.members(key)["load"], [1])] == sink.commits


def test_loop_that_is_closed_does_not_wait_for_the_savepoint_of_its_job(tmp_path: Path) -> None:
    job = SavedJob(tmp_path)
    attempt = job.begin("load")
    job.request(kind=CheckpointType.SAVEPOINT_SUSPEND)
    job.stage.clock.advance(1)
    with pytest.raises(KeyboardInterrupt):
        LoopWithoutSpark(attempt, RecordedSink(), job=failing_at(2, KeyboardInterrupt())).run(3)
    attempt.finish(AttemptStatus.FAILED)


def test_stage_that_stopped_says_so_although_its_next_increment_failed(stage: WrittenStage, tmp_path: Path) -> None:
    stopped(stage, tmp_path / "savepoints", job=failing_at(2, RuntimeError("planned")))


def test_error_of_an_increment_is_raised_after_the_checkpoint_before_it_was_committed(stage: WrittenStage) -> None:
    sink = RecordedSink()
    with pytest.raises(RuntimeError, match="planned"):
        LoopWithoutSpark(begun(stage), sink, job=failing_at(2, RuntimeError("planned"))).run(3)
    assert sink.commits == [(1, [1])]


class JobsWithoutNumpy(JobsWithoutSpark):
    """Fails as Spark does if the Python of its executors lacks a package."""

    def collect(self, frame: Any) -> list[dict[str, bytes]]:
        raise RuntimeError("Job aborted\nModuleNotFoundError: No module named 'numpy'")


def test_package_that_the_executors_lack_is_named_with_what_to_do(stage: WrittenStage) -> None:
    with pytest.raises(EnvironmentNotReadyError, match="pip install numpy"):
        LoopWithoutSpark(begun(stage), RecordedSink(), jobs=JobsWithoutNumpy()).run(1)


def test_job_of_an_increment_is_cancelled_when_the_stage_has_to_stop(stage: WrittenStage, tmp_path: Path) -> None:
    jobs = JobsWithoutSpark()
    stopped(stage, tmp_path / "savepoints", job=_never_ending(jobs), jobs=jobs)


def test_job_of_an_increment_is_cancelled_when_the_commit_before_it_fails(stage: WrittenStage) -> None:
    jobs = JobsWithoutSpark()
    with pytest.raises(StorageError, match="target is gone"):
        LoopWithoutSpark(
            begun(stage), RecordedSink(error=StorageError("target is gone")), job=_never_ending(jobs), jobs=jobs
        ).run(3)


def _never_ending(jobs: JobsWithoutSpark) -> Job:
    def job(increment: int, moment: StateCapture) -> Sequence[TaskReport]:
        if increment == 2:
            assert jobs.cancelled.wait(LIMIT_SECONDS)
            raise RuntimeError("cancelled")
        return one_output(increment, moment)

    return job


def test_the_time_of_the_increment_is_no_part_of_its_checkpoints_duration(stage: WrittenStage) -> None:
    """The id is drawn before the increment, and the row is of that moment until the checkpoint has ended."""

    def slow_job(increment: int, moment: StateCapture) -> Sequence[TaskReport]:
        stage.clock.advance(600)
        return one_output(increment, moment)

    attempt = begun(stage)
    loop = LoopWithoutSpark(attempt, RecordedSink(), job=slow_job, monotonic=lambda: stage.clock.now().timestamp())
    loop.run(2)
    assert attempt.latest is not None
    assert attempt.latest.completed_at == attempt.latest.triggered_at
