"""
What an attempt reports: its log lines, its progress, the figures of its steps, and its work.

The work is a step, an item of a loop or an increment. Checkpoints tell it with their figures. Work that takes longer
than some seconds is reported in between, so that a page names the step that takes hours, and many short steps cost no
calls.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, StepOutcome, StepSummary
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    PendingCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import (
    CheckpointRecord,
    CheckpointStatus,
)
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.state.progress import (
    Iterations,
    LoopProgress,
    NamedSnapshot,
    PartedStep,
    PartProgress,
    StepKey,
    describe,
    loop_summaries,
    named_snapshots,
    step_summary,
)
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle

log = logging.getLogger(__name__)


class CheckpointLog:
    """
    Logs the events of one attempt and its checkpoints.

    :param epoch: Fencing epoch of the attempt.
    """

    def __init__(self, job_name: str, uid: str, epoch: int) -> None:
        self._stage = f"job {job_name!r}, operator {uid!r}"
        self._epoch = epoch
        self._attempt = f"{self._stage}, attempt {epoch}"

    def registered(self, grant: AttemptGrant) -> None:
        """Log whether the attempt restores a checkpoint, and why."""
        start = "restores a checkpoint" if grant.is_restore else "starts from the beginning"
        log.info("Attempt %s of %s %s: %s", self._epoch, self._stage, start, grant.start_reason)
        if grant.warning:
            log.warning("%s", grant.warning)

    def triggered(self, pending: PendingCheckpoint) -> None:
        """Log the location of a checkpoint that was triggered."""
        log.debug("Checkpoint %s of %s: triggered; location %s", pending.checkpoint_id, self._attempt, pending.location)

    def restored(self, checkpoint: CheckpointRecord) -> None:
        """Log the checkpoint that the attempt restored."""
        content = describe_content(checkpoint)
        log.info("Checkpoint %s of %s: restored; %s", checkpoint.checkpoint_id, self._attempt, content)

    def completed(self, checkpoint: CheckpointRecord) -> None:
        """Log the duration, content and size of a completed checkpoint."""
        log.info(
            "Checkpoint %s of %s: completed in %.3f s; %s, %s new",
            checkpoint.checkpoint_id,
            self._attempt,
            (checkpoint.completed_at - checkpoint.triggered_at).total_seconds() if checkpoint.completed_at else 0.0,
            describe_content(checkpoint),
            counted(checkpoint.state_size_bytes, "byte"),
        )

    def failed(self, checkpoint: CheckpointRecord) -> None:
        """Log why a checkpoint of a submitted driver failed."""
        message = checkpoint.failure_message
        log.warning("Checkpoint %s of %s: failed; %s", checkpoint.checkpoint_id, self._attempt, message)

    def discarded(self, checkpoints: Iterable[CheckpointRecord]) -> None:
        """Log the checkpoints whose files were deleted."""
        for checkpoint in checkpoints:
            # The attempt that aborted a checkpoint has logged its failure, unless it was killed.
            is_first_report = checkpoint.status is CheckpointStatus.ABORTED and checkpoint.epoch != self._epoch
            log.log(
                logging.INFO if is_first_report else logging.DEBUG,
                "Checkpoint %s of %s, attempt %s: %s; files deleted",
                checkpoint.checkpoint_id,
                self._stage,
                checkpoint.epoch,
                _discard_reason(checkpoint),
            )


def describe_content(checkpoint: CheckpointRecord) -> str:
    """Return the counts and the size of a checkpoint, such as ``2 snapshots, 1 finished item, 512 bytes``."""
    counts = checkpoint.counts
    size = counted(checkpoint.full_size_bytes, "byte")
    if "splits" in counts:
        return f"{counts['splits']} of {counted(counts['of_splits'], 'part')} of the input, {size}"
    snapshots, items = counts.get("snapshots", 0), counts.get("items", 0)
    return f"{counted(snapshots, 'snapshot')}, {counted(items, 'finished item')}, {size}"


def _discard_reason(checkpoint: CheckpointRecord) -> str:
    if checkpoint.status is CheckpointStatus.SUBSUMED:
        return "replaced by a newer one"
    return f"not completed ({checkpoint.failure_message})"


_SECONDS_BETWEEN_LINES = 10.0
_RATE_WINDOW_SECONDS = 60.0


class StageProgress:
    """
    Counts the input that a stage has read, and logs its progress at intervals.

    Input that was read before a restore counts for the percentage, but not for the rate.

    :param name: Uid of the stage, or name of the step.
    :param total: Size of the input in bytes, or in splits if their bytes are unknown; ``None`` if both are unknown.
    :param restored: Part of the input that earlier attempts have finished, in the unit of the total.
    :param kind: What the name is of: ``Stage`` or ``Step``.
    """

    def __init__(
        self,
        name: str,
        total: int | None,
        *,
        monotonic: Callable[[], float],
        restored: int = 0,
        kind: str = "Stage",
    ) -> None:
        self._name = f"{kind} {name}"
        self._total = total
        self._finished = self._restored = restored
        self._rows = 0
        self._monotonic = monotonic
        self._begin = self._seen_at = monotonic()
        self._line_at = -math.inf
        self._rate = SmoothedRate(_RATE_WINDOW_SECONDS)
        self._row_rate = SmoothedRate(_RATE_WINDOW_SECONDS)
        if restored:
            log.info("%s resumes: %s", self._name, self._restored_text)

    def advance(self, amount: int, rows: int, *, total: int | None = None, details: Sequence[str] = ()) -> None:
        """
        Count the input that was read since the last call, and log the progress if a line is due.

        :param amount: Bytes or splits, in the unit of the total.
        :param total: New total, if the input has grown.
        :param details: Further figures for the line.
        """
        now = self._monotonic()
        self._rate.observe(amount, now - self._seen_at)
        self._row_rate.observe(rows, now - self._seen_at)
        self._seen_at = now
        self._finished += amount
        self._rows += rows
        self._total = self._total if total is None else total
        if now - self._line_at >= _SECONDS_BETWEEN_LINES:
            self._line_at = now
            log.info("%s: %s", self._name, ", ".join(self._figures(details)))

    def finished(self) -> None:
        """Log the rows, the duration and the rate of this attempt."""
        seconds = self._monotonic() - self._begin
        rate = self._rows / seconds if seconds > 0 else 0.0
        log.info(
            "%s finished: %s in %s, %s rows/s%s",
            self._name,
            counted(self._rows, "row"),
            readable_seconds(seconds),
            f"{rate:,.0f}",
            f", {self._restored_text}" if self._restored else "",
        )

    def _figures(self, details: Sequence[str]) -> Iterator[str]:
        if self.percent is not None:
            yield f"{self.percent} %"
        yield counted(self._rows, "row")
        yield f"{self._row_rate.per_second:,.0f} rows/s"
        yield from details
        if self._restored:
            yield self._restored_text
        if self.seconds_left is not None:
            yield f"about {readable_seconds(self.seconds_left)} left"

    @property
    def rows_per_second(self) -> float | None:
        """The smoothed rate; ``None`` before the first rows."""
        return self._row_rate.per_second or None

    @property
    def percent(self) -> int | None:
        """The finished percentage of the input, 100 only at the end; ``None`` if the total is unknown."""
        return self._percent_of(self._finished)

    @property
    def seconds_left(self) -> float | None:
        """The estimated time to the end at the current rate; ``None`` without a total or a rate."""
        if self._total is None or not self._rate.per_second:
            return None
        return max(self._total - self._finished, 0) / self._rate.per_second

    def _percent_of(self, amount: int) -> int | None:
        if self._total is None:
            return None
        return 100 if amount >= self._total else amount * 100 // self._total

    @property
    def _restored_text(self) -> str:
        percent = self._percent_of(self._restored)
        return "earlier progress restored" if percent is None else f"{percent} % restored"


class SmoothedRate:
    """
    Exponentially smoothed rate.

    :param window_seconds: Time after which an observation has about a third of its weight.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._amount = 0.0
        self._seconds = 0.0

    def observe(self, amount: float, seconds: float) -> None:
        """Count an amount and its duration."""
        decay = math.exp(-seconds / self._window_seconds)
        self._amount = self._amount * decay + amount
        self._seconds = self._seconds * decay + seconds

    @property
    def per_second(self) -> float:
        """The rate per second, zero before any time has passed."""
        return self._amount / self._seconds if self._seconds > 0 else 0.0


