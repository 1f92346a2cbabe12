"""
The state with which an attempt of a stage begins.

This is that of the newest checkpoint, unless the source has changed and wants the run to start again. The run then
starts where the run before it ended: its state and output include rows that the source may no longer have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_statecheck.exceptions import SourceChangedError, SourceRestartRequiredError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.enumerator import decode_source_state
from airflow_provider_statecheck.spark.connectors.files.replaced_files import ReplacedFiles
from airflow_provider_statecheck.spark.connectors.files.source import FileSource
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource
from airflow_provider_statecheck.spark.connectors.source import REWIND, some_of
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.stages.stage_state import RestoredStageState
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.connectors.source import SplitEnumerator

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStart:
    """State and input with which an attempt begins."""

    loaded: RestoredStage | None
    """The checkpoint to confirm; ``None`` without a restore."""
    state: RestoredStageState
    """Its state; empty if the attempt uses nothing of the checkpoint."""
    enumerator: SplitEnumerator
    restarted_run: str | None = None
    """Run that starts again, whose checkpoints and those of later runs are given up."""
    given_up: tuple[RestoredStageState, ...] = ()
    """States of the newest checkpoints of the runs that are given up, newest first."""


class OpenSource(Protocol):
    """Opens the source of a stage with the state of a checkpoint."""

    def __call__(self, restored: RestoredStageState, *, is_new_run: bool) -> SplitEnumerator:
        """
        Return the enumerator of the unfinished input.

        :raises SourceRestartRequiredError: if the source has changed, and wants the run to start again.
        """


def start_of(attempt: StageAttempt, source: object, open_source: OpenSource) -> StageStart:
    """
    Return the state with which an attempt begins, and the source that was opened with it.

    :raises SourceChangedError: if the source has changed, and the run cannot start again.
    :raises NoRestorableCheckpointError: if there are checkpoints to begin with but none is readable.
    """
    loaded = attempt.load()
    state = RestoredStageState(attempt, loaded)
    is_new_run = state.values.run not in (None, attempt.registration.owner.run_key)
    try:
        return StageStart(loaded=loaded, state=state, enumerator=open_source(state, is_new_run=is_new_run))
    except SourceRestartRequiredError as changed:
        if loaded is None or attempt.begins_from_savepoint:
            return _without_state(loaded, attempt, open_source, changed)
        return _Restart(attempt, source, open_source, changed).before(loaded, state)


def _without_state(
    loaded: RestoredStage | None,
    attempt: StageAttempt,
    open_source: OpenSource,
    changed: SourceRestartRequiredError,
    restarted_run: str | None = None,
) -> StageStart:
    log.warning("The stage starts over, because on_change is 'restart': %s", changed.found)
    fresh = RestoredStageState(attempt, None)
    enumerator = open_source(fresh, is_new_run=False)
    return StageStart(loaded=loaded, state=fresh, enumerator=enumerator, restarted_run=restarted_run)


class _Restart:
    """Starts a run again, from the end of the last run that had finished its input."""

    def __init__(
        self, attempt: StageAttempt, source: object, open_source: OpenSource, changed: SourceRestartRequiredError
    ) -> None:
        self._attempt = attempt
        self._source = source
        self._open_source = open_source
        self._changed = changed
        self._run = attempt.registration.owner.run_key
        self._given_up: list[Ledger] = []
        self._left: list[RestoredStageState] = []

    def before(self, loaded: RestoredStage, state: RestoredStageState) -> StageStart:
        """Return the start of the run that took a checkpoint, with which the source could not be opened."""
        run = loaded.checkpoint.run_key
        self._left.append(state)
        if run != self._run:
            self._give_up(run, state)
        earlier = self._attempt.load_before(loaded)
        if earlier is None:
            start = _without_state(loaded, self._attempt, self._open_source, self._changed, run)
        else:
            start = self._from(earlier, run)
        self._require_rows_of_given_up(start.enumerator)
        return replace(start, given_up=tuple(self._left))

    def _from(self, earlier: RestoredStage, run: str) -> StageStart:
        state = RestoredStageState(self._attempt, earlier)
        try:
            enumerator = self._open_source(state, is_new_run=True)
        except SourceRestartRequiredError as changed:
            self._changed = changed
            return self.before(earlier, state)
        log.warning(
            "Run %r starts again from checkpoint %s of run %r, because on_change is 'restart': %s",
            self._run,
            earlier.checkpoint.checkpoint_id,
            earlier.checkpoint.run_key,
            self._changed.found,
        )
        return StageStart(loaded=earlier, state=state, enumerator=enumerator, restarted_run=run)

    def _give_up(self, run: str, state: RestoredStageState) -> None:
        ledger = self._ledger(state.source)
        if ledger is None or not ledger.unfinished:
            raise SourceChangedError(
                f"{self._changed.found}. Run {run!r}, which has ended, had read this, and run {self._run!r} would "
                f"start again from its end. Restore the source as it was, or {REWIND}."
            )
        self._given_up.append(ledger)

    def _ledger(self, source_state: Mapping[str, Any] | None) -> Ledger | None:
        return _ledger_of(self._source, source_state)

    def _require_rows_of_given_up(self, enumerator: SplitEnumerator) -> None:
        # Files that a run has read may be moved away, also if the run did not come to its end.
        if not self._given_up or not isinstance(self._source, FileSource | DataFrameSource):
            return
        listed = decode_source_state(enumerator.snapshot()).ledger.items
        lost = sorted({name for ledger in self._given_up for name in _lost(ledger, listed)})
        if lost:
            raise SourceChangedError(
                f"{self._changed.found}. The run before did not come to its end, and run {self._run!r} would read its "
                f"input again, but {some_of([redact(name) for name in lost])}, which it had read, vanished. Restore "
                "these files or the changed ones."
            )


def require_broadcast_rows(
    uid: str, source: object, enumerator: SplitEnumerator, begun_with: Any, given_up: Iterable[Any]
) -> None:
    """
    Require that a run that starts again can read what its attempts before had read of a broadcast input.

    :param uid: Uid of the function within the stage.
    :param enumerator: The opened input.
    :param begun_with: State of the source with which it was opened; ``None`` for none.
    :param given_up: States of the source that the attempts left.
    :raises SourceChangedError: if something has vanished.
    """
    if not isinstance(source, FileSource | DataFrameSource):
        return
    base, listed = _ledger_of(source, begun_with), decode_source_state(enumerator.snapshot()).ledger.items
    known = frozenset[str]() if base is None else base.finished_names
    ledgers = [ledger for state in given_up if (ledger := _ledger_of(source, state)) is not None]
    lost = sorted({name for ledger in ledgers for name in _lost(ledger, listed)} - known)
    if lost:
        raise SourceChangedError(
            "Expected the run that starts again to read its whole input again, found that "
            f"{some_of([redact(name) for name in lost])}, which it had read of the broadcast input of {uid!r}, "
            "vanished. Restore these files."
        )


def _ledger_of(source: object, state: Mapping[str, Any] | None) -> Ledger | None:
    return decode_source_state(state).ledger if state is not None and isinstance(source, ItemSource) else None


def _lost(ledger: Ledger, listed: Sequence[Item]) -> Iterator[str]:
    replaced = ReplacedFiles.since(ledger, listed).directories.values()
    found = {item.name for item in (*listed, *(each for files in replaced for each in files.vanished))}
    return (name for name in ledger.finished_names if name not in found)
