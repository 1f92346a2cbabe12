"""With which state a run starts again because its source has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.transitions import mark_subsumed
from airflow_provider_statecheck.exceptions import NoRestorableCheckpointError, SourceChangedError
from airflow_provider_statecheck.maintenance.recover import JobRecovery, Recoveries
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.connectors.files.source import JsonSource
from airflow_provider_statecheck.spark.stages.stage_state import RestoredStageState, driver_state
from airflow_provider_statecheck.spark.stages.starting import StageStart, start_of
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, RunValues
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_owner
from tests.unit.written_stage import JOB, WrittenStage


class FileStage:
    """A stage without Spark that reads the files of a directory, one for each checkpoint, in run after run."""

    def __init__(self, stage: WrittenStage, folder: Path) -> None:
        self.stage = stage
        self.job = JOB
        self.folder = folder
        folder.mkdir()

    def write(self, *names: str, text: str = "{}") -> None:
        for name in names:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def run(self, run: str, files: int = 100, *, on_change: str = "restart") -> list[str]:
        """Run a try that fails after some files, and return the files whose rows its state then has."""
        owner = make_owner(run_key=run, run_id=run, airflow=(("dag_id", "dag"),))
        attempt = self.stage.attempt(self.job, owner=owner, num_retained=2, retained_runs=1)
        try:
            start = self._start(attempt, on_change)
            return self._read(attempt, start, files)
        except Exception:
            attempt.finish(AttemptStatus.FAILED)
            raise

    def _start(self, attempt: StageAttempt, on_change: str) -> StageStart:
        source = JsonSource(self.folder, schema="id bigint", files_per_increment=1, on_change=on_change)

        def opened(restored: RestoredStageState, *, is_new_run: bool) -> Any:
            return source.open(None, restored.source, new_run=is_new_run)  # type: ignore[arg-type]

        start = start_of(attempt, source, opened)
        is_empty = start.state.checkpoint_id is None
        attempt.confirm_restore(start.loaded, starts_over=is_empty, restarted_run=start.restarted_run)
        return start

    def _read(self, attempt: StageAttempt, start: StageStart, files: int) -> list[str]:
        read = [] if start.state.checkpoint_id is None else list(start.loaded.state["read"])  # type: ignore[union-attr]
        increments = iter(start.enumerator.next_increment, None)
        for increment, _ in zip(increments, range(files), strict=False):
            start.enumerator.finish(increment)
            read += [Path(split.split_id).relative_to(f"file:{self.folder}").as_posix() for split in increment.splits]
            self._take(attempt, start, read)
        is_half_way = start.enumerator.finished_splits < start.enumerator.total_splits
        attempt.finish(AttemptStatus.FAILED if is_half_way else AttemptStatus.FINISHED)
        return read

    def _take(self, attempt: StageAttempt, start: StageStart, read: list[str]) -> None:
        values = encode(RunValues(run=attempt.registration.owner.run_key))
        source = driver_state(f"{attempt.registration.uid}/source", start.enumerator.snapshot())
        content = CheckpointContent(state={STAGE: values, "read": read}, operator_states=(source,))
        assert attempt.take_checkpoint(content) is not None

    def completed(self) -> list[CheckpointRecord]:
        return [c for c in self.stage.coordinator.describe(job_id_of(JOB)).checkpoints if c.is_restorable]

    def rewind(self, run: str) -> None:
        """Rewind the job to before a run."""
        JobRewinding(self.stage.store, UnknownLiveness()).rewind(RewindJob(job_id=job_id_of(JOB), run_key=run))


FIRST, SECOND, THIRD = "2026-01-01", "2026-01-02", "2026-01-03"


@pytest.fixture
def files(stage: WrittenStage, tmp_path: Path) -> FileStage:
    return FileStage(stage, tmp_path / "in")


def half_way(files: FileStage) -> None:
    """Let the first run end, and the second one fail after one of its two files."""
    files.write("a")
    assert files.run(FIRST) == ["a"]
    files.write("b", "c")
    assert files.run(SECOND, 1) == ["a", "b"]


@pytest.mark.parametrize("is_archived", [False, True])
def test_run_that_starts_again_keeps_the_rows_of_finished_runs(files: FileStage, is_archived: bool) -> None:
    half_way(files)
    if is_archived:
        (files.folder / "a").unlink()
    files.write("c", text="{} {}")
    assert files.run(SECOND) == ["a", "b", "c"]


def test_first_run_of_a_job_starts_again_without_state(files: FileStage) -> None:
    files.write("a", "b")
    files.run(FIRST, 1)
    files.write("a", text="{} {}")
    assert files.run(FIRST) == ["a", "b"]


@pytest.mark.parametrize("following", [FIRST, SECOND])
def test_no_try_restores_what_the_first_run_has_given_up(files: FileStage, following: str) -> None:
    files.write("a", "b")
    files.run(FIRST, 1)
    (files.folder / "a").unlink()
    assert files.run(FIRST, 0) == [], "the driver died before its first checkpoint"
    assert files.run(following, on_change="ignore") == ["b"]


def test_no_try_restores_what_a_run_that_starts_again_has_given_up(files: FileStage) -> None:
    half_way(files)
    files.write("c", text="{} {}")
    assert files.run(SECOND, 0) == ["a"], "the driver died before its first checkpoint"
    assert files.run(SECOND, on_change="fail") == ["a", "b", "c"]


@pytest.mark.parametrize("change", ["written anew", "replaced"])
def test_next_run_after_one_that_stopped_half_way_is_helped_by_the_remedy_that_it_is_told(
    files: FileStage, change: str
) -> None:
    half_way(files)
    files.write("c" if change == "written anew" else "d", text="{} {}")
    if change == "replaced":
        (files.folder / "c").unlink()
    with pytest.raises(SourceChangedError, match=r"c (changed|vanished).*set on_change to 'restart'"):
        files.run(THIRD, on_change="fail")
    assert files.run(THIRD) == ["a", "b", "c" if change == "written anew" else "d"]


def test_next_run_after_a_first_one_that_stopped_half_way_starts_without_state(files: FileStage) -> None:
    files.write("a", "b")
    files.run(FIRST, 1)
    files.write("b", text="{} {}")
    assert files.run(SECOND) == ["a", "b"]


def test_run_after_those_that_started_over_and_stopped_half_way_starts_over_too(files: FileStage) -> None:
    files.write("a", "b", "c", "d")
    files.run(FIRST, 1)
    files.write("a", text="{} {}")
    assert files.run(SECOND, 1) == ["a"]
    assert files.run(THIRD, 2) == ["a", "b", "c"]
    files.write("a", text="{} {} {}")
    assert files.run("2026-01-04") == ["a", "b", "c", "d"]


def recovered(files: FileStage) -> FileStage:
    """Return the stage with rows that were recovered from its files."""
    stage = WrittenStage(files.stage.storage)
    recoveries = Recoveries(JobRecovery(stage.store), CheckpointStorage.open)
    [job] = recoveries.recover(stage.storage.base_uri)
    assert (job.is_recovered, job.problems) == (True, ())
    files.stage = stage
    return files


@pytest.mark.parametrize("run", [SECOND, THIRD])
@pytest.mark.parametrize("is_retained", [False, True])
def test_no_run_starts_over_after_a_recovery_because_earlier_runs_are_unknown(
    files: FileStage, run: str, is_retained: bool
) -> None:
    half_way(files)
    for each in files.completed():
        if each.run_key == FIRST and not is_retained:
            files.stage.storage.delete_directory(each.location)
    again = recovered(files)
    files.write("c", text="{} {}")
    with pytest.raises(NoRestorableCheckpointError, match=r"before the recovered ones.*on_change='ignore'"):
        again.run(run)
    assert again.run(run, on_change="ignore")[:2] == ["a", "b"], "the state of all runs is still there"


def test_a_job_of_one_run_starts_over_after_a_recovery_because_there_is_no_earlier_run(files: FileStage) -> None:
    files.job = f"dag/{FIRST}"
    files.write("a", "b", "c")
    assert files.run(FIRST, 1) == ["a"]
    again = recovered(files)
    files.write("a", text="{} {}")
    assert again.run(FIRST) == ["a", "b", "c"]


def test_file_that_a_run_read_before_it_stopped_half_way_is_not_lost(files: FileStage) -> None:
    half_way(files)
    files.write("c", text="{} {}")
    (files.folder / "b").unlink()
    with pytest.raises(SourceChangedError, match=r"/b, which it had read, vanished. Restore these files"):
        files.run(THIRD)
    files.write("b")
    assert files.run(THIRD) == ["a", "b", "c"]


@pytest.mark.parametrize("on_change", ["fail", "restart"])
def test_change_of_what_a_finished_run_has_read_is_told_with_a_remedy_that_helps(
    files: FileStage, on_change: str
) -> None:
    files.write("a")
    files.run(FIRST)
    files.write("b")
    files.run(SECOND)
    files.write("b", text="{} {}")
    files.write("c")
    with pytest.raises(SourceChangedError, match=r"/b changed.*rewind the job to before the run that read it"):
        files.run(THIRD, on_change=on_change)
    files.rewind(SECOND)
    assert files.run(SECOND, on_change=on_change) == ["a", "b", "c"]


def test_run_whose_beginning_is_not_retained_does_not_start_again_without_state(files: FileStage) -> None:
    half_way(files)
    (first,) = (c for c in files.completed() if c.run_key == FIRST)
    with files.stage.store.transaction(first.job_id) as tx:
        mark_subsumed(tx, first)
    files.write("c", text="{} {}")
    with pytest.raises(NoRestorableCheckpointError, match=f"before run '{SECOND}'.*none retained"):
        files.run(SECOND)


@pytest.mark.parametrize("is_rewound", [True, False])
def test_repaired_day_is_told_and_counts_once_after_each_remedy(files: FileStage, is_rewound: bool) -> None:
    files.write("day=1/x")
    files.run(FIRST)
    files.write("day=2/x")
    files.run(SECOND)
    (files.folder / "day=2/x").unlink()
    files.write("day=2/y", "day=3/x")
    for on_change in ("fail", "restart"):
        with pytest.raises(
            SourceChangedError, match=r"day=2 \(1 vanished, such as x; 1 appeared, such as y\).*rewind the job"
        ):
            files.run(THIRD, on_change=on_change)
    if is_rewound:
        files.rewind(SECOND)
        assert files.run(SECOND) == ["day=1/x", "day=2/y", "day=3/x"]
    else:
        assert files.run(THIRD, on_change="ignore") == ["day=1/x", "day=2/x", "day=3/x"]


def test_day_that_was_repaired_after_a_run_read_it_half_way_is_read_again(files: FileStage) -> None:
    files.write("day=1/x")
    files.run(FIRST)
    files.write("day=2/x", "day=3/x")
    files.run(SECOND, 1)
    (files.folder / "day=2/x").unlink()
    files.write("day=2/y")
    with pytest.raises(SourceChangedError, match=r"day=2 .*set on_change to 'restart'"):
        files.run(THIRD, on_change="fail")
    assert files.run(THIRD) == ["day=1/x", "day=2/y", "day=3/x"]