_UNITS = ((86_400.0, "d", 48 * 3_600.0), (3_600.0, "h", 2 * 3_600.0), (60.0, "min", 120.0))
"""Size of each unit in seconds, its symbol, and the least duration that is shown in it."""


def readable_seconds(seconds: float) -> str:
    """Return a duration in one unit, such as ``1.2 s``, ``45 s``, ``4 min``, ``31 h`` or ``3 d``."""
    for size, unit, least in _UNITS:
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"


# More than a summary holds. A loop over many items has any number of steps.
_NEWEST_STEPS = 200
_SECONDS_BETWEEN_REPORTS = 5.0


class StepFigures:
    """
    The newest steps of an attempt, and the time that its restores have saved.

    :param progress: Finished items of loops, as restored.
    :param iterations: Iterations of loops, as restored.
    """

    def __init__(self, progress: LoopProgress, iterations: Iterations, monotonic: Callable[[], float]) -> None:
        self._progress = progress
        self._iterations = iterations
        self._monotonic = monotonic
        self._restored_loops = tuple(loop_summaries(progress, iterations))
        self._steps: dict[StepKey, StepSummary] = {}
        self._dropped = 0
        self._restored: list[StepSummary] = []
        self._restored_count = 0
        self._seconds_saved = sum(loop.seconds for loop in self._restored_loops)
        self._reported_at = float("-inf")
        self._is_reported = not self._restored_loops

    def computed(self, snapshot: NamedSnapshot, progress: PartedStep | None = None) -> None:
        """
        Record a step that was computed and written; an iteration or a further part replaces the one before it.

        :param progress: Progress of a step that is computed in parts.
        """
        self._add((snapshot.scope, snapshot.name), step_summary(snapshot, StepOutcome.COMPUTED, progress))

    def restored(self, snapshot: NamedSnapshot, progress: PartedStep | None = None) -> None:
        """Record a step that was restored, or some of its parts; ``progress`` as for :meth:`computed`."""
        step = step_summary(snapshot, StepOutcome.RESTORED, progress)
        self._add((snapshot.scope, snapshot.name), step)
        self._restored = [*self._restored, step][-_NEWEST_STEPS:]
        self._restored_count += 1
        self._seconds_saved += step.seconds_saved
        self._is_reported = False

    def skipped(self, step: StepKey, seconds: float = 0.0) -> None:
        """
        Record a step without a snapshot.

        :param seconds: Measured time to compute it; 0 if it was not measured.
        """
        self._add(step, StepSummary(name=describe(step), outcome=StepOutcome.SKIPPED.value, seconds=seconds))

    def of_checkpoint(
        self, live: Iterable[SnapshotHandle], snapshot_seconds: float, parts: PartProgress | None = None
    ) -> CheckpointSummary:
        """
        Return the figures of a checkpoint.

        :param live: All snapshots that the checkpoint references.
        :param snapshot_seconds: Time to write the snapshots since the previous checkpoint.
        :param parts: Progress of the steps that are computed in parts.
        """
        held = [each for each in named_snapshots(live) if (each.scope, each.name) not in self._steps]
        known = parts or PartProgress()
        return CheckpointSummary(
            steps=(
                *(step_summary(each, StepOutcome.HELD, known.find((each.scope, each.name))) for each in held),
                *self._steps.values(),
            ),
            loops=tuple(loop_summaries(self._progress, self._iterations)),
            left_out={"steps": self._dropped},
            seconds_saved=self._seconds_saved,
            snapshot_seconds=snapshot_seconds,
        )

    def of_restore(self) -> CheckpointSummary | None:
        """Return the figures of what the attempt has restored so far; ``None`` if it has restored nothing."""
        if not self._restored and not self._restored_loops:
            return None
        return CheckpointSummary(
            steps=tuple(self._restored),
            loops=self._restored_loops,
            left_out={"steps": self._restored_count - len(self._restored)},
            seconds_saved=self._seconds_saved,
        )

    def is_due(self) -> bool:
        """Return whether restored steps are to be reported before the next computation; at most every few seconds."""
        now = self._monotonic()
        if self._is_reported or now - self._reported_at < _SECONDS_BETWEEN_REPORTS:
            return False
        self._is_reported, self._reported_at = True, now
        return True

    def _add(self, key: StepKey, step: StepSummary) -> None:
        self._steps.pop(key, None)
        self._steps[key] = step
        if len(self._steps) > _NEWEST_STEPS:
            self._steps.pop(next(iter(self._steps)))
            self._dropped += 1


