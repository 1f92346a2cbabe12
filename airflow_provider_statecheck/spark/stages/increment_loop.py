"""The increment loop: read, run, snapshot, acknowledge, commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.messages import PendingCheckpoint
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, CoordinatorError, StoppedWithSavepointError
from airflow_provider_statecheck.spark.attempt import CheckpointContent, StageAttempt
from airflow_provider_statecheck.spark.costs.pacing import Pace
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL
from airflow_provider_statecheck.spark.stages.executor.task_control import SnapshotMoment, TaskReport
from airflow_provider_statecheck.spark.stages.increment_jobs import IncrementJobs, IncrementTasks, increment_frame
from airflow_provider_statecheck.spark.stages.planning import PlannedVertex
from airflow_provider_statecheck.spark.stages.stage_state import SINK, SOURCE, STATE_KEY, StageStates, single_state
from airflow_provider_statecheck.spark.status_log import StageProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from airflow_provider_statecheck.spark.sinks.sink import Sink
    from airflow_provider_statecheck.spark.sources.source import Increment, SplitEnumerator


def require_all_subtasks(reports: Iterable[TaskReport], vertices: Sequence[PlannedVertex], parallelism: int) -> None:
    """
    Refuse the reports of an increment in which Spark ran some subtasks of a keyed vertex and not others.

    Spark runs none where it knows that there are no rows.

    :raises CoordinatorError: naming the subtasks that are missing, or that reported twice.
    """
    reports = list(reports)
    for number, vertex in enumerate(vertices):
        found = sorted(report.subtask for report in reports if report.vertex == number)
        if vertex.key is not None and found and found != list(range(parallelism)):
            raise CoordinatorError(
                f"Expected a report of each of the {parallelism} subtasks behind key_by{vertex.key.columns}, found those of "
                f"{found}; Spark changed the number of partitions, so turn off what coalesces them."
            )


Committable = Mapping[str, Any]


class SinkCommits:
    """
    Keeps committables by the checkpoint that they belong to, and commits those of completed ones, oldest first.

    :param sink: ``None`` for a stage without one; then there is nothing to commit ever.
    :param attempt: The registered try.
    :param restored: What :meth:`encode` gave.
    """

    def __init__(self, sink: Sink | None, attempt: StageAttempt, restored: Any = None) -> None:
        self._sink = sink
        self._attempt = attempt
        self._staged: list[Committable] = []
        self._open: dict[int, list[Committable]] = {int(n): list(each) for n, each in (restored or {}).items()}

    def stage(self, committables: Iterable[Committable]) -> None:
        """Take what the writers of an increment gave; it belongs to the next checkpoint."""
        self._staged.extend(committables)

    def assign(self, checkpoint_id: int) -> None:
        """
        Let a checkpoint have what was staged since the one before.

        It stays that checkpoint's whatever becomes of it: one that seems to have failed may be completed, and then both it
        and the next one name the same output in the same way.
        """
        if self._staged:
            self._open[checkpoint_id] = self._staged
            self._staged = []

    def encode(self) -> dict[str, Any]:
        """Return what is open as JSON."""
        return {str(checkpoint_id): list(each) for checkpoint_id, each in sorted(self._open.items())}

    @property
    def has_open(self) -> bool:
        """Tell whether anything of a checkpoint waits for its commit."""
        return bool(self._open)

    def commit(self, completed: int) -> None:
        """
        Commit all that is open, oldest first, and confirm that.

        :param completed: The checkpoint that holds it, which is complete.
        :raises StateCheckError: if the sink fails; what is open stays open.
        """
        for checkpoint_id in sorted(self._open):
            if self._sink is not None:
                self._sink.commit(checkpoint_id, self._open[checkpoint_id])
        self._attempt.confirm_commits((completed,))
        self._open = {}

    def end(self) -> None:
        """
        Confirm what earlier tries left open and this one did not go on from: the sink has replaced it.

        :raises StateCheckError: if the coordinator does not answer.
        """
        latest = self._attempt.latest
        if self._attempt.grant.effects.commits and latest is not None and not self._open:
            self._attempt.confirm_commits((latest.checkpoint_id,))


def total_of(enumerator: SplitEnumerator) -> int:
    """Return how much there is."""
    return enumerator.total_splits if enumerator.total_bytes is None else enumerator.total_bytes


def finished_of(enumerator: SplitEnumerator) -> int:
    """Return how much of it is read."""
    known = enumerator.total_bytes is not None and enumerator.finished_bytes is not None
    return (enumerator.finished_bytes or 0) if known else enumerator.finished_splits


def amount_of(increment: Increment) -> int:
    """Return how much an increment reads."""
    return len(increment.splits) if increment.size_bytes is None else increment.size_bytes


log = logging.getLogger(__name__)

LONGEST_INCREMENT_SECONDS = 7 * 24 * 3600.0
_LAST_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A checkpoint whose content is settled, for the thread that completes it."""

    pending: PendingCheckpoint
    content: CheckpointContent


