"""
Checkpoints of a stage, which complete in a thread of their own while it computes.

The order of these steps gives the exactly-once guarantee: an increment is finished in the state of the source only
after all its tasks have reported, and its output is committed only after the checkpoint with its committables is
complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, SourceSummary
from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.messages import PendingCheckpoint
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, StoppedWithSavepointError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_interval import Pace
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.stage_costs import StageCosts
from airflow_provider_statecheck.spark.stages.broadcasts import Broadcasts
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.increment_jobs import IncrementTasks
from airflow_provider_statecheck.spark.stages.sink_commits import SinkCommits
from airflow_provider_statecheck.spark.stages.stage_state import SINK, driver_state
from airflow_provider_statecheck.spark.status_log import StageProgress, figures_or_none
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, RunValues
from airflow_provider_statecheck.state.source_items import SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_statecheck.spark.connectors.source import SplitEnumerator

LONGEST_INCREMENT_SECONDS = 7 * 24 * 3600.0
_LAST_TRIES = 3


class StageCheckpoints:
    """
    Takes the checkpoints of an attempt while it computes.

    A separate thread writes the metadata, acknowledges and commits. It also triggers checkpoints if answers take
    seconds; the first increment that starts after an answer ends with the checkpoint. Checkpoints complete in order,
    and their content does not depend on the success of earlier ones.

    :param pace: Decides which increments end with a checkpoint; the last one always does.
    :param restored_seconds: Time of the increments of this run before the restored checkpoint.
    :param on_failure: Called in that thread if it fails.
    """

    def __init__(
        self,
        attempt: StageAttempt,
        enumerator: SplitEnumerator,
        commits: SinkCommits,
        broadcasts: Broadcasts,
        pace: Pace,
        progress: StageProgress,
        monotonic: Callable[[], float],
        restored_seconds: float,
        on_failure: Callable[[], None],
    ) -> None:
        self._attempt = attempt
        self._enumerator = enumerator
        self._commits = commits
        self._broadcasts = broadcasts
        self._pace = pace
        self._progress = progress
        self._monotonic = monotonic
        self._on_failure = on_failure
        self.costs = StageCosts(None, monotonic)
        attempt.work.checkpoint_share = lambda: self.costs.share
        self._uid = attempt.registration.uid
        self._completing = ThreadPoolExecutor(1, thread_name_prefix="statecheck-checkpoint")
        self._completion: Future[None] | None = None
        self._beginning: Future[PendingCheckpoint | None] | None = None
        """Trigger of the next checkpoint, if its answer takes seconds."""
        self._unsaved_bytes = 0
        self._unsaved_seconds = 0.0
        self._restored_seconds = self._run_seconds = restored_seconds
        self._cost_seconds = 0.0
        self.is_saved = False
        """Whether the last completed checkpoint includes the last increment."""

    def close(self) -> None:
        """Stop the thread after its current checkpoint, even if that waits for a savepoint of the job."""
        self._attempt.release()
        self._completing.shutdown(wait=True)

    def require_success(self) -> None:
        """Raise the error of a checkpoint that has ended; do not wait for a running one."""
        if self._completion is not None and self._completion.done():
            self.wait()

    @property
    def error(self) -> BaseException | None:
        """The error of the last checkpoint, which may still be running; waits for its end."""
        return None if self._completion is None else self._completion.exception()

    def begun(self, *, is_end: bool = False, waits: bool = False) -> PendingCheckpoint | None:
        """
        Return the checkpoint that the increment is to end with.

        :param is_end: Whether the increment is the last one, which ends with a checkpoint in any case.
        :param waits: Whether to wait for a late answer, because the next increment may fail at once.
        :return: ``None`` if the pace does not allow one, or if it is not triggered yet.
        """
        with self.costs.timed():
            return self._begun(waits=is_end or waits) if is_end or self._pace.allows() else None

    def _begun(self, *, waits: bool) -> PendingCheckpoint | None:
        if self._beginning is None:
            if waits or not self._attempt.answers_late:
                return self._attempt.begin_checkpoint(LONGEST_INCREMENT_SECONDS)
            self._beginning = self._completing.submit(self._attempt.begin_checkpoint, LONGEST_INCREMENT_SECONDS)
        if not waits and not self._beginning.done():
            return None
        beginning, self._beginning = self._beginning, None
        return beginning.result()

    def add(self, reports: Iterable[TaskReport], seconds: float) -> None:
        """
        Add an increment, which the next checkpoint contains.

        :param seconds: Time since the increment before it.
        """
        reports = list(reports)
        self._commits.stage(c for report in reports for c in report.committables)
        self._unsaved_bytes += sum(report.new_bytes for report in reports)
        snapshot_seconds = max((report.snapshot_seconds for report in reports), default=0.0)
        self.costs.spent_seconds += snapshot_seconds
        self._unsaved_seconds += snapshot_seconds
        self._run_seconds += seconds
        self.is_saved = False

    def complete(self, pending: PendingCheckpoint, tasks: IncrementTasks, increment_seconds: float = 0.0) -> None:
        """
        Complete a checkpoint in the other thread; the one before it must have ended.

        :param tasks: The tasks with the state that the checkpoint contains.
        """
        self._commits.assign(pending.checkpoint_id)
        content = self._content(pending.checkpoint_id, tasks, increment_seconds)
        self._unsaved_bytes, self._unsaved_seconds = 0, 0.0
        self._pace.completed()
        self._completion = self._completing.submit(self._acknowledge_and_commit, pending, content)
        self._completion.add_done_callback(self._tell_failure)

    def _tell_failure(self, completion: Future[None]) -> None:
        if completion.exception() is not None:
            self._on_failure()

    def _acknowledge_and_commit(self, pending: PendingCheckpoint, content: CheckpointContent) -> None:
        # The content is final: this is another thread.
        begin = self._monotonic()
        try:
            completed = self._attempt.complete_checkpoint(pending, content)
        except StoppedWithSavepointError:
            # A job that restores the savepoint relies on the output before it, which no other attempt can commit.
            self._commit(pending, content)
            raise
        self.is_saved = completed is not None
        if completed is not None:
            self._commit(pending, content)
        self._cost_seconds = self._monotonic() - begin

    def _commit(self, pending: PendingCheckpoint, content: CheckpointContent) -> None:
        if content.has_commit:
            self._commits.commit(pending.checkpoint_id, self._monotonic)

    def require_saved(self, tasks: IncrementTasks) -> None:
        """
        Require that the last increment is in a completed checkpoint; try again if it failed.

        :raises CheckpointDeclinedError: if all tries fail.
        """
        # A failed checkpoint is covered by the next one, so only the last one must be repeated.
        for _ in range(_LAST_TRIES):
            if self.is_saved:
                return
            pending = self._attempt.begin_checkpoint(LONGEST_INCREMENT_SECONDS)
            if pending is not None:
                self.complete(pending, tasks)
                self.wait()
        if not self.is_saved:
            raise CheckpointDeclinedError(
                f"Expected a completed checkpoint at the end of the stage, found that the last one and {_LAST_TRIES} "
                "repetitions failed; the warnings before it name the cause. A retry resumes after the last completed "
                "checkpoint.",
                reason=CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE,
            )

    def wait(self) -> None:
        """Wait for the end of the running checkpoint, and raise its error."""
        if self._completion is not None:
            # A checkpoint costs the time that the stage waits for it.
            with self.costs.timed():
                self._completion.result()
            self._completion = None
            if self.is_saved:
                self._pace.observed(self._cost_seconds)

    def _content(self, checkpoint_id: int, tasks: IncrementTasks, increment_seconds: float) -> CheckpointContent:
        source = driver_state(f"{self._uid}/{SOURCE}", self._enumerator.snapshot())
        sink = driver_state(f"{self._uid}/{SINK}", self._commits.encode())
        return CheckpointContent(
            state={STAGE: encode(self._values(checkpoint_id, tasks))},
            operator_states=(*tasks.states.operator_states(), *self._broadcasts.states(), source, sink),
            has_commit=self._commits.has_open,
            counts={"splits": self._enumerator.finished_splits, "of_splits": self._enumerator.total_splits},
            summary=figures_or_none(lambda: self._summary(tasks)),
            new_bytes=self._unsaved_bytes,
            increment_seconds=increment_seconds,
        )

    def _summary(self, tasks: IncrementTasks) -> CheckpointSummary:
        return CheckpointSummary(
            sources=(source_summary(self._enumerator, self._progress.seconds_left),),
            states=tuple(tasks.states.summaries(self._uid)),
            open_commits=self._commits.texts(),
            seconds_saved=self._restored_seconds,
            snapshot_seconds=self._unsaved_seconds,
        )

    def _values(self, checkpoint_id: int, tasks: IncrementTasks) -> RunValues:
        return RunValues(
            checkpoint=checkpoint_id,
            run=self._attempt.registration.owner.run_key,
            now_ms=tasks.context.now_ms,
            cost_seconds=self._cost_seconds or None,
            run_seconds=round(self._run_seconds, 3),
            columns=tasks.columns.encode(),
        )


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
