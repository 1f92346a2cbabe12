"""Log lines of an attempt: start, progress, each checkpoint, and the last line of a try."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping

from airflow_provider_statecheck.checkpoint.ids import OperatorId, is_test_job
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    AttemptRef,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, CheckpointStatus, OnClear
from airflow_provider_statecheck.checkpoint.retention import is_named_after_run
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)


class CheckpointLog:
    """
    Writes the lines of one attempt.

    :param job_name: The job.
    :param uid: The operator.
    :param epoch: The attempt.
    """

    def __init__(self, job_name: str, uid: str, epoch: int) -> None:
        self._stage = f"job {job_name!r}, operator {uid!r}"
        self._epoch = epoch
        self._of = f"of {self._stage}, attempt {epoch}"

    def registered(self, grant: AttemptGrant) -> None:
        """Say how the attempt starts."""
        start = "restores a checkpoint" if grant.is_restore else "starts from the beginning"
        log.info("Attempt %s of %s %s: %s", self._epoch, self._stage, start, grant.start_reason)
        if grant.warning:
            log.warning("%s", grant.warning)

    def triggered(self, pending: PendingCheckpoint) -> None:
        """Say that a checkpoint began."""
        log.debug("Checkpoint %s %s: pending; goes to %s", pending.checkpoint_id, self._of, pending.location)

    def restored(self, checkpoint: CheckpointRecord) -> None:
        """Say which checkpoint the attempt starts from."""
        log.info("Checkpoint %s %s: restored; %s", checkpoint.checkpoint_id, self._of, describe_content(checkpoint))

    def completed(self, checkpoint: CheckpointRecord) -> None:
        """Say what a checkpoint holds and what it took."""
        log.info(
            "Checkpoint %s %s: completed in %.3f s; %s, %s of them new",
            checkpoint.checkpoint_id,
            self._of,
            _seconds(checkpoint),
            describe_content(checkpoint),
            checkpoint.state_size_bytes,
        )

    def failed(self, checkpoint: CheckpointRecord) -> None:
        """Say why a checkpoint of a driver in another process was not completed."""
        log.warning("Checkpoint %s %s: failed; %s", checkpoint.checkpoint_id, self._of, checkpoint.failure_message)

    def discarded(self, checkpoints: Iterable[CheckpointRecord]) -> None:
        """Say which checkpoints were deleted; only an unfinished one of an earlier attempt has no line of its own yet."""
        for each in checkpoints:
            is_news = each.status is CheckpointStatus.ABORTED and each.epoch != self._epoch
            log.log(
                logging.INFO if is_news else logging.DEBUG,
                "Checkpoint %s of %s, attempt %s: %s; its bytes are deleted",
                each.checkpoint_id,
                self._stage,
                each.epoch,
                "subsumed" if each.status is CheckpointStatus.SUBSUMED else f"not completed ({each.failure_message})",
            )


def describe_content(checkpoint: CheckpointRecord) -> str:
    """Return what a checkpoint holds, for people."""
    counts = checkpoint.counts
    size = f"{checkpoint.full_size_bytes} bytes"
    if "splits" in counts:
        return f"{counts['splits']} of {counts['of_splits']} splits, {size}"
    return f"{_number_of('snapshot', counts)}, {_number_of('finished item', counts, 'items')}, {size}"


def _number_of(what: str, counts: Mapping[str, int], key: str | None = None) -> str:
    number = counts.get(key or f"{what}s", 0)
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _seconds(checkpoint: CheckpointRecord) -> float:
    if checkpoint.completed_at is None:
        return 0.0
    return (checkpoint.completed_at - checkpoint.triggered_at).total_seconds()


def retained_line(registration: RegisterAttempt, latest: CheckpointRecord | None) -> str:
    """
    Say what a retry will find.

    :param registration: Who asked.
    :param latest: The newest checkpoint that a retry can restore.
    """
    name, is_script = registration.job_name, registration.owner.is_script
    if latest is None:
        who = "the next start begins" if is_script else "a retry starts"
        return f"Job {name!r} kept nothing: no checkpoint was completed; {who} from the beginning."
    return (
        f"Job {name!r} kept checkpoint {latest.checkpoint_id}: {describe_content(latest)}. "
        f"{_who_goes_on(registration)}. Restore pointer: {latest.location}"
    )


def fenced_line(job_name: str, epoch: int, newer_epoch: int) -> str:
    """Say that a newer attempt has taken over; the one that it replaced is not retried."""
    return (
        f"Job {job_name!r} goes on in attempt {newer_epoch}, which replaced attempt {epoch}; nothing that this try does "
        f"counts any more."
    )


def _who_goes_on(registration: RegisterAttempt) -> str:
    is_restart = registration.on_clear is OnClear.RESTART
    if registration.owner.is_script:
        return f"The next start{' without on_clear=restart' if is_restart else ''} goes on from there"
    return f"A retry goes on from there{'' if is_restart else ', and so does the task when it is cleared'}"


def leftover_line(registration: RegisterAttempt, effects: OpenEffects, deleted: Container[int]) -> str | None:
    """
    Say what a finished attempt leaves on storage that nobody needs after its run, ``None`` if that is nothing.

    :param registration: Who asked.
    :param effects: What was retained and what was to be deleted at the end of the attempt.
    :param deleted: What was deleted of that.
    """
    name = registration.job_name
    ends_with_run = is_named_after_run(name, registration.owner)
    retained = [c.checkpoint_id for c in effects.retained if ends_with_run and not c.properties.is_savepoint]
    undeleted = [c.checkpoint_id for c in effects.discards if c.checkpoint_id not in deleted]
    left = sorted({*retained, *undeleted})
    if not left:
        return None
    when = " when the run is over" if retained else ""
    command = "prune --test-jobs" if is_test_job(name) else "gc --all"
    return (
        f"Job {name!r} leaves {'checkpoint' if len(left) == 1 else 'checkpoints'} {', '.join(map(str, left))} below "
        f"{redact(registration.storage_base)}. 'airflow statecheck {command}' or the Dag statecheck_maintenance deletes "
        f"what is no longer needed{when}."
    )


def latest_retained(view: JobView, operator_id: OperatorId) -> CheckpointRecord | None:
    """Return the checkpoint that a retry of an operator would restore first."""
    generations = {o.operator_id: o.generation for o in view.operators}
    mine = [
        c for c in view.of_operator(operator_id) if c.is_restorable and c.generation == generations.get(operator_id)
    ]
    return mine[-1] if mine else None


def stopping_savepoint(view: JobView, attempt: AttemptRef) -> str | None:
    """Return where the savepoint is with which an attempt stopped where it was, ``None`` if it did not."""
    same = (a for a in view.attempts if (a.operator_id, a.epoch) == (attempt.operator_id, attempt.epoch))
    if any(a.status is AttemptStatus.FINISHED for a in same):
        return None
    mine = (c for c in view.of_operator(attempt.operator_id) if c.epoch == attempt.epoch and c.completed_at is not None)
    kind = CheckpointType.SAVEPOINT_SUSPEND
    return next((c.location for c in mine if c.properties.snapshot_type is kind), None)


_UNITS = ((86_400.0, "d", 48 * 3_600.0), (3_600.0, "h", 2 * 3_600.0), (60.0, "min", 120.0))


def readable_seconds(seconds: float) -> str:
    """Return a duration in its one fitting unit, such as ``1.2 s``, ``45 s``, ``4 min``, ``31 h`` or ``3 d``."""
    for size, unit, least in _UNITS:
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"


_SECONDS_BETWEEN_LINES = 10.0
_MEMORY_SECONDS = 60.0
"""After so much time an old rate counts for about a third."""


class StageProgress:
    """
    Counts what a stage has read, and says so every few seconds.

    What was read before a restore is kept: it counts for the part that is done, but not for the rate.

    :param name: Of the stage.
    :param total: Bytes of the whole input, or splits where their bytes are unknown; ``None`` where nothing is known.
    :param kept: How much of it earlier tries had finished.
    :param monotonic: The clock for durations, in seconds.
    :param seconds_between_lines: The least time from one line to the next.
    """

    def __init__(
        self,
        name: str,
        total: int | None,
        *,
        monotonic: Callable[[], float],
        kept: int = 0,
        seconds_between_lines: float = _SECONDS_BETWEEN_LINES,
    ) -> None:
        self._name = name
        self._total = total
        self._finished = self._kept = kept
        self._rows = 0
        self._monotonic = monotonic
        self._seconds_between_lines = seconds_between_lines
        self._begin = self._seen_at = monotonic()
        self._line_at = -math.inf
        self._rate = SmoothedRate(_MEMORY_SECONDS)
        self._row_rate = SmoothedRate(_MEMORY_SECONDS)
        if kept:
            log.info("Stage %s goes on: %s", name, self._kept_shown)

    def advance(self, amount: int, rows: int, *, total: int | None = None) -> None:
        """
        Count what was read since the last time, and log a line if it is time for one.

        :param amount: Bytes or splits, as the total is given.
        :param rows: Rows.
        :param total: The new total, where the input has grown.
        """
        now = self._monotonic()
        self._rate.observe(amount, now - self._seen_at)
        self._row_rate.observe(rows, now - self._seen_at)
        self._seen_at = now
        self._finished += amount
        self._rows += rows
        self._total = self._total if total is None else total
        if now - self._line_at >= self._seconds_between_lines:
            self._line_at = now
            log.info("%s", self.line())

    def finished(self) -> None:
        """Log what the stage has done in this try."""
        seconds = self._monotonic() - self._begin
        rate = self._rows / seconds if seconds > 0 else 0.0
        kept = f", {self._kept_shown}" if self._kept else ""
        log.info(
            "Stage %s is done: %s rows in %s, %s rows/s%s",
            self._name,
            f"{self._rows:,}",
            readable_seconds(seconds),
            f"{rate:,.0f}",
            kept,
        )

    def line(self) -> str:
        """Return how far the stage has come, for people."""
        parts = [f"{self._rows:,} rows", f"{self._row_rate.per_second:,.0f} rows/s"]
        if self.percent is not None:
            parts.insert(0, f"{self.percent} %")
        if self._kept:
            parts.append(self._kept_shown)
        if self.seconds_left is not None:
            parts.append(f"done in about {readable_seconds(self.seconds_left)}")
        return f"Stage {self._name}: {', '.join(parts)}"

    @property
    def percent(self) -> int | None:
        """Return the part that is done, 100 only at the end; ``None`` where the total is not known."""
        return self._percent_of(self._finished)

    @property
    def seconds_left(self) -> float | None:
        """Return how long the rest will take at the present rate; ``None`` where nobody can tell."""
        if self._total is None or not self._rate.per_second:
            return None
        return max(self._total - self._finished, 0) / self._rate.per_second

    def _percent_of(self, amount: int) -> int | None:
        if self._total is None:
            return None
        return 100 if amount >= self._total else amount * 100 // self._total

    @property
    def _kept_shown(self) -> str:
        percent = self._percent_of(self._kept)
        return "what was done before is kept" if percent is None else f"{percent} % kept"


class SmoothedRate:
    """
    An amount per second of which the past counts ever less.

    :param memory_seconds: After so much time what was before counts for about a third.
    """

    def __init__(self, memory_seconds: float) -> None:
        self._memory_seconds = memory_seconds
        self._amount = 0.0
        self._seconds = 0.0

    def observe(self, amount: float, seconds: float) -> None:
        """Count an amount and the time that it took."""
        fading = math.exp(-seconds / self._memory_seconds)
        self._amount = self._amount * fading + amount
        self._seconds = self._seconds * fading + seconds

    @property
    def per_second(self) -> float:
        """Return the rate, zero where no time has passed."""
        return self._amount / self._seconds if self._seconds > 0 else 0.0
