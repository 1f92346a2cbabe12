"""
One Spark job over many increments, whose tasks commit their parts one by one.

A task writes its output or its state under names of its own, and then a small record of both. The driver lists the
records while the job runs. The first record of a part counts: any other one is of a task that Spark has started
again or twice, and its files are those of an attempt that failed.

The parts of an increment follow those of the one before it. An increment is complete when all parts up to one
of a later increment have a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CoordinatorError, StateCheckError
from airflow_provider_statecheck.spark.driver.session import TaggedJobs
from airflow_provider_statecheck.spark.stages.collecting import result_of
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL
from airflow_provider_statecheck.spark.stages.executor.split_task import RECORD_SUFFIX, SplitReport
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_POLL_SECONDS = 0.25

CompleteIncrement = tuple[int, list[TaskReport]]
"""Number of an increment in the job, and the reports of its parts."""


class SplitJob:
    """
    Runs a job of tasks that commit their parts.

    :param records: Directory of the records, which this job alone has.
    :param frame: The job; its rows are the records of its tasks.
    :param increments: Number of increments.
    """

    def __init__(
        self, storage: CheckpointStorage, records: str, jobs: TaggedJobs, frame: DataFrame, increments: int
    ) -> None:
        self._storage = storage
        self._records = records
        self._jobs = jobs
        self._frame = frame
        self._splits = Splits(increments)
        self._read: set[str] = set()

    def completed(self, require_running: Callable[[], None]) -> Iterator[list[CompleteIncrement]]:
        """
        Run the job, and yield each time the increments that have become complete, also if the job fails after them.

        The job is cancelled if the caller ends before it.

        :param require_running: Called again and again while the job runs; raises an error that ends it.
        """
        job = self._jobs.submit(self._frame)
        try:
            while not wait([job], timeout=_POLL_SECONDS).done:
                require_running()
                yield from self._newly_complete()
            yield from self._newly_complete()
            yield from self._rest(job)
        finally:
            self._end(job)
        # Records that cannot be deleted are orphans.
        with suppress(StateCheckError):
            self._storage.delete_directory(self._records)

    def _newly_complete(self) -> Iterator[list[CompleteIncrement]]:
        found = self._storage.list_files(self._records)
        names = {name for name in found if name.endswith(RECORD_SUFFIX)} - self._read
        self._read |= names
        records = (self._storage.read_bytes(f"{self._records}/{name}") for name in sorted(names))
        return self._added(map(SplitReport.decode, records))

    def _rest(self, job: Future[list[Any]]) -> Iterator[list[CompleteIncrement]]:
        rows = result_of(job, self._storage.base_uri)
        return self._added((SplitReport.decode(bytes(row[CONTROL])) for row in rows), is_ended=True)

    def _added(self, reports: Iterable[SplitReport], *, is_ended: bool = False) -> Iterator[list[CompleteIncrement]]:
        self._splits.add(reports)
        complete = list(self._splits.newly_complete(is_ended=is_ended))
        if complete:
            yield complete

    def _end(self, job: Future[list[Any]]) -> None:
        while not job.done():
            # A job that Spark is still planning cannot be cancelled yet.
            self._jobs.cancel()
            wait([job], timeout=_POLL_SECONDS)


class Splits:
    """
    The parts of a job that have a record.

    :param increments: Number of increments.
    """

    def __init__(self, increments: int) -> None:
        self._increments = increments
        self._by_part: dict[int, SplitReport] = {}
        self._reports: list[list[TaskReport]] = [[] for _ in range(increments)]
        self._next_part = 0
        self._next_increment = 0

    def add(self, reports: Iterable[SplitReport]) -> None:
        """Add records; those of parts that have one do not count."""
        for report in reports:
            self._by_part.setdefault(report.part, report)

    def newly_complete(self, *, is_ended: bool = False) -> Iterator[CompleteIncrement]:
        """
        Yield the increments that have become complete, in their order.

        :param is_ended: Whether the job has ended, so that all parts have a record.
        :raises CoordinatorError: if one of them has none.
        """
        first = self._next_increment
        while (found := self._by_part.get(self._next_part)) is not None:
            self._next_part += 1
            if found.increment is not None:
                self._next_increment = max(self._next_increment, found.increment)
                self._reports[found.increment].append(found.report)
        if is_ended:
            self._require_all()
            self._next_increment = self._increments
        for number in range(first, self._next_increment):
            yield number, self._reports[number]

    def _require_all(self) -> None:
        if self._next_part < len(self._by_part):
            raise CoordinatorError(
                f"Expected a record of part {self._next_part} of a job that has ended, found only those of "
                f"{sorted(self._by_part)[self._next_part :][:5]} and before it; retry the task."
            )