def figures_or_none(compute: Callable[[], CheckpointSummary | None]) -> CheckpointSummary | None:
    """Return figures for display; ``None`` if they cannot be computed, which must not fail a checkpoint."""
    try:
        return compute()
    except Exception as error:
        log.warning("The figures of a checkpoint cannot be computed: %r", error)
        return None


REPORTED_AFTER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Work:
    """A step, an item of a loop or an increment that an attempt works on."""

    name: str = ""
    """Empty between them."""
    begins_after: float = 0.0
    """Time from the registration of the attempt to the start, in seconds."""


_NONE: Final = Work()


def _unknown() -> float | None:
    return None


class WorkInProgress:
    """
    Knows what an attempt works on, and reports it if it takes long.

    :param send: Sends the figures to the coordinator, also from a thread of this class.
    :param monotonic: Clock, read first at the registration of the attempt.
    :param start_timer: Calls a function after a number of seconds, and returns the function that prevents this.
    """

    def __init__(
        self,
        send: Callable[[CheckpointSummary], None],
        monotonic: Callable[[], float],
        start_timer: Callable[[float, Callable[[], None]], Callable[[], None]] | None = None,
    ) -> None:
        self.restored: CheckpointSummary | None = None
        """What the attempt has restored so far; ``None`` if it has restored nothing."""
        self.rows_per_second: Callable[[], float | None] = _unknown
        """Returns the rate of the work."""
        self.checkpoint_share: Callable[[], float | None] = _unknown
        """Returns the part of the time that checkpointing has taken."""
        self._send = send
        self._monotonic = monotonic
        self._begin = monotonic()
        self._start_timer = start_timer or _start_thread
        # Reentrant, because a signal may end the attempt while its thread has the lock.
        self._lock = threading.RLock()
        self._cancel: Callable[[], None] | None = None
        self._current = self._told = _NONE
        self._has_ended = False

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Let the block be the work, until it ends or contains other work."""
        around = self._current
        self._set(Work(name, self._monotonic() - self._begin))
        try:
            yield
        finally:
            self._set(around)

    def report_restored(self, summary: CheckpointSummary) -> None:
        """
        Report at once what the attempt has restored, and its work.

        :raises StaleAttemptError: if a newer attempt has taken over.
        """
        self.restored = summary
        work = self._current
        self._send(self._figures(summary, work))
        self.told(work)

    def added_to(self, content: CheckpointContent) -> tuple[CheckpointContent, Work]:
        """Return the content of a checkpoint with the work in its figures, and the work."""
        work = self._current
        if content.summary is None:
            return content, self._told
        return replace(content, summary=self._figures(content.summary, work)), work

    def told(self, work: Work) -> None:
        """Note that the coordinator knows about some work."""
        self._told = work

    def end(self) -> None:
        """Report no more."""
        with self._lock:
            self._has_ended = True
            if self._cancel is not None:
                self._cancel()

    def at_end(self) -> CheckpointSummary | None:
        """Return the figures of the attempt at its end; ``None`` if there are none."""
        figures = self._figures(self.restored or CheckpointSummary(), _NONE)
        return None if figures == CheckpointSummary() else figures

    def _figures(self, summary: CheckpointSummary, work: Work) -> CheckpointSummary:
        return replace(
            summary,
            computing=work.name,
            computing_after=work.begins_after,
            rows_per_second=self.rows_per_second(),
            checkpoint_share=self.checkpoint_share(),
        )

    def _set(self, work: Work) -> None:
        with self._lock:
            self._current = work
            if self._cancel is None and not self._has_ended and work != self._told:
                self._cancel = self._start_timer(REPORTED_AFTER_SECONDS, self._report)

    def _report(self) -> None:
        with self._lock:
            self._cancel = None
            work = self._current
            if self._has_ended or work == self._told:
                return
        try:
            self._send(self._figures(self.restored or CheckpointSummary(), work))
        except Exception as error:
            # It is for display only. The next call of the stage itself meets the same error.
            log.debug("The progress could not be reported: %s", error)
        self.told(work)
        # The work may have changed during the call.
        self._set(self._current)


def _start_thread(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.name = "statecheck-progress"
    timer.start()
    return timer.cancel
