"""Two-phase commits of sinks: the contract of destinations, and the committer."""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    StaleAttemptError,
    StateCheckError,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import (
    Ancestry,
    CommitLog,
    CommitRange,
    LogChange,
    Publication,
    Start,
    within,
)
from airflow_provider_statecheck.spark.connectors.sink import SinkContext, TaskCommittable, lineage_of

log = logging.getLogger(__name__)
_TRIES = 20
_LONGEST_PAUSE_SECONDS = 10.0


class CommitDestination(ABC):
    """
    A destination that stores the commit log of a sink together with its output.

    Each method raises a ``StorageError`` if the destination fails, and a ``CorruptStateError`` if the log, records of
    the output or the output itself are missing or damaged. Methods that change the destination raise a
    ``StaleAttemptError`` and change nothing if a newer attempt owns it.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the destination for error messages, without credentials."""

    @abstractmethod
    def log_of(self, lineage: str) -> CommitLog:
        """Return the log of a sink without changing it; empty if the sink never wrote."""

    @abstractmethod
    def load(self, epoch: int) -> CommitLog:
        """
        Return the log of this sink after all its recorded effects are complete.

        :param epoch: Attempt that loads the log. Afterwards, unlogged changes of older attempts have no effect.
        """

    @abstractmethod
    def require_retractable(self, ranges: Sequence[CommitRange]) -> None:
        """
        Require output that :meth:`apply` can roll back.

        :raises StateCheckError: if it cannot.
        """

    @abstractmethod
    def require_same(self, committed: Publication) -> None:
        """
        Require that a committed checkpoint has the output of a repeated commit.

        :raises CorruptStateError: if the output differs.
        :raises CoordinatorError: if the checkpoint was skipped and newer ones were committed.
        """

    @abstractmethod
    def apply(self, epoch: int, change: LogChange) -> StateCheckError | None:
        """
        Apply a change with its effects, unless the log has changed in the meantime.

        A transactional destination applies the log and the effects atomically. Other destinations write the log first,
        and :meth:`load` completes missing effects.

        :param epoch: Attempt that applies the change.
        :return: ``None`` if the change was applied; otherwise the reason for which it was not, or may not have been.
            The change is then decided again from the log of another :meth:`load`.
        :raises UnsupportedStateError: if the destination cannot store the output.
        """

    @abstractmethod
    def sweep(self, epoch: int, last_epoch: int) -> None:
        """
        Delete the output of attempts up to an epoch that was never committed and never can be.

        :param epoch: Attempt that owns the destination.
        """


