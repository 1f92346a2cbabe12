"""Driver side of a sink with two-phase commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.spark.sinks.ledger import Ancestry, Start, refuse_output_of_removed_stages
from airflow_provider_statecheck.spark.sinks.sink import SinkContext
from airflow_provider_statecheck.spark.sinks.two_phase_commit_log import (
    CommitDestination,
    CommitLog,
    LogChange,
    Publication,
    within,
)

log = logging.getLogger(__name__)
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPhaseCommitter:
    """
    The ownership of a destination by one attempt.

    :param destination: Destination with the output and its log.
    :param context: Attempt that owns the destination.
    :param lineage: Identifier of the sink.
    :param can_retract: Whether commits from now on can be rolled back; the log records this for earlier commits.
    :param refuses_earlier_output: Whether a fresh start fails if the destination has output of earlier starts.
    """

    destination: CommitDestination
    context: SinkContext
    lineage: str
    can_retract: bool
    refuses_earlier_output: bool

    def open(self) -> None:
        """
        Take ownership of the destination.

        :raises StaleAttemptError: if a newer attempt owns the destination.
        :raises EnvironmentNotReadyError: if the destination has output to delete that is not retractable, or that the
            sink refuses.
        :raises CorruptStateError: if output of the restored checkpoint was replaced.
        :raises CoordinatorError: if the attempt has committed after restoring another checkpoint.
        """
        start = Start(self.context.generation, self.context.restored_checkpoint_id, self.context.restored_epoch)

        def begin(current: CommitLog) -> LogChange | None:
            self._require_first_opening(current, start)
            if not current.starts:
                refuse_output_of_removed_stages(self.context, self.destination.name, self._has_output)
            begun = current.begun(self.context.epoch, start)
            ancestry = begun.ancestry_of(self.context.epoch)
            self._require_not_retracted(begun, ancestry)
            self._require_replaceable(begun, ancestry)
            return LogChange(before=current, after=begun)

        self._apply(begin)

    def commit(self, checkpoint_id: int, committables: Sequence[Committable]) -> None:
        """
        Publish the output of a checkpoint; idempotent.

        :raises StaleAttemptError: if a newer attempt owns the destination.
        :raises CoordinatorError: if the checkpoint is not in the ancestry of the attempt.
        """
        own = tuple(each for each in committables if each.lineage == self.lineage)
        if len(own) < len(committables):
            log.warning("The uncommitted output of another job in the savepoint is left to that job")
        if not own:
            return  # no output, and the attempt that took the checkpoint is unknown
        epoch = max(each.epoch for each in own)

        def add(current: CommitLog) -> LogChange | None:
            ancestry = current.ancestry_of(self.context.epoch)
            self._require_in_ancestry(ancestry, epoch, checkpoint_id)
            if current.holds(epoch, checkpoint_id):
                return None
            return self._add_change(current, ancestry, epoch, checkpoint_id, own)

        self._apply(add)

    def close(self) -> None:
        """
        Retract, after a success, the output outside the ancestry of this attempt.

        :raises StaleAttemptError: if a newer attempt owns the destination.
        """

        def end(current: CommitLog) -> LogChange | None:
            ancestry = current.ancestry_of(self.context.epoch)
            retracted = current.outside(ancestry)
            return (
                LogChange(before=current, after=current.retracting(ancestry), retracted=retracted)
                if retracted
                else None
            )

        self._apply(end)

    def _add_change(
        self,
        current: CommitLog,
        ancestry: Ancestry,
        epoch: int,
        checkpoint_id: int,
        committables: tuple[Committable, ...],
    ) -> LogChange:
        generation = current.starts[epoch].generation if epoch in current.starts else self.context.generation
        remaining = current.retracting(ancestry)
        self._require_in_order(remaining, epoch, checkpoint_id)
        return LogChange(
            before=current,
            after=remaining.adding(generation, epoch, checkpoint_id, is_retractable=self.can_retract),
            publication=Publication(
                generation=generation, epoch=epoch, checkpoint_id=checkpoint_id, committables=committables
            ),
            retracted=current.outside(ancestry),
        )

    def _apply(self, decide: Callable[[CommitLog], LogChange | None]) -> None:
        for _ in range(_TRIES):
            change = decide(self._load())
            if change is None or self.destination.apply(self.context.epoch, change):
                return
        raise StorageError(
            f"Expected to change the log of {self.destination.name} within {_TRIES} tries, found a concurrent change at each "
            "try; retry the task, which resumes from the last checkpoint."
        )

    def _load(self) -> CommitLog:
        current = self.destination.load(self.context.epoch)
        require_newest(current, self.context.epoch, self.destination.name)
        return current

    def _has_output(self, lineage: str) -> bool:
        return bool(self.destination.log_of(lineage).committed)

    def _require_first_opening(self, current: CommitLog, start: Start) -> None:
        epoch = self.context.epoch
        if current.starts.get(epoch, start) != start and any(each.epoch == epoch for each in current.committed):
            raise CoordinatorError(
                f"Expected attempt {epoch} to keep its restored checkpoint after its first commit to "
                f"{self.destination.name}, found checkpoint {start.restored} restored; register a new attempt."
            )

    def _require_not_retracted(self, current: CommitLog, ancestry: Ancestry) -> None:
        retracted = within(current.retracted, ancestry)
        if retracted:
            raise CorruptStateError(
                f"Expected the output of checkpoint {retracted[-1].last} in {self.destination.name}, found that it was replaced by "
                "later commits; restore from the newest checkpoint or from one before the replaced ones, or start over.",
                checkpoint_id=retracted[-1].last,
            )

    def _require_replaceable(self, current: CommitLog, ancestry: Ancestry) -> None:
        replaced = current.outside(ancestry)
        if not replaced:
            return
        if self.refuses_earlier_output and self.context.restored_checkpoint_id is None:
            raise self._replace_error(
                f"checkpoints up to {replaced[-1].last} of earlier starts", "on_earlier_output is 'refuse'"
            )
        permanent = [each for each in replaced if not (self.can_retract and each.is_retractable)]
        if permanent:
            raise self._replace_error(
                f"checkpoints {permanent[0].first} to {permanent[-1].last}", "it cannot be rolled back"
            )

    def _replace_error(self, output: str, reason: str) -> EnvironmentNotReadyError:
        return EnvironmentNotReadyError(
            f"Expected only the output of the restored checkpoint of {self.context.uid!r} of job {self.context.job_name!r} in "
            f"{self.destination.name}, found output of {output}, and {reason}; restore from the newest checkpoint, choose another "
            "destination, or delete that output and its log."
        )

    def _require_in_ancestry(self, ancestry: Ancestry, epoch: int, checkpoint_id: int) -> None:
        if not ancestry.holds(epoch, checkpoint_id):
            raise CoordinatorError(
                f"Expected to commit a checkpoint of attempt {self.context.epoch} or of its ancestry to "
                f"{self.destination.name}, found checkpoint {checkpoint_id} of attempt {epoch}; restore from that checkpoint, or "
                "start over.",
                checkpoint_id=checkpoint_id,
            )

    def _require_in_order(self, remaining: CommitLog, epoch: int, checkpoint_id: int) -> None:
        if remaining.committed and remaining.committed[-1].epoch > epoch:
            newest = remaining.committed[-1]
            raise CoordinatorError(
                f"Expected to commit to {self.destination.name} a checkpoint after {newest.last} of attempt {newest.epoch}, "
                f"found checkpoint {checkpoint_id} of attempt {epoch}; restore from checkpoint {newest.last}, or start over.",
                checkpoint_id=checkpoint_id,
            )


class Committable(Protocol):
    """Output of one task."""

    @property
    def lineage(self) -> str:
        """Identifier of the sink that wrote the output."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch of the attempt that wrote the output."""
        ...


def require_newest(current: CommitLog, epoch: int, name: str) -> None:
    """
    Require that no newer attempt has taken ownership of a destination.

    :raises StaleAttemptError: if a newer attempt owns the destination.
    """
    if current.newest_epoch > epoch:
        raise StaleAttemptError(
            f"Attempt {epoch} no longer owns {name}: attempt {current.newest_epoch} took it over; stop attempt {epoch}."
        )
