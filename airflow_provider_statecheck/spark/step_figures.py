"""Figures of the steps of one attempt, for display: what it has computed, restored and skipped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary, StepOutcome, StepSummary
from airflow_provider_statecheck.state.loop_progress import Iterations, LoopProgress, StepKey, describe
from airflow_provider_statecheck.state.part_progress import PartedStep, PartProgress
from airflow_provider_statecheck.state.reading.summaries import loop_summaries, step_summary
from airflow_provider_statecheck.storage.metadata_file import NamedSnapshot, SnapshotHandle, named_snapshots

log = logging.getLogger(__name__)

# More than a summary holds. A loop over many items has any number of steps.
_NEWEST_STEPS = 200
_SECONDS_BETWEEN_REPORTS = 5.0


class StepFigures:
    """
    The newest steps of an attempt, and the time that its restores have saved.

    :param progress: Finished items of loops, as restored.
    :param iterations: Iterations of loops, as restored.
    :param monotonic: Clock for durations, in seconds.
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
        """Record a step that was restored, or of which parts were restored; ``progress`` as for :meth:`computed`."""
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
    ) -> SnapshotSummary:
        """
        Return the figures of a checkpoint.

        :param live: All snapshots that the checkpoint references.
        :param snapshot_seconds: Time to write the snapshots since the previous checkpoint.
        :param parts: Progress of the steps that are computed in parts.
        """
        held = [each for each in named_snapshots(live) if (each.scope, each.name) not in self._steps]
        known = parts or PartProgress()
        return SnapshotSummary(
            steps=(
                *(step_summary(each, StepOutcome.HELD, known.find((each.scope, each.name))) for each in held),
                *self._steps.values(),
            ),
            loops=tuple(loop_summaries(self._progress, self._iterations)),
            left_out={"steps": self._dropped},
            seconds_saved=self._seconds_saved,
            snapshot_seconds=snapshot_seconds,
        )

    def of_restore(self) -> SnapshotSummary | None:
        """Return the figures of what the attempt has restored so far; ``None`` if it has restored nothing."""
        if not self._restored and not self._restored_loops:
            return None
        return SnapshotSummary(
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


def figures_or_none(compute: Callable[[], SnapshotSummary | None]) -> SnapshotSummary | None:
    """Return figures for display; ``None`` if they cannot be computed, which must not fail a checkpoint."""
    try:
        return compute()
    except Exception as error:
        log.warning("The figures of a checkpoint cannot be computed: %r", error)
        return None