@dataclass(slots=True, kw_only=True)
class TwoPhaseCommitter:
    """
    The ownership of a destination by one attempt.

    :param can_retract: Whether commits from now on can be rolled back; the log records this for earlier commits.
    :param refuses_earlier_output: Whether a fresh start fails if the destination has output of earlier starts.
    :param former: Log of the place where the sink was before, if that is another one.
    :param goes_on_at: Place of the attempt's own output, if the destination only has output of earlier attempts.
    """

    destination: CommitDestination
    context: SinkContext
    can_retract: bool
    refuses_earlier_output: bool
    former: CommitLog = field(default_factory=CommitLog)
    goes_on_at: str | None = None
    opened: CommitLog = field(default_factory=CommitLog, init=False)
    """The log after the opening."""
    _has_swept: bool = field(default=False, init=False)

    def open(self) -> None:
        """
        Take ownership of the destination, as :meth:`.CommittingSink.open` describes.

        :raises CoordinatorError: if the attempt, or a lost one with its epoch, has committed.
        """
        self._apply(self._begin)

    def begun(self, current: CommitLog) -> CommitLog:
        """Return the log of the destination after the opening."""
        return current.following(self.former).begun(self.context.epoch, self._start, self.goes_on_at)

    @property
    def _start(self) -> Start:
        context = self.context
        return Start(context.generation, context.restored_checkpoint_id, context.restored_epoch)

    def note_unsettled(self, places: tuple[str, ...]) -> None:
        """Record the other places with output that is to be retracted before the next commit."""
        self._apply(lambda current: LogChange(before=current, after=replace(current, unsettled=places)))

    def commit(self, checkpoint_id: int, committables: Sequence[TaskCommittable]) -> None:
        """
        Publish the output of a checkpoint, as :meth:`.CommittingSink.commit` describes.

        :raises CoordinatorError: if the checkpoint is not in the ancestry of the attempt.
        """
        own = tuple(each for each in committables if each.lineage == self.context.lineage)
        self._require_foreign_output_committed(
            checkpoint_id, [each for each in committables if each.lineage != self.context.lineage]
        )
        if not own and (committables or checkpoint_id <= (self.context.restored_checkpoint_id or 0)):
            return  # no output, and the attempt that took the checkpoint is unknown
        epoch = max((each.epoch for each in own), default=self.context.epoch)
        self._apply(lambda current: self._add(current, epoch, checkpoint_id, own))
        if epoch == self.context.epoch and not self._has_swept:
            # From here on, no attempt can resume from uncommitted output of earlier attempts.
            self.sweep_earlier()
            self._has_swept = True

    def close(self) -> None:
        """Retract, after a success, the output outside the ancestry of this attempt, and delete uncommitted output."""
        self.retract()
        self._sweep(self.context.epoch)

    def retract(self) -> None:
        """Retract the output outside the ancestry of this attempt."""
        self._apply(lambda current: self._retraction(current, self._ancestry(current)))

    def sweep_earlier(self) -> None:
        """Delete uncommitted output of earlier attempts."""
        self._sweep(self.context.epoch - 1)

    def _begin(self, current: CommitLog) -> LogChange | None:
        self._require_first_opening(current)
        if not current.starts:
            self._refuse_output_of_removed_stages()
        self._warn_if_unknown(current, self._start)
        self.opened = begun = self.begun(current)
        ancestry = begun.ancestry_of(self.context.epoch)
        self._require_not_replaced(begun, ancestry)
        self._require_replaceable(begun, ancestry)
        return LogChange(before=current, after=begun) if begun != current else None

    def _add(
        self, current: CommitLog, epoch: int, checkpoint_id: int, committables: tuple[TaskCommittable, ...]
    ) -> LogChange | None:
        ancestry = self._ancestry(current)
        self._require_in_ancestry(ancestry, epoch, checkpoint_id)
        publication = self._publication(current, epoch, checkpoint_id, committables)
        if not publication.committables:
            # An open commit without rows is no reason to replace output before the attempt has added any.
            return self._retraction(current, ancestry) if epoch == self.context.epoch else None
        if current.holds(epoch, checkpoint_id):
            self.destination.require_same(publication)
            return None
        remaining = current.retracting(ancestry)
        self._require_in_order(remaining, epoch, checkpoint_id)
        return LogChange(
            before=current,
            after=remaining.adding(publication.generation, epoch, checkpoint_id, is_retractable=self.can_retract),
            publication=publication,
            retracted=current.outside(ancestry),
        )

    def _publication(
        self, current: CommitLog, epoch: int, checkpoint_id: int, committables: Iterable[TaskCommittable]
    ) -> Publication:
        return Publication(
            generation=current.starts[epoch].generation if epoch in current.starts else self.context.generation,
            epoch=epoch,
            checkpoint_id=checkpoint_id,
            committables=tuple(each for each in committables if each.has_output or each.KEEPS_EMPTY),
            owner=f"{self.context.uid!r} of job {self.context.job_name!r}",
        )

    def _retraction(self, current: CommitLog, ancestry: Ancestry) -> LogChange | None:
        retracted = current.outside(ancestry)
        if not retracted and not current.unsettled:
            return None
        return LogChange(before=current, after=current.retracting(ancestry), retracted=retracted)

    def _apply(self, decide: Callable[[CommitLog], LogChange | None]) -> None:
        for number in range(_TRIES):
            failure = self._try(decide)
            if failure is None:
                return
            if number == _TRIES - 1:
                raise failure
            log.warning("Retrying the commit to %s: %s", self.destination.name, failure)
            pause(number)

    def _try(self, decide: Callable[[CommitLog], LogChange | None]) -> StateCheckError | None:
        current = self.destination.load(self.context.epoch)
        require_newest(current.newest_epoch, self.context.epoch, self.destination.name)
        change = decide(current)
        return None if change is None else self.destination.apply(self.context.epoch, change)

    def _sweep(self, last_epoch: int) -> None:
        try:
            self.destination.sweep(self.context.epoch, last_epoch)
        except StateCheckError as error:
            log.warning("Orphan files of %s were not deleted: %s", self.destination.name, error)

    def _ancestry(self, current: CommitLog) -> Ancestry:
        if self.context.epoch not in current.starts:
            raise CorruptStateError(
                f"Expected {self.destination.name} as attempt {self.context.epoch} opened it, found no record of the "
                "attempt: it was recreated, or the log of the sink was deleted. Run the task again; start over if "
                "output is missing."
            )
        return current.ancestry_of(self.context.epoch)

    def _require_foreign_output_committed(self, checkpoint_id: int, foreign: Iterable[TaskCommittable]) -> None:
        for lineage, epoch in sorted({(each.lineage, each.epoch) for each in foreign if each.has_output}):
            theirs = self.destination.log_of(lineage)
            if not theirs.starts:
                log.warning(
                    "The savepoint belongs to a job that writes to another destination than %s; its uncommitted "
                    "output is left to that job",
                    self.destination.name,
                )
            elif not theirs.knows(epoch, checkpoint_id):
                raise IncompatibleCheckpointError(
                    f"Expected all output of the savepoint to be committed to {self.destination.name}, found that of "
                    f"checkpoint {checkpoint_id} with the mark {lineage} missing: the job that took the savepoint "
                    "ended before the commit. Run that job until it succeeds, or take another savepoint of it.",
                    checkpoint_id=checkpoint_id,
                )

    def _refuse_output_of_removed_stages(self) -> None:
        context = self.context
        for uid in context.gone_uids:
            if self.destination.log_of(lineage_of(context.job_id, uid)).committed:
                stage, mine = (each.rpartition("/")[0] for each in (uid, context.uid))
                raise EnvironmentNotReadyError(
                    f"Expected no output in {self.destination.name} of a stage that was removed from job "
                    f"{context.job_name!r} or is in another Dag, found output of {stage!r}, which {mine!r} would "
                    f"duplicate. If {mine!r} is the new name of {stage!r}, set renamed_uids={{{stage!r}: {mine!r}}} or "
                    f"uid={stage!r}; otherwise choose another target, or set another job= for the stage. If another "
                    "Dag still runs it, and both are to write there, set allow_non_restored_state=True for the first "
                    "run."
                )

    def _warn_if_unknown(self, current: CommitLog, start: Start) -> None:
        taker = start.taken_by
        known = {*current.starts, *self.former.starts}
        if taker is not None and taker not in known and taker > current.forgotten:
            log.warning(
                "%s does not know attempt %s, which took the restored checkpoint %s: the sink is new there, or the "
                "destination was recreated and lacks all earlier output",
                self.destination.name,
                taker,
                start.restored,
            )

    def _require_first_opening(self, current: CommitLog) -> None:
        # A database that was restored from a backup gives epochs again. The output of the lost attempt with this epoch
        # would look like output of this one, and readers would see its rows twice after this attempt has written them
        # again.
        epoch = self.context.epoch
        if any(each.epoch == epoch for each in current.committed):
            raise CoordinatorError(
                f"Expected attempt {epoch} to be opened before its first commit to {self.destination.name}, found "
                f"output of an attempt {epoch} there; it restores another checkpoint, or the database was restored "
                "from a backup. Retry the task, which registers a new attempt."
            )

    def _require_not_replaced(self, current: CommitLog, ancestry: Ancestry) -> None:
        replaced = [each.last for each in within(current.retracted, ancestry)]
        replaced += [last for epoch, last in ancestry.segments if epoch <= current.forgotten]
        if replaced:
            raise CorruptStateError(
                f"Expected the output of checkpoint {replaced[-1]} in {self.destination.name}, found that it was "
                "retracted and replaced by later commits; restore from the newest checkpoint or from one before the "
                "replaced ones, or start over.",
                checkpoint_id=replaced[-1],
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
        # Fails the start rather than its first commit, after hours of work.
        self.destination.require_retractable(replaced)

    def _replace_error(self, output: str, reason: str) -> EnvironmentNotReadyError:
        return EnvironmentNotReadyError(
            f"Expected only the output of the restored checkpoint of {self.context.uid!r} of job "
            f"{self.context.job_name!r} in {self.destination.name}, found output of {output}, and {reason}; restore "
            "from the newest checkpoint, choose another destination, or delete that output and its log."
        )

    def _require_in_ancestry(self, ancestry: Ancestry, epoch: int, checkpoint_id: int) -> None:
        if not ancestry.holds(epoch, checkpoint_id):
            raise CoordinatorError(
                f"Expected to commit a checkpoint of attempt {self.context.epoch} or of its ancestry to "
                f"{self.destination.name}, found checkpoint {checkpoint_id} of attempt {epoch}; restore from that "
                "checkpoint, or start over.",
                checkpoint_id=checkpoint_id,
            )

    def _require_in_order(self, remaining: CommitLog, epoch: int, checkpoint_id: int) -> None:
        if remaining.committed and remaining.committed[-1].epoch > epoch:
            newest = remaining.committed[-1]
            raise CoordinatorError(
                f"Expected to commit to {self.destination.name} a checkpoint after {newest.last} of attempt "
                f"{newest.epoch}, found checkpoint {checkpoint_id} of attempt {epoch}; restore from checkpoint "
                f"{newest.last}, or start over.",
                checkpoint_id=checkpoint_id,
            )


def require_newest(newest: int, epoch: int, name: str) -> None:
    """
    Require that no newer attempt has taken ownership of a destination.

    :param newest: Epoch of the newest attempt of the destination.
    :raises StaleAttemptError: if it is newer.
    """
    if newest > epoch:
        raise StaleAttemptError(
            f"Attempt {epoch} no longer owns {name}: attempt {newest} took it over; stop attempt {epoch}. If no other "
            "attempt runs because a backup of the database was restored, retry or clear the task until its attempt is "
            f"above {newest}.",
            epoch=newest,
        )


def other_output_error(committed: Publication, name: str, found: str) -> CorruptStateError:
    """
    Return the error for a commit that is repeated with other output.

    :param name: Name of the destination, without credentials.
    :param found: What the two commits have instead of the same output.
    """
    return CorruptStateError(
        f"Expected the same output with each commit of checkpoint {committed.checkpoint_id} to {name}, found {found}; "
        "another checkpoint with this id was committed. Start over.",
        checkpoint_id=committed.checkpoint_id,
    )


def pause(number: int) -> None:
    """
    Wait before a commit is tried again, on average twice as long after each failure, so that writers get out of step.

    :param number: Number of failures before this one, from 0.
    """
    time.sleep(min(_LONGEST_PAUSE_SECONDS, 0.05 * 2**number) * random.random())  # noqa: S311 - jitter