class IncrementLoop:
    """
    Works through the increments of an attempt.

    Writing the metadata, acknowledging and committing happen in a thread of their own, so that the next increment need not
    wait for them. A checkpoint is completed only after the one before it, and what it holds does not depend on whether that
    one was. Where that thread finds that the stage has to end, the job of the next increment is cancelled.

    :param tasks: Makes the tasks of each increment.
    :param jobs: Runs them.
    :param pace: How soon after a checkpoint the next one is taken; the last increment does not wait.
    :param progress: Tells how far the stage is.
    :param run_key: Of the run whose input this is.
    :param monotonic: The clock for durations, in seconds.
    """

    def __init__(
        self,
        attempt: StageAttempt,
        enumerator: SplitEnumerator,
        vertices: Sequence[PlannedVertex],
        tasks: IncrementTasks,
        jobs: IncrementJobs,
        states: StageStates,
        commits: SinkCommits,
        pace: Pace,
        progress: StageProgress,
        run_key: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._attempt = attempt
        self._enumerator = enumerator
        self._vertices = vertices
        self._tasks = tasks
        self._jobs = jobs
        self._states = states
        self._commits = commits
        self._pace = pace
        self._progress = progress
        self._run_key = run_key
        self._monotonic = monotonic
        self._uid = attempt.registration.uid
        self._completing = ThreadPoolExecutor(1, thread_name_prefix="statecheck-checkpoint")
        self._completion: Future[None] | None = None
        self._unsaved_bytes = 0
        self._cost_seconds = 0.0
        self._is_saved = False
        """Whether the last completed checkpoint holds the last increment."""

    def run(self, first: Increment, frame: DataFrame) -> tuple[int, int]:
        """
        Run all increments.

        :param frame: The rows of the first one.
        :return: How many increments and elements there were.
        """
        increments, rows = 0, 0
        current: Increment | None = first
        while current is not None:
            following = self._enumerator.next_increment()
            rows += self._run_increment(current, frame, is_end=following is None)
            increments += 1
            current = following
            if current is not None:
                frame = self._enumerator.load(current)
        self._wait()
        self._require_saved()
        self._progress.finished()
        return increments, rows

    def close(self) -> None:
        """End the thread, after what it has begun."""
        self._completing.shutdown(wait=True)

    def _run_increment(self, increment: Increment, frame: DataFrame, *, is_end: bool) -> int:
        if self._completion is not None and self._completion.done():
            self._wait()
        pending = self._attempt.begin_checkpoint(LONGEST_INCREMENT_SECONDS) if is_end or self._pace.allows() else None
        begin, moment = self._monotonic(), self._moment(pending, is_end=is_end)
        reports = self._reports_unless_ended(frame, moment)
        self._wait()
        uids = [[operator.uid for operator in vertex.operators] for vertex in self._vertices]
        self._states.update(reports, uids, moment.checkpoint_id)
        self._commits.stage(c for report in reports for c in report.committables)
        self._unsaved_bytes += sum(report.new_bytes for report in reports)
        self._enumerator.require_unchanged(increment)
        self._enumerator.finish(increment)
        rows = sum(report.rows for report in reports if report.vertex == 0)
        self._progress.advance(amount_of(increment), rows, total=total_of(self._enumerator))
        self._is_saved = False
        if pending is not None:
            self._complete(pending, self._monotonic() - begin)
        return rows

    def _reports_unless_ended(self, frame: DataFrame, moment: SnapshotMoment) -> list[TaskReport]:
        try:
            return self._reports(frame, moment)
        except Exception as error:
            # A stage that has stopped is not tried again, whatever became of the increment after that; and what ended it
            # is why the increment's job was cancelled.
            ended = None if self._completion is None else self._completion.exception()
            if ended is not None:
                raise ended from error
            raise

    def _reports(self, frame: DataFrame, moment: SnapshotMoment) -> list[TaskReport]:
        reports = self._run_job(frame, moment, is_woken=False)
        if moment.is_end_of_input and not reports:
            # Without rows no task ran, but there is state whose functions wait for the end.
            reports = self._run_job(frame, moment, is_woken=True)
        return reports

    def _run_job(self, frame: DataFrame, moment: SnapshotMoment, *, is_woken: bool) -> list[TaskReport]:
        tasks = self._tasks.of(moment, is_woken=is_woken)
        job = increment_frame(frame, self._vertices, tasks, combines=self._tasks.combining.is_on, is_woken=is_woken)
        reports = [TaskReport.decode(bytes(row[CONTROL])) for row in self._jobs.collect(job)]
        require_all_subtasks(reports, self._vertices, self._states.parallelism)
        self._tasks.combining.observe(reports)
        return reports

    def _moment(self, pending: PendingCheckpoint | None, *, is_end: bool) -> SnapshotMoment:
        if pending is None:
            return SnapshotMoment(checkpoint_id=0, timestamp=int(time.time() * 1000), is_end_of_input=is_end)
        timestamp = int(pending.triggered_at.timestamp() * 1000)
        return SnapshotMoment(checkpoint_id=pending.checkpoint_id, timestamp=timestamp, is_end_of_input=is_end)

    def _complete(self, pending: PendingCheckpoint, increment_seconds: float = 0.0) -> None:
        self._commits.assign(pending.checkpoint_id)
        prepared = _Prepared(pending, self._content(pending.checkpoint_id, increment_seconds))
        self._unsaved_bytes = 0
        self._pace.completed()
        self._completion = self._completing.submit(self._acknowledge_and_commit, prepared)
        self._completion.add_done_callback(self._cancel_what_is_of_no_use)

    def _cancel_what_is_of_no_use(self, completion: Future[None]) -> None:
        if completion.exception() is not None:
            self._jobs.cancel()

    def _acknowledge_and_commit(self, prepared: _Prepared) -> None:
        begin = self._monotonic()
        try:
            completed = self._attempt.complete_checkpoint(prepared.pending, prepared.content)
        except StoppedWithSavepointError:
            # Who goes on from the savepoint relies on the output before it, and nobody else may commit that.
            self._commit(prepared)
            raise
        self._is_saved = completed is not None
        if completed is not None:
            self._commit(prepared)
        self._cost_seconds = self._monotonic() - begin

    def _commit(self, prepared: _Prepared) -> None:
        if prepared.content.has_commit:
            self._commits.commit(prepared.pending.checkpoint_id)

    def _require_saved(self) -> None:
        # A failed checkpoint in between is made good by the next; behind the last there is none.
        for _ in range(_LAST_TRIES):
            if self._is_saved:
                return
            pending = self._attempt.begin_checkpoint(LONGEST_INCREMENT_SECONDS)
            if pending is not None:
                self._complete(pending)
                self._wait()
        if not self._is_saved:
            raise CheckpointDeclinedError(
                "Expected the stage to end with a completed checkpoint, found that its last one failed, and "
                f"{_LAST_TRIES} more; a retry goes on from the one before.",
                reason=CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE,
            )

    def _wait(self) -> None:
        if self._completion is not None:
            self._completion.result()
            self._completion = None
            if self._is_saved:
                self._pace.observed(self._cost_seconds)

    def _content(self, checkpoint_id: int, increment_seconds: float) -> CheckpointContent:
        source = single_state(f"{self._uid}/{SOURCE}", self._enumerator.snapshot())
        sink = single_state(f"{self._uid}/{SINK}", self._commits.encode())
        return CheckpointContent(
            state={STATE_KEY: self._small_values(checkpoint_id)},
            operator_states=(*self._states.operator_states(), source, sink),
            has_commit=self._commits.has_open,
            counts={"splits": self._enumerator.finished_splits, "of_splits": self._enumerator.total_splits},
            new_bytes=self._unsaved_bytes,
            increment_seconds=increment_seconds,
        )

    def _small_values(self, checkpoint_id: int) -> dict[str, Any]:
        # A savepoint is a copy with an id of its own, and what it copies is known by this one.
        return {
            "checkpoint": checkpoint_id,
            "run": self._run_key,
            "now_ms": self._tasks.now_ms,
            "cost_seconds": self._cost_seconds or None,
        }
