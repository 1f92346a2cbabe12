"""Base class of the sinks of this package, which commits to a place and settles former ones."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar, get_args

from airflow_provider_statecheck.checkpoint.codec import require_one_of
from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import CommitLog
from airflow_provider_statecheck.spark.connectors.exactly_once.committer import CommitDestination, TwoPhaseCommitter
from airflow_provider_statecheck.spark.connectors.exactly_once.former_places import FormerPlaces
from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place
from airflow_provider_statecheck.spark.connectors.sink import OnEarlierOutput, SinkContext, TaskCommittable

log = logging.getLogger(__name__)
Target = TypeVar("Target")


class CommittingSink(ABC):
    """
    Base class of sinks that commit to a :class:`CommitDestination`.

    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` replaces it with
        the first commit, ``refuse`` fails the start.
    """

    _committable: ClassVar[type[TaskCommittable]]
    """Class of the committables of the tasks."""
    can_retract: bool = True
    """Whether committed output can be rolled back; if not, a start that requires it fails."""

    def __init__(self, on_earlier_output: OnEarlierOutput) -> None:
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        self._refuses_earlier_output = on_earlier_output == "refuse"
        self._committer: TwoPhaseCommitter | None = None
        self._former: FormerPlaces | None = None
        self.place: Place | None = None
        """Place of the opened sink, which checkpoints record."""

    def __getstate__(self) -> dict[str, Any]:
        # Tasks write; only the driver commits, and knows the database or catalog of a place.
        return {**self.__dict__, "_committer": None, "_former": None, "place": None}

    @abstractmethod
    def _destination(self, context: SinkContext) -> CommitDestination:
        """Check the destination without changing output, and return it."""

    @abstractmethod
    def _place(self, context: SinkContext) -> Place:
        """Return the place of the destination; relative paths are resolved."""

    @abstractmethod
    def at(self, place: Place) -> Self | None:
        """
        Return the sink as it is at a place where an earlier run has written, to commit or retract output there.

        :return: ``None`` if the place cannot be reached from what is known of it.
        """

    def _copy(self) -> Self:
        # Not as it is pickled, which leaves out what tasks do not need.
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, _committer=None, _former=None)
        return copied

    def resolve_place(self, context: SinkContext) -> Place:
        """Return the place of the destination, and remember it."""
        self.place = self._place(context)
        return self.place

    def prepare(self, context: SinkContext) -> CommitDestination:
        """Check the destination without changing output, and return it; raises as :meth:`open` does."""
        return self._destination(context)

    def committer_for(
        self,
        context: SinkContext,
        destination: CommitDestination,
        *,
        former: CommitLog,
        goes_on_at: str | None = None,
    ) -> TwoPhaseCommitter:
        """
        Return a committer of the destination, which is still to be opened.

        :param destination: Result of :meth:`prepare`.
        :param former: Log of the place where the sink was before; empty if there is none.
        :param goes_on_at: Place of the attempt's own output; ``None`` if it is this one.
        """
        self._committer = TwoPhaseCommitter(
            destination=destination,
            context=context,
            can_retract=self.can_retract,
            refuses_earlier_output=self._refuses_earlier_output,
            former=former,
            goes_on_at=goes_on_at,
        )
        return self._committer

    def open(self, context: SinkContext) -> None:
        """
        Check the destination and take ownership of it from earlier attempts.

        :raises StaleAttemptError: if a newer attempt owns the destination.
        :raises EnvironmentNotReadyError: if the sink cannot write to the destination, or output that it refuses or
            cannot roll back is there.
        :raises UnsupportedStateError: if the schema is incompatible with the destination.
        :raises CorruptStateError: if output of the restored checkpoint was replaced.
        :raises IncompatibleCheckpointError: if the run has written to another place, or the output of the restored
            checkpoint is not committed there and cannot be.
        :raises StorageError: if the destination fails.
        """
        self._release_former()
        self._former = former = FormerPlaces(self, self.resolve_place(context), context)
        try:
            destination = self.prepare(context)
            former.leave(destination)
            committer = self.committer_for(context, destination, former=former.log)
            committer.open()
            former.find(committer)
        except BaseException:
            self.close(succeeded=False)
            raise

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Publish the output of a completed checkpoint; idempotent.

        :raises StaleAttemptError: if a newer attempt owns the destination.
        :raises CorruptStateError: if output is missing or was modified.
        :raises IncompatibleCheckpointError: if another job has not committed its output of the restored savepoint.
        :raises UnsupportedStateError: if the output is incompatible with the destination.
        :raises StorageError: if the destination fails, or all its commits conflict with others.
        :raises CommitStateUnknownError: if the outcome of the commit is unknown; the next attempt finds it out.
        """
        if self._committer is None:
            raise CoordinatorError(f"Expected {self!r} to be open, found it closed; open it before commits.")
        if self._former is not None and not self._former.is_here(checkpoint_id):
            self._former.commit(checkpoint_id, committables)
            return
        if self._former is not None:
            self._former.settle_before(checkpoint_id)
        own = self._committer.context.lineage
        self._committer.commit(checkpoint_id, list(self._parsed(committables, own)))

    def _parsed(self, committables: Sequence[Mapping[str, Any]], own: str) -> Iterator[TaskCommittable]:
        for document in committables:
            try:
                yield self._committable.from_json(document)
            except CorruptStateError:
                if document.get("lineage") in (None, own):
                    raise
                log.warning("The savepoint belongs to a job with another kind of sink, to which its output is left")

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success, retract the output outside its ancestry and delete uncommitted output.

        :raises StaleAttemptError: if a newer attempt owns the destination.
        """
        committer, self._committer = self._committer, None
        try:
            # After a failure, the next attempt determines what it still needs.
            if committer is not None and succeeded:
                if self._former is not None:
                    self._former.settle()
                committer.close()
                if self._former is not None:
                    self._former.sweep()
        finally:
            self._release_former()

    def _release_former(self) -> None:
        former, self._former = self._former, None
        if former is not None:
            former.release()

    def _copy_error(self) -> CoordinatorError:
        return CoordinatorError(
            f"Expected {self!r} to be opened on the driver, found the copy of a task; open it before tasks start."
        )

    def _require_opened(self, target: Target | None) -> Target:
        if target is None:
            raise CoordinatorError(f"Expected {self!r} to be opened before it is used; open it on the driver.")
        return target
