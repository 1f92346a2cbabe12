"""One job over many increments: what its tasks commit counts once, in order, and while the job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of, temporary_name
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL
from airflow_provider_statecheck.spark.stages.executor.split_task import SplitReport
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.split_job import CompleteIncrement, SplitJob, Splits
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import OperatorDirectories


def report(part: int, increment: int | None, rows: int = 1) -> SplitReport:
    return SplitReport(part=part, increment=increment, report=TaskReport(vertex=0, subtask=0, rows=rows))


def rows_of(found: Iterable[CompleteIncrement]) -> list[tuple[int, list[int]]]:
    return [(increment, [each.rows for each in reports]) for increment, reports in found]


def test_increment_is_complete_when_all_parts_up_to_one_of_a_later_increment_are_there() -> None:
    splits = Splits(3)
    splits.add([report(0, 0, 10), report(2, 1, 30)])
    assert rows_of(splits.newly_complete()) == []
    splits.add([report(1, 0, 20)])
    assert rows_of(splits.newly_complete()) == [(0, [10, 20])]
    splits.add([report(3, 1, 40)])
    assert rows_of(splits.newly_complete()) == []
    assert rows_of(splits.newly_complete(is_ended=True)) == [(1, [30, 40]), (2, [])]


def test_part_without_rows_belongs_to_any_increment() -> None:
    splits = Splits(3)
    splits.add([report(0, None), report(1, 0), report(2, None), report(3, 2)])
    assert rows_of(splits.newly_complete()) == [(0, [1]), (1, [])]
    assert rows_of(splits.newly_complete(is_ended=True)) == [(2, [1])]


def test_first_record_of_a_part_counts_and_later_ones_do_not() -> None:
    splits = Splits(2)
    splits.add([report(0, 0, 1), report(0, 0, 2), report(1, 1, 3)])
    assert rows_of(splits.newly_complete()) == [(0, [1])]
    splits.add([report(0, 0, 4), report(1, 1, 5)])
    assert rows_of(splits.newly_complete(is_ended=True)) == [(1, [3])]


def test_job_that_has_ended_without_the_record_of_a_part_is_an_error() -> None:
    splits = Splits(2)
    splits.add([report(0, 0), report(2, 1)])
    with pytest.raises(CoordinatorError, match="Expected a record of part 1"):
        list(splits.newly_complete(is_ended=True))


@dataclass
class ScriptedJob:
    """A job whose tasks do something each time that the driver looks."""

    folder: Path
    steps: Sequence[Callable[[ScriptedJob], object]] = ()
    rows: Future[Any] = field(default_factory=Future)
    is_cancelled: bool = False
    names: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.storage = CheckpointStorage.open(self.folder.as_uri())
        attempt = AttemptRef(job_id=job_id_of("job"), operator_id=operator_id_of("stage"), epoch=1)
        self.records = OperatorDirectories(self.storage, attempt).new_snapshot_uri("splits")
        self._left = iter(self.steps)

    def submit(self, frame: object) -> Future[Any]:
        return self.rows

    def cancel(self) -> None:
        self.is_cancelled = True
        self.rows.set_exception(RuntimeError("cancelled"))

    def look(self) -> None:
        next(self._left, ScriptedJob.end)(self)

    def commit(self, *reports: SplitReport) -> None:
        for each in reports:
            self.storage.write_bytes(f"{self.records}/{next(self.names)}.json", each.encode())

    def end(self, *reports: SplitReport) -> None:
        self.rows.set_result([{CONTROL: each.encode()} for each in reports])

    def run(self, increments: int) -> Iterator[list[CompleteIncrement]]:
        job: Any = self
        return SplitJob(self.storage, self.records, job, job, increments).completed(self.look)

    def in_turn(self, increments: int) -> list[CompleteIncrement]:
        return list(chain.from_iterable(self.run(increments)))


def test_increments_are_complete_while_the_job_runs(tmp_path: Path) -> None:
    job = ScriptedJob(tmp_path, [lambda job: job.commit(report(0, 0), report(1, 1))])
    found = job.run(2)
    assert rows_of(next(found)) == [(0, [1])]
    assert not job.rows.done()
    assert [rows_of(each) for each in found] == [[(1, [1])]]
    assert not job.storage.list_files(job.records)


def test_records_of_tasks_that_were_repeated_or_late_do_not_count(tmp_path: Path) -> None:
    steps = [
        lambda job: job.commit(report(0, 0, 1), report(0, 0, 2), report(1, 1, 3)),
        lambda job: job.commit(report(0, 0, 4)),
        lambda job: job.end(report(0, 0, 5), report(1, 1, 6), report(2, 1, 7)),
    ]
    found = rows_of(ScriptedJob(tmp_path, steps).in_turn(2))
    assert found == [(0, found[0][1]), (1, [3, 7])]
    assert found[0][1] in ([1], [2])


def test_record_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    def write(job: ScriptedJob) -> None:
        job.commit(report(0, 0))
        folder = Path(job.records.removeprefix("file://"))
        (folder / temporary_name("record.json")).write_bytes(b'{"part":')

    found = ScriptedJob(tmp_path, [write, lambda job: job.end(report(1, 1))]).in_turn(2)
    assert rows_of(found) == [(0, [1]), (1, [1])]


def test_what_was_complete_is_told_before_the_error_of_the_job(tmp_path: Path) -> None:
    def fail(job: ScriptedJob) -> None:
        job.commit(report(0, 0), report(1, 1), report(2, 2))
        job.rows.set_exception(ValueError("bad row"))

    found = ScriptedJob(tmp_path, [fail]).run(3)
    assert [number for number, _ in next(found)] == [0, 1], "they are complete together"
    with pytest.raises(ValueError, match="bad row"):
        next(found)


def test_job_is_cancelled_if_its_caller_ends_or_may_not_go_on(tmp_path: Path) -> None:
    job = ScriptedJob(tmp_path, [lambda job: job.commit(report(0, 0), report(1, 1))])
    found: Any = job.run(2)
    next(found)
    found.close()
    assert job.is_cancelled

    def refuse(_: ScriptedJob) -> None:
        raise PermissionError("a newer attempt")

    job = ScriptedJob(tmp_path / "other", [refuse])
    with pytest.raises(PermissionError):
        next(job.run(1))
    assert job.is_cancelled
