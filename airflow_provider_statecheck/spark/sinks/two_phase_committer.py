"""Driver side of a two-phase commit."""

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
from airflow_provider_statecheck.spark.sinks.ledger import Ancestry, Start, refuse_output_of_gone
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


class Committable(Protocol):
    """What one task handed over."""

    @property
    def lineage(self) -> str:
        """Whose it is."""
        ...

    @property
    def epoch(self) -> int:
        """Of the attempt that wrote it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPhaseCommitter:
    """
    One attempt's hold on a destination.

    :param destination: Keeps output and log.
    :param lineage: Whose output this is.
    :param can_retract: Whether output that is committed from now on can be taken back; the log remembers it of earlier output.
    :param refuses_earlier_output: Whether a fresh start is refused while there is output of earlier ones.
    """

    destination: CommitDestination
    context: SinkContext
    lineage: str
    can_retract: bool
    refuses_earlier_output: bool

    def open(self) -> None:
        """
        Take the destination over.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: It holds output that has to go and may not.
        :raises CorruptStateError: Output of the restored checkpoint was replaced.
        :raises CoordinatorError: The attempt has begun with another checkpoint.
        """
        start = Start(self.context.generation, self.context.restored_checkpoint_id, self.context.restored_epoch)

        def begin(found: CommitLog) -> LogChange | None:
            self._require_first_opening(found, start)
            if not found.starts:
                refuse_output_of_gone(self.context, self.destination.name, self._has_output)
            begun = found.begun(self.context.epoch, start)
            line = begun.line_to(self.context.epoch)
            self._require_not_retracted(begun, line)
            self._require_replaceable(begun, line)
            return LogChange(before=found, after=begun)

        self._change(begin)

    def commit(self, checkpoint_id: int, committables: Sequence[Committable]) -> None:
        """
        Publish what belongs to a checkpoint, once however often it is tried.

        :raises StaleAttemptError: A newer attempt has the destination.
        :raises CoordinatorError: The attempt does not go on from the checkpoint.
        """
        ours = tuple(each for each in committables if each.lineage == self.lineage)
        if len(ours) < len(committables):
            log.warning("What another job had not committed to its own sink is left to that job")
        if not ours:
            return  # nothing to publish, and nothing tells which attempt of ours took it
        epoch = max(each.epoch for each in ours)

        def add(found: CommitLog) -> LogChange | None:
            line = found.line_to(self.context.epoch)
            self._require_on_line(line, epoch, checkpoint_id)
            if found.holds(epoch, checkpoint_id):
                return None
            return self._adding(found, line, epoch, checkpoint_id, ours)

        self._change(add)

    def close(self) -> None:
        """
        Take back, after a success, what no commit of this attempt replaced.

        :raises StaleAttemptError: A newer attempt has the destination.
        """

        def end(found: CommitLog) -> LogChange | None:
            line = found.line_to(self.context.epoch)
            gone = found.outside(line)
            return LogChange(before=found, after=found.retracting(line), retracted=gone) if gone else None

        self._change(end)

    def _adding(
        self, found: CommitLog, line: Ancestry, epoch: int, checkpoint_id: int, committables: tuple[Committable, ...]
    ) -> LogChange:
        generation = found.starts[epoch].generation if epoch in found.starts else self.context.generation
        kept = found.retracting(line)
        self._require_in_order(kept, epoch, checkpoint_id)
        return LogChange(
            before=found,
            after=kept.adding(generation, epoch, checkpoint_id, is_retractable=self.can_retract),
            publication=Publication(
                generation=generation, epoch=epoch, checkpoint_id=checkpoint_id, committables=committables
            ),
            retracted=found.outside(line),
        )

    def _change(self, decide: Callable[[CommitLog], LogChange | None]) -> None:
        for _ in range(_TRIES):
            change = decide(self._load())
            if change is None or self.destination.apply(self.context.epoch, change):
                return
        raise StorageError(
            f"Expected to change the log of {self.destination.name} within {_TRIES} tries, found that others changed it each "
            "time; a retry goes on from the last checkpoint."
        )

    def _load(self) -> CommitLog:
        found = self.destination.load(self.context.epoch)
        require_newest(found, self.context.epoch, self.destination.name)
        return found

    def _has_output(self, lineage: str) -> bool:
        return bool(self.destination.log_of(lineage).committed)

    def _require_first_opening(self, found: CommitLog, start: Start) -> None:
        epoch = self.context.epoch
        if found.starts.get(epoch, start) != start and any(each.epoch == epoch for each in found.committed):
            raise CoordinatorError(
                f"Expected attempt {epoch} to restore nothing after its own first commit to {self.destination.name}, found "
                f"checkpoint {start.restored}; register a new attempt."
            )

    def _require_not_retracted(self, found: CommitLog, line: Ancestry) -> None:
        gone = within(found.retracted, line)
        if gone:
            raise CorruptStateError(
                f"Expected the output of checkpoint {gone[-1].last} in {self.destination.name}, found that it was replaced by "
                "what was committed since; restore from the newest checkpoint or from one before that, or start over.",
                checkpoint_id=gone[-1].last,
            )

    def _require_replaceable(self, found: CommitLog, line: Ancestry) -> None:
        gone = found.outside(line)
        if not gone:
            return
        if self.refuses_earlier_output and self.context.restored_checkpoint_id is None:
            raise self._refused(f"checkpoints up to {gone[-1].last} of earlier starts", "on_earlier_output is 'refuse'")
        lasting = [each for each in gone if not (self.can_retract and each.is_retractable)]
        if lasting:
            raise self._refused(f"checkpoints {lasting[0].first} to {lasting[-1].last}", "it cannot be taken back")

    def _refused(self, what: str, why: str) -> EnvironmentNotReadyError:
        return EnvironmentNotReadyError(
            f"Expected no output of {self.context.uid!r} of job {self.context.job_name!r} in {self.destination.name} but that of "
            f"the restored checkpoint, found that of {what}, and {why}. Restore from the newest checkpoint, choose another "
            "destination, or remove that output and its log yourself."
        )

    def _require_on_line(self, line: Ancestry, epoch: int, checkpoint_id: int) -> None:
        if not line.holds(epoch, checkpoint_id):
            raise CoordinatorError(
                f"Expected to commit to {self.destination.name} what attempt {self.context.epoch} goes on from or takes itself, "
                f"found checkpoint {checkpoint_id} of attempt {epoch}; restore from that checkpoint, or start over.",
                checkpoint_id=checkpoint_id,
            )

    def _require_in_order(self, kept: CommitLog, epoch: int, checkpoint_id: int) -> None:
        if kept.committed and kept.committed[-1].epoch > epoch:
            newest = kept.committed[-1]
            raise CoordinatorError(
                f"Expected to commit nothing to {self.destination.name} that came before checkpoint {newest.last} of attempt "
                f"{newest.epoch}, found checkpoint {checkpoint_id} of attempt {epoch}; restore from checkpoint {newest.last}, or "
                "start over.",
                checkpoint_id=checkpoint_id,
            )


def require_newest(found: CommitLog, epoch: int, name: str) -> None:
    """
    Refuse an attempt behind which another one has taken a destination over.

    :raises StaleAttemptError: if one has.
    """
    if found.newest_epoch > epoch:
        raise StaleAttemptError(
            f"Attempt {found.newest_epoch} has taken {name} over, attempt {epoch} may not write there any more; stop, and let "
            "the newer one go on."
        )
