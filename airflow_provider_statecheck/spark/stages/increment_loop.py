"""
The increment loop: read, run, write the state, acknowledge, commit.

The order of these steps gives the exactly-once guarantee: an increment is finished in the state of the source only
after all its tasks have reported, and its output is committed only after the checkpoint with its committables is
complete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, SourceSummary
from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.messages import PendingCheckpoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, CoordinatorError, StoppedWithSavepointError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_interval import Pace
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.connectors.source import SizeUnit
from airflow_provider_statecheck.spark.driver.session import TaggedJobs
from airflow_provider_statecheck.spark.job_failures import task_errors_raised
from airflow_provider_statecheck.spark.snapshots.dataframes import explained
from airflow_provider_statecheck.spark.stage_costs import StageCosts, disk_failures_named
from airflow_provider_statecheck.spark.stages.broadcasts import Broadcasts
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL
from airflow_provider_statecheck.spark.stages.executor.node_run import StateCapture
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.increment_jobs import IncrementTasks
from airflow_provider_statecheck.spark.stages.planning import PlannedVertex
from airflow_provider_statecheck.spark.stages.stage_state import PLACE, SINK, driver_state
from airflow_provider_statecheck.spark.status_log import StageProgress, figures_or_none
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, RunValues
from airflow_provider_statecheck.state.source_items import SOURCE
from airflow_provider_statecheck.storage.stored_json import decoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place
    from airflow_provider_statecheck.spark.connectors.sink import Sink
    from airflow_provider_statecheck.spark.connectors.source import Increment, SplitEnumerator

log = logging.getLogger(__name__)

LONGEST_INCREMENT_SECONDS = 7 * 24 * 3600.0
_LAST_TRIES = 3

Committable = Mapping[str, Any]


class IncrementLoop:
    """
    Runs the increments of an attempt.

    A separate thread writes the metadata, acknowledges and commits, while the next increment runs. It also triggers
    checkpoints if answers take seconds; the first increment that starts after an answer ends with the checkpoint.
    Checkpoints complete in order, and their content does not depend on the success of earlier ones. If that thread
    fails, it cancels the job of the running increment.

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
        self._tasks = tasks
        self._jobs = jobs
        self._planned = planned
        self._broadcasts = broadcasts or Broadcasts({})
        self._commits = commits
        self._pace = pace
        self._progress = progress
        self._costs = StageCosts(None, monotonic)
        attempt.work.rows_per_second = lambda: progress.rows_per_second
        attempt.work.checkpoint_share = lambda: self._costs.share
        self._monotonic = monotonic
        self._uid = attempt.registration.uid
        self._completing = ThreadPoolExecutor(1, thread_name_prefix="statecheck-checkpoint")
        self._completion: Future[None] | None = None
        self._beginning: Future[PendingCheckpoint | None] | None = None
        """Trigger of the next checkpoint, if its answer takes seconds."""
        self._unsaved_bytes = 0
        self._unsaved_seconds = 0.0
        self._restored_seconds = self._run_seconds = restored_seconds
        self._cost_seconds = 0.0
        self._is_saved = False
        """Whether the last completed checkpoint includes the last increment."""

    def run(self, first: Increment, frame: DataFrame) -> tuple[int, int]:
        """
        Run all increments.

        :param frame: The rows of the first increment.
        :return: Numbers of increments and of elements.
        """
        log.info("Stage %s: computing", self._uid)
        increments, rows = 0, 0
        current: Increment | None = first
        while current is not None:
            following = self._enumerator.next_increment()
            increments += 1
            with self._attempt.work.on(f"increment {increments}"):
                rows += self._run_increment(current, frame, is_end=following is None)
            current = following
            if current is not None:
                frame = self._enumerator.load(current)
                self._tasks = self._planned(self._tasks, frame)
        self._wait()
        self._require_saved()
        self._progress.finished()
        self._costs.report()
        return increments, rows

    def close(self) -> None:
        """Stop the checkpoint thread after its current checkpoint, even if that waits for a savepoint of the job."""
        self._attempt.release()
        self._completing.shutdown(wait=True)

    def _run_increment(self, increment: Increment, frame: DataFrame, *, is_end: bool) -> int:
        if self._completion is not None and self._completion.done():
            self._wait()
        with self._costs.timed():
            pending = self._begun(is_end=is_end) if is_end or self._pace.allows() else None
        begin, moment = self._monotonic(), self._moment(pending, is_end=is_end)
        reports = self._run_or_raise_completion_error(frame, moment)
        self._wait()
        self._tasks.states.update(reports, self._saved_uids(is_end=is_end), moment.checkpoint.checkpoint_id)
        self._commits.stage(c for report in reports for c in report.committables)
        self._unsaved_bytes += sum(report.new_bytes for report in reports)
        snapshot_seconds = max((report.snapshot_seconds for report in reports), default=0.0)
        self._costs.spent_seconds += snapshot_seconds
        self._unsaved_seconds += snapshot_seconds
        self._run_seconds += self._monotonic() - begin
        self._enumerator.require_unchanged(increment)
        self._enumerator.finish(increment)
        self._finish_broadcasts()
        rows = sum(report.rows for report in reports if report.vertex == 0)
        unit = SizeUnit.of(self._enumerator)
        share = f"{100 * self._costs.share:.1f} % of the time for checkpoints"
        self._progress.advance(unit.amount_of(increment), rows, total=unit.total, details=(share,))
        self._is_saved = False
        if pending is not None:
            self._complete(pending, self._monotonic() - begin)
        return rows

    def _begun(self, *, is_end: bool) -> PendingCheckpoint | None:
        """Return the checkpoint that the increment is to end with; ``None`` if it is not triggered yet."""
        if self._beginning is None:
            if is_end or not self._attempt.answers_late:
                return self._attempt.begin_checkpoint(LONGEST_INCREMENT_SECONDS)
            self._beginning = self._completing.submit(self._attempt.begin_checkpoint, LONGEST_INCREMENT_SECONDS)
        if not is_end and not self._beginning.done():
            return None
        beginning, self._beginning = self._beginning, None
        return beginning.result()

    def _finish_broadcasts(self) -> None:
        self._broadcasts.finish()
        if self._tasks.broadcast:
            self._tasks = replace(self._tasks, broadcast={})

    def _saved_uids(self, *, is_end: bool) -> list[list[str]]:
        # Results are read at the end only: until then, the state of their aggregates is that of the run before.
        vertices = self._tasks.vertices
        return [[each.uid for each in vertex.functions if is_end or not each.reads_results] for vertex in vertices]

    def _run_or_raise_completion_error(self, frame: DataFrame, moment: StateCapture) -> list[TaskReport]:
        try:
            return self._reports(frame, moment)
        except Exception as error:
            # An error of the checkpoint thread is the cause: it has cancelled the job, and decides whether the stage is
            # retried.
            ended = None if self._completion is None else self._completion.exception()
            if ended is not None:
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

    def _moment(self, pending: PendingCheckpoint | None, *, is_end: bool) -> StateCapture:
        if pending is None:
            checkpoint = CheckpointMetaData(0, datetime.now(UTC))
        else:
            checkpoint = CheckpointMetaData(pending.checkpoint_id, pending.triggered_at)
        return StateCapture(checkpoint=checkpoint, is_end_of_input=is_end)

    def _complete(self, pending: PendingCheckpoint, increment_seconds: float = 0.0) -> None:
        self._commits.assign(pending.checkpoint_id)
        content = self._content(pending.checkpoint_id, increment_seconds)
        self._unsaved_bytes, self._unsaved_seconds = 0, 0.0
        self._pace.completed()
        self._completion = self._completing.submit(self._acknowledge_and_commit, pending, content)
        self._completion.add_done_callback(self._cancel_job_on_failure)

    def _cancel_job_on_failure(self, completion: Future[None]) -> None:
        if completion.exception() is not None:
            self._jobs.cancel()

    def _acknowledge_and_commit(self, pending: PendingCheckpoint, content: CheckpointContent) -> None:
        # The content is final: this is another thread.
        begin = self._monotonic()
        try:
            completed = self._attempt.complete_checkpoint(pending, content)
        except StoppedWithSavepointError:
            # A job that restores the savepoint relies on the output before it, which no other attempt can commit.
            self._commit(pending, content)
            raise
        self._is_saved = completed is not None
        if completed is not None:
            self._commit(pending, content)
        self._cost_seconds = self._monotonic() - begin

    def _commit(self, pending: PendingCheckpoint, content: CheckpointContent) -> None:
        if content.has_commit:
            self._commits.commit(pending.checkpoint_id, self._monotonic)

    def _require_saved(self) -> None:
        # A failed checkpoint is covered by the next one, so only the last one must be repeated.
        for _ in range(_LAST_TRIES):
            if self._is_saved:
                return
            pending = self._attempt.begin_checkpoint(LONGEST_INCREMENT_SECONDS)
            if pending is not None:
                self._complete(pending)
                self._wait()
        if not self._is_saved:
            raise CheckpointDeclinedError(
                f"Expected a completed checkpoint at the end of the stage, found that the last one and {_LAST_TRIES} "
                "repetitions failed; the warnings before it name the cause. A retry resumes after the last completed "
                "checkpoint.",
                reason=CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE,
            )

    def _wait(self) -> None:
        if self._completion is not None:
            # A checkpoint costs the time that the stage waits for it.
            with self._costs.timed():
                self._completion.result()
            self._completion = None
            if self._is_saved:
                self._pace.observed(self._cost_seconds)

    def _content(self, checkpoint_id: int, increment_seconds: float) -> CheckpointContent:
        source = driver_state(f"{self._uid}/{SOURCE}", self._enumerator.snapshot())
        sink = driver_state(f"{self._uid}/{SINK}", self._commits.encode())
        return CheckpointContent(
            state={STAGE: encode(self._values(checkpoint_id))},
            operator_states=(*self._tasks.states.operator_states(), *self._broadcasts.states(), source, sink),
            has_commit=self._commits.has_open,
            counts={"splits": self._enumerator.finished_splits, "of_splits": self._enumerator.total_splits},
            summary=figures_or_none(self._summary),
            new_bytes=self._unsaved_bytes,
            increment_seconds=increment_seconds,
        )

    def _summary(self) -> CheckpointSummary:
        return CheckpointSummary(
            sources=(source_summary(self._enumerator, self._progress.seconds_left),),
            states=tuple(self._tasks.states.summaries(self._uid)),
            open_commits=self._commits.texts(),
            seconds_saved=self._restored_seconds,
            snapshot_seconds=self._unsaved_seconds,
        )

    def _values(self, checkpoint_id: int) -> RunValues:
        return RunValues(
            checkpoint=checkpoint_id,
            run=self._attempt.registration.owner.run_key,
            now_ms=self._tasks.context.now_ms,
            cost_seconds=self._cost_seconds or None,
            run_seconds=round(self._run_seconds, 3),
            columns=self._tasks.columns.encode(),
        )


