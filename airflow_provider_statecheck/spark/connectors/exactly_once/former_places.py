"""
Output of a sink at places where earlier runs have written.

A sink may write to another place in each run, such as a folder for each day. The output of the restored checkpoint is
then at a *former* place: it is committed there if it was not yet, and the sink goes on at its own place. Output that is
no longer in force, because its run starts again, may be at further places. The commit logs have links to them; it is
retracted where it is, before the first commit of the attempt, as at the sink's own place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    StorageError,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import CommitLog
from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place, RestoredOutput

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.connectors.exactly_once.committer import CommitDestination, TwoPhaseCommitter
    from airflow_provider_statecheck.spark.connectors.sink import SinkContext

log = logging.getLogger(__name__)


class MovableSink(Protocol):
    """What a sink needs to settle its output at former places; see :class:`.CommittingSink`."""

    def at(self, place: Place) -> Self | None:
        """Return the sink at a place; ``None`` if it cannot be reached."""

    def resolve_place(self, context: SinkContext) -> Place:
        """Return the place of the destination."""

    def prepare(self, context: SinkContext) -> CommitDestination:
        """Check the destination without changing output, and return it."""

    def committer_for(
        self,
        context: SinkContext,
        destination: CommitDestination,
        *,
        former: CommitLog,
        goes_on_at: str | None = None,
    ) -> TwoPhaseCommitter:
        """Return a committer of the destination, which is still to be opened."""

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """Publish the output of a completed checkpoint."""

    def close(self, succeeded: bool) -> None:
        """End the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerPlace:
    """A former place that the attempt has opened."""

    place: Place
    sink: MovableSink
    """The sink as it is there."""
    committer: TwoPhaseCommitter

    @property
    def log(self) -> CommitLog:
        """Its commit log after the opening."""
        return self.committer.opened


