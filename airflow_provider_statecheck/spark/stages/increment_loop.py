"""The increments of a stage: read, run, write the state; checkpoints complete meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.messages import PendingCheckpoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_interval import Pace
from airflow_provider_statecheck.spark.connectors.source import SizeUnit
from airflow_provider_statecheck.spark.driver.session import TaggedJobs
from airflow_provider_statecheck.spark.stages.broadcasts import Broadcasts
from airflow_provider_statecheck.spark.stages.collecting import collected
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL
from airflow_provider_statecheck.spark.stages.executor.node_run import StateCapture
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.increment_jobs import IncrementTasks
from airflow_provider_statecheck.spark.stages.increment_windows import IncrementQueue
from airflow_provider_statecheck.spark.stages.planning import PlannedVertex
from airflow_provider_statecheck.spark.stages.sink_commits import SinkCommits
from airflow_provider_statecheck.spark.stages.split_job import CompleteIncrement, SplitJob
from airflow_provider_statecheck.spark.stages.stage_checkpoints import StageCheckpoints
from airflow_provider_statecheck.spark.status_log import StageProgress
from airflow_provider_statecheck.storage.views.checkpoint_storages import OperatorDirectories

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from airflow_provider_statecheck.spark.connectors.source import Increment, SplitEnumerator
    from airflow_provider_statecheck.spark.stages.increment_windows import LoadedIncrement, Window

log = logging.getLogger(__name__)

_RECORDS = "splits"


class IncrementLoop:
    """
    Runs the increments of an attempt.

    Increments of functions without state, and of an aggregate that needs no earlier state, are computed in one Spark
    job, whose tasks commit their parts one by one; partial results are merged in a last job, at the end of the input.
    Any other increment is a job of its own. If a checkpoint fails, the job of the running increments is cancelled.

    :param pace: Decides which increments end with a checkpoint; the last one always does.
    :param restored_seconds: Time of the increments of this run before the restored checkpoint.
    :param planned: Returns the tasks for the rows of an increment: the given ones, or others if the rows have wider
        types.
    :param broadcasts: Sources of the rows that the tasks of the first increment see first.
    """

    def __init__(
        self,
        attempt: StageAttempt,
        enumerator: SplitEnumerator,
        tasks: IncrementTasks,
        jobs: TaggedJobs,
        commits: SinkCommits,
        pace: Pace,
        progress: StageProgress,
        monotonic: Callable[[], float],
        restored_seconds: float = 0.0,
        planned: Callable[[IncrementTasks, DataFrame], IncrementTasks] = lambda tasks, _: tasks,
        broadcasts: Broadcasts | None = None,
    ) -> None:
        self._attempt = attempt
        self._enumerator = enumerator
        self._queue = IncrementQueue(enumerator)
        self._tasks = tasks
        self._jobs = jobs
        self._planned = planned
        self._broadcasts = broadcasts or Broadcasts({})
        self._progress = progress
        attempt.work.rows_per_second = lambda: progress.rows_per_second
        self._monotonic = monotonic
        self._checkpoints = StageCheckpoints(
            attempt, enumerator, commits, self._broadcasts, pace, progress, monotonic, restored_seconds, jobs.cancel
        )
        self._increments = 0

    def run(self, first: Increment, frame: DataFrame) -> tuple[int, int]:
        """
        Run all increments.

        :param frame: The rows of the first increment.
        :return: Numbers of increments and of elements.
        """
        log.info("Stage %s: computing", self._attempt.registration.uid)
        rows = 0
        current: LoadedIncrement | None = (first, frame)
        while current is not None:
            following = self._queue.next()
            if following is not None and self._fits_one_job:
                window = self._queue.window(self._tasks, current, following)
                rows += self._run_window(window, current[1])
                current = window.next()
            else:
                with self._attempt.work.on(f"increment {self._increments + 1}"):
                    rows += self._run_increment(*current, is_end=following is None)
                current = self._queue.loaded(following)
            if current is not None:
                self._tasks = self._planned(self._tasks, current[1])
        self._checkpoints.wait()
        self._checkpoints.require_saved(self._tasks)
        self._progress.finished()
        self._checkpoints.costs.report()
        return self._increments, rows

    @property
    def _fits_one_job(self) -> bool:
        # The record of a partition counts before Spark knows whether it runs the task again.
        needs_no_state = self._tasks.adds_partials or self._tasks.maps_rows
        return needs_no_state and getattr(self._enumerator, "has_stable_partitions", False)

    def close(self) -> None:
        """Stop the checkpoint thread after its current checkpoint, even if that waits for a savepoint of the job."""
        self._checkpoints.close()

    def _run_increment(self, increment: Increment, frame: DataFrame, *, is_end: bool) -> int:
        self._checkpoints.require_success()
        begin, pending = self._monotonic(), self._checkpoints.begun(is_end=is_end)
        with self._checkpoint_errors_first():
            reports = self._reports(frame, _moment(pending, is_end=is_end))
        self._checkpoints.wait()
        self._save(reports, pending, is_end=is_end)
        rows = self._finish(increment, reports, self._monotonic() - begin)
        self._finish_broadcasts()
        if pending is not None:
            self._checkpoints.complete(pending, self._tasks, self._monotonic() - begin)
        return rows

    def _save(self, reports: Sequence[TaskReport], pending: PendingCheckpoint | None, *, is_end: bool) -> None:
        checkpoint_id = 0 if pending is None else pending.checkpoint_id
        self._tasks.states.update(reports, self._saved_uids(is_end=is_end), checkpoint_id)

    def _finish(self, increment: Increment, reports: Sequence[TaskReport], seconds: float) -> int:
        """Finish an increment in the state of the source, and return its number of rows."""
        self._checkpoints.add(reports, seconds)
        self._enumerator.require_unchanged(increment)
        self._enumerator.finish(increment)
        self._increments += 1
        rows = sum(report.rows for report in reports if report.vertex == 0)
        unit = SizeUnit.of(self._enumerator)
        share = f"{100 * self._checkpoints.costs.share:.1f} % of the time for checkpoints"
        self._progress.advance(unit.amount_of(increment), rows, total=unit.total, details=(share,))
        return rows

    def _finish_broadcasts(self) -> None:
        self._broadcasts.finish()
        if self._tasks.broadcast:
            self._tasks = replace(self._tasks, broadcast={})

    def _saved_uids(self, *, is_end: bool) -> list[list[str]]:
        # Results are read at the end only: until then, the state of their aggregates is that of the run before.
        vertices = self._tasks.vertices
        return [[each.uid for each in vertex.functions if is_end or not each.reads_results] for vertex in vertices]

    @contextmanager
    def _checkpoint_errors_first(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # An error of the checkpoint thread is the cause: it has cancelled the job, and decides whether the stage is
            # retried.
            ended = self._checkpoints.error
            if ended is not None and ended is not error:
                raise ended from error
            raise

    def _reports(self, frame: DataFrame, moment: StateCapture) -> list[TaskReport]:
        reports = self._run_job(frame, moment, is_woken=False)
        if not reports and (moment.is_end_of_input or self._tasks.broadcast):
            # Without rows no task ran, but functions must still process the end of the input, and their broadcast
            # input.
            reports = self._run_job(frame, moment, is_woken=True)
        return reports

    def _run_job(self, frame: DataFrame, moment: StateCapture, *, is_woken: bool) -> list[TaskReport]:
        job = self._tasks.job(frame, moment, is_woken=is_woken)
        rows = collected(self._jobs, job, self._attempt.storage.base_uri)
        reports = [TaskReport.decode(bytes(row[CONTROL])) for row in rows]
        require_all_subtasks(
            reports, self._tasks.vertices, self._tasks.states.parallelism, is_end=moment.is_end_of_input
        )
        self._tasks.combining.observe(reports)
        return reports

    def _run_window(self, window: Window, frame: DataFrame) -> int:
        """
        Run increments in one job, and at the end of the input a last one.

        :param frame: Rows with the columns of the source.
        :return: The number of elements.
        """
        rows, begin, count = 0, self._monotonic(), len(window.increments)
        with self._attempt.work.on(f"increments {self._increments + 1} to {self._increments + count}"):
            with self._checkpoint_errors_first():
                for complete in self._completed(window):
                    is_last = complete[-1][0] == count - 1
                    pending = self._pending(is_last=is_last, is_end=window.is_end)
                    rows += self._save_splits([(window.increments[n], each) for n, each in complete], begin, pending)
                    begin = self._monotonic()
            if window.is_end and not self._tasks.maps_rows:
                self._run_end(frame)
        return rows

    def _completed(self, window: Window) -> Iterable[list[CompleteIncrement]]:
        storage = self._attempt.storage
        records = OperatorDirectories(storage, self._attempt.grant.attempt).new_snapshot_uri(_RECORDS)
        job = SplitJob(storage, records, self._jobs, window.job(records), len(window.increments))
        return job.completed(self._checkpoints.require_success)

    def _pending(self, *, is_last: bool, is_end: bool) -> PendingCheckpoint | None:
        self._checkpoints.require_success()
        if not (is_last and is_end):
            return self._checkpoints.begun(waits=is_last)
        # After an aggregate, a last job ends with the checkpoint of the last increment.
        return self._checkpoints.begun(is_end=True) if self._tasks.maps_rows else None

    def _save_splits(
        self,
        complete: Sequence[tuple[Increment, Sequence[TaskReport]]],
        begin: float,
        pending: PendingCheckpoint | None,
    ) -> int:
        """Save increments that have become complete together, with one checkpoint; return their number of elements."""
        self._checkpoints.wait()
        reports = [report for _, of_increment in complete for report in of_increment]
        self._tasks.states.add_parts(reports, 0 if pending is None else pending.checkpoint_id)
        seconds = (self._monotonic() - begin) / len(complete)
        rows = sum(self._finish(increment, of_increment, seconds) for increment, of_increment in complete)
        if pending is not None:
            self._checkpoints.complete(pending, self._tasks, self._monotonic() - begin)
        return rows

    def _run_end(self, frame: DataFrame) -> None:
        """Let all functions process the end of the input, without further rows."""
        begin, pending = self._monotonic(), self._checkpoints.begun(is_end=True)
        with self._checkpoint_errors_first():
            reports = self._run_job(frame.limit(0), _moment(pending, is_end=True), is_woken=True)
        self._checkpoints.wait()
        self._save(reports, pending, is_end=True)
        self._checkpoints.add(reports, self._monotonic() - begin)
        if pending is not None:
            self._checkpoints.complete(pending, self._tasks, self._monotonic() - begin)


def _moment(pending: PendingCheckpoint | None, *, is_end: bool) -> StateCapture:
    if pending is None:
        checkpoint = CheckpointMetaData(0, datetime.now(UTC))
    else:
        checkpoint = CheckpointMetaData(pending.checkpoint_id, pending.triggered_at)
    return StateCapture(checkpoint=checkpoint, is_end_of_input=is_end)


def require_all_subtasks(
    reports: Iterable[TaskReport], vertices: Sequence[PlannedVertex], parallelism: int, *, is_end: bool = False
) -> None:
    """
    Require reports of all subtasks of a keyed vertex, or of none.

    Spark runs no subtask if it knows that there are no rows.

    :param is_end: Whether the input ends, which each subtask of some functions without a key must process.
    :raises CoordinatorError: if some subtasks are missing or reported twice.
    """
    reports = list(reports)
    for number, vertex in enumerate(vertices):
        found = sorted(report.subtask for report in reports if report.vertex == number)
        is_whole = vertex.key is not None or (is_end and vertex.ends_without_rows)
        if is_whole and found and found != list(range(parallelism)):
            place = f"after key_by{vertex.key.columns}" if vertex.key else "at the end of the input"
            raise CoordinatorError(
                f"Expected a report of each of the {parallelism} subtasks {place}, found those of {found}; turn off "
                "the Spark settings that coalesce partitions."
            )