def collected(jobs: TaggedJobs, frame: DataFrame, uri: str) -> list[Any]:
    """
    Run a job of a stage and return its rows, with errors that name their cause.

    :param uri: Directory of the checkpoints.
    """
    with disk_failures_named(uri), task_errors_raised(), explained(uri):
        return jobs.collect(frame)


def read_in_turn(jobs: TaggedJobs, frame: DataFrame, uri: str) -> Iterator[Any]:
    """
    Yield rows as :func:`collected` returns them, partition by partition, so that a caller may end early.

    :param uri: Directory of the checkpoints.
    """
    with disk_failures_named(uri), task_errors_raised(), explained(uri):
        yield from jobs.each(frame)


class SinkCommits:
    """
    Retains committables by checkpoint, and commits those of completed checkpoints, oldest first.

    :param sink: ``None`` for a stage without a sink, which has no committables.
    :param restored: Value of :meth:`encode` in the restored checkpoint.
    :raises CorruptStateError: if the restored value is not one of :meth:`encode`.
    """

    def __init__(self, sink: Sink | None, attempt: StageAttempt, restored: Any = None) -> None:
        self._sink = sink
        self._attempt = attempt
        self._staged: list[Committable] = []
        with decoding("the commits of a sink"):
            given = {key: each for key, each in (restored or {}).items() if key != PLACE}
            opened = {int(checkpoint_id): list(each) for checkpoint_id, each in given.items()}
        self._open: dict[int, list[Committable]] = opened

    def stage(self, committables: Iterable[Committable]) -> None:
        """Add committables of an increment; they belong to the next checkpoint."""
        self._staged.extend(committables)

    def assign(self, checkpoint_id: int) -> None:
        """
        Assign the committables since the last checkpoint to a checkpoint.

        The assignment is final. A checkpoint that seems to have failed may be completed later; it and the next
        checkpoint then contain the same committables under the same checkpoint ID.
        """
        if self._staged:
            self._open[checkpoint_id] = self._staged
            self._staged = []

    def encode(self) -> dict[str, Any]:
        """Return the uncommitted committables as plain values, with the place of the sink."""
        place = place_of(self._sink)
        committables = {str(checkpoint_id): list(each) for checkpoint_id, each in sorted(self._open.items())}
        return committables if place is None else {**committables, PLACE: encode(place)}

    @property
    def has_open(self) -> bool:
        """Whether there are uncommitted committables of a checkpoint."""
        return bool(self._open)

    def texts(self) -> tuple[str, ...]:
        """Return a text about the uncommitted committables of each checkpoint, oldest first."""
        counts = ((checkpoint_id, len(each)) for checkpoint_id, each in sorted(self._open.items()))
        return tuple(f"output of checkpoint {i}: {counted(n, 'piece')}" for i, n in counts)

    def commit(self, completed: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """
        Commit all committables, oldest first, and confirm the commits to the coordinator.

        :param completed: The completed checkpoint that contains the committables.
        :raises StateCheckError: if the sink fails; the committables are retained then.
        """
        begin = monotonic()
        for checkpoint_id in sorted(self._open):
            if self._sink is not None:
                self._sink.commit(checkpoint_id, self._open[checkpoint_id])
        self._attempt.confirm_commits((completed,), monotonic() - begin)
        self._open = {}

    def end(self) -> None:
        """
        Confirm commits of earlier attempts that this attempt did not restore; the sink has replaced their output.

        :raises StateCheckError: if the coordinator does not respond.
        """
        latest = self._attempt.latest
        if self._attempt.grant.effects.commits and latest is not None and not self._open:
            self._attempt.confirm_commits((latest.checkpoint_id,))


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


def place_of(sink: object) -> Place | None:
    """Return the place of an opened sink; ``None`` for a sink that is not of this package, or derived from one."""
    from airflow_provider_statecheck.spark.connectors.exactly_once.committing_sink import CommittingSink

    return sink.place if isinstance(sink, CommittingSink) else None


def source_summary(enumerator: SplitEnumerator, remaining_seconds: float | None) -> SourceSummary:
    """
    Return the figures of a source.

    :param remaining_seconds: Estimated time to its end; ``None`` if unknown.
    """
    return SourceSummary(
        uid=SOURCE,
        finished_splits=enumerator.finished_splits,
        total_splits=enumerator.total_splits,
        remaining_seconds=remaining_seconds,
    )