class FormerPlaces:
    """
    The former places of a sink, as one attempt finds them.

    :param place: Place of the sink itself.
    """

    def __init__(self, sink: MovableSink, place: Place, context: SinkContext) -> None:
        self._sink = sink
        self._place = place
        self._context = context
        self._restored = context.restored_output or RestoredOutput(place=None, is_committed=False, is_of_this_run=False)
        self._restored_id = context.restored_checkpoint_id or 0
        self._is_left = False
        """Whether the output of the restored checkpoint is elsewhere."""
        self._left: FormerPlace | None = None
        """The place of that output; ``None`` if nothing there can or must be changed."""
        self._opened: list[FormerPlace] = []
        self._unsettled: list[FormerPlace] = []
        self._changed: list[FormerPlace] = []

    @property
    def log(self) -> CommitLog:
        """Log of the place with the output of the restored checkpoint, if that is another one."""
        return CommitLog() if self._left is None else self._left.log

    def leave(self, destination: CommitDestination) -> None:
        """
        Open the place with the output of the restored checkpoint, if that is not the destination.

        :raises IncompatibleCheckpointError: if the sink may not go on at the destination.
        :raises StateCheckError: if the place fails.
        """
        place, lineage = self._restored.place, self._context.lineage
        if not self._restored_id or place == self._place:
            return
        if place is None:
            self._leave_unknown(destination)
        elif self._place.has_log_of(place):
            self._leave_staged_rows(place)
        # A directory or table that was renamed has its log with it.
        elif not destination.log_of(lineage).has_written(self._context.restored_epoch or 0):
            self._require_next_run(place)
            self._leave(place)

    def find(self, own: TwoPhaseCommitter) -> None:
        """
        Open the places with output that is no longer in force.

        :param own: Committer of the sink's own place.
        :raises StateCheckError: if a place fails, or its output cannot be retracted.
        """
        ancestry = own.opened.ancestry_of(self._context.epoch)
        waiting = [place for each in (own.opened, self.log) for place in each.abandoned_places(ancestry)]
        known = {self._place.text, *(each.place.text for each in self._opened)}
        while waiting:
            text = waiting.pop()
            if text in known:
                continue
            known.add(text)
            found = self._visit(Place.parse(text), own.opened)
            waiting += () if found is None else found.log.abandoned_places(ancestry)
        self._unsettled = [each for each in self._opened if each.log.outside(ancestry)]
        unsettled = tuple(sorted(each.place.text for each in self._unsettled))
        if unsettled != own.opened.unsettled:
            own.note_unsettled(unsettled)

    def is_here(self, checkpoint_id: int) -> bool:
        """Return whether the output of a checkpoint is at the sink's own place."""
        return not (self._is_left and checkpoint_id <= self._restored_id)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Commit the output of the restored checkpoint at its place, unless it is known to be committed.

        :raises StateCheckError: if the place fails.
        """
        if self._left is not None and not self._restored.is_committed:
            self._settle(each for each in self._unsettled if each is not self._left)
            self._left.sink.commit(checkpoint_id, committables)
            self._changed.append(self._left)

    def settle_before(self, checkpoint_id: int) -> None:
        """
        Retract the output that is no longer in force, if a commit is the first one of the attempt.

        :raises StateCheckError: if a place fails.
        """
        # A commit that is only repeated replaces nothing.
        if not self._restored.is_committed or checkpoint_id > self._restored_id:
            self.settle()

    def settle(self) -> None:
        """
        Retract the output that is no longer in force.

        :raises StateCheckError: if a place fails.
        """
        self._settle(self._unsettled)

    def sweep(self) -> None:
        """Delete uncommitted output of earlier attempts at the places that have changed."""
        for each in self._changed:
            each.committer.sweep_earlier()

    def release(self) -> None:
        """Release the connections to the places."""
        for each in self._opened:
            each.sink.close(succeeded=False)

    def _settle(self, places: Iterable[FormerPlace]) -> None:
        # The last ones first: they are found through those before them.
        for each in reversed(list(places)):
            each.committer.retract()
            self._unsettled.remove(each)
            self._changed.append(each)

    def _leave_unknown(self, destination: CommitDestination) -> None:
        # Without a log, this place has no output of the job: the checkpoint was taken at another one.
        if self._restored.is_committed and destination.log_of(self._context.lineage) == CommitLog():
            self._is_left = True
            log.warning(
                "%s is new for %r: the output of checkpoint %s was committed to a place that an older version did not "
                "record",
                destination.name,
                self._context.uid,
                self._restored_id,
            )

    def _leave_staged_rows(self, place: Place) -> None:
        if not self._restored.is_committed:
            self._is_left = True
            self._left = self._require_opened(place, goes_on_at=None)

    def _leave(self, place: Place) -> None:
        self._is_left = True
        if not self._restored.is_committed:
            self._left = self._require_opened(place, goes_on_at=self._place.text)
        else:
            self._left = self._visit(place, CommitLog())
        log.info("%r goes on at %s; its earlier output is at %s", self._context.uid, self._place.shown, place.shown)

    def _require_next_run(self, place: Place) -> None:
        if self._restored.is_of_this_run:
            raise IncompatibleCheckpointError(
                f"Expected the sink {self._context.uid!r} of job {self._context.job_name!r} at {place.shown}, where "
                f"its run has written the output up to checkpoint {self._restored_id}, found it at "
                f"{self._place.shown}; restore the former place until the run has ended, for it may depend on the run "
                "but not on the try or on the time of day; or start the run again with on_clear='restart'.",
                checkpoint_id=self._restored_id,
            )

    def _require_opened(self, place: Place, *, goes_on_at: str | None) -> FormerPlace:
        sink = self._sink_at(place)
        if sink is None:
            raise IncompatibleCheckpointError(
                f"Expected the sink {self._context.uid!r} of job {self._context.job_name!r} at {place.shown}, where "
                f"the output of checkpoint {self._restored_id} is not known to be committed, found it at "
                f"{self._place.shown}, from where it cannot be committed; run the stage with the former sink and place "
                "until a try has succeeded, then change them.",
                checkpoint_id=self._restored_id,
            )
        destination = sink.prepare(self._elsewhere)
        found = self._former_place(place, sink, destination, goes_on_at=goes_on_at)
        found.committer.open()
        return found

    def _sink_at(self, place: Place) -> MovableSink | None:
        found = self._sink.at(place) if place.is_reachable_from(self._place) else None
        return found if found is not None and found.resolve_place(self._context) == place else None

    def _visit(self, place: Place, before: CommitLog) -> FormerPlace | None:
        """Open a place whose output is committed; return ``None`` if it is gone or cannot be reached."""
        sink = self._sink_at(place)
        if sink is None:
            log.warning("Output of %r at %s cannot be reached and is left as it is", self._context.uid, place.shown)
            return None
        destination = self._prepared(place, sink)
        if destination is None:
            return None
        found = self._former_place(place, sink, destination, before, goes_on_at=self._place.text)
        self._take_over(found)
        return found

    def _prepared(self, place: Place, sink: MovableSink) -> CommitDestination | None:
        try:
            destination = sink.prepare(self._elsewhere)
            if destination.log_of(self._context.lineage).starts:
                return destination
        except EnvironmentNotReadyError as error:
            log.info("Output of %r at %s is gone: %s", self._context.uid, place.shown, error)
        sink.close(succeeded=False)
        return None

    def _take_over(self, found: FormerPlace) -> None:
        committer = found.committer
        try:
            committer.open()
        except CorruptStateError:
            raise
        except StorageError as error:
            committer.opened = committer.begun(committer.destination.log_of(self._context.lineage))
            if committer.opened.outside(committer.opened.ancestry_of(self._context.epoch)):
                raise
            # Nothing has to change there: the place may be an archive by now.
            log.warning("%s is left as it is: %s", found.place.shown, error)

    def _former_place(
        self,
        place: Place,
        sink: MovableSink,
        destination: CommitDestination,
        before: CommitLog | None = None,
        *,
        goes_on_at: str | None,
    ) -> FormerPlace:
        committer = sink.committer_for(
            self._elsewhere, destination, former=before or CommitLog(), goes_on_at=goes_on_at
        )
        found = FormerPlace(place=place, sink=sink, committer=committer)
        self._opened.append(found)
        return found

    @property
    def _elsewhere(self) -> SinkContext:
        # The output of this attempt has its schema checked at its own place.
        return replace(self._context, schema=None, gone_uids=(), restored_output=None)
