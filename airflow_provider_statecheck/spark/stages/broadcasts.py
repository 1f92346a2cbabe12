"""
Broadcast inputs: rows of a second source, which every subtask of a function sees first.

The driver reads them once, before the first increment of an attempt, so that all subtasks see the same rows in the same
order. They are finished in the state of their source together with this increment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.connectors.source import REWIND
from airflow_provider_statecheck.spark.stages.executor.elements import PackedRows
from airflow_provider_statecheck.spark.stages.planning import require_free_names
from airflow_provider_statecheck.spark.stages.stage_state import broadcast_uid, driver_state
from airflow_provider_statecheck.spark.tables.alignment import positional
from airflow_provider_statecheck.spark.tables.column_types import require_exchanged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_statecheck.spark.connectors.source import Increment, SplitEnumerator

log = logging.getLogger(__name__)

LARGEST_BYTES = 64 * 1024 * 1024
"""Maximum size of the rows of all inputs of a stage together, which the driver holds and tasks carry, in bytes."""
Read = Callable[["DataFrame"], Iterable[Any]]
"""Runs Spark jobs and gives the rows of a DataFrame, one partition after another."""


@dataclass(slots=True)
class Broadcasts:
    """
    The broadcast inputs of an attempt.

    :param inputs: Unfinished input by the uid of the function within the job.
    :param carried: Restored states of the sources of functions that have no broadcast input at present, by the same
        uids. The functions keep what they have seen, so these rows must not be new to them later.
    """

    inputs: Mapping[str, SplitEnumerator]
    carried: Mapping[str, Any] = field(default_factory=dict)
    _read: list[tuple[SplitEnumerator, Increment]] = field(default_factory=list)
    _size: int = 0

    def rows(self, read: Read) -> dict[str, tuple[bytes, ...]]:
        """
        Read all that is left of the inputs, and return it by the uid of the function.

        :raises InvalidConfigurationError: if a stage cannot have the name of a column.
        :raises UnsupportedStateError: if the rows are too large, or functions cannot have the type of a column.
        :raises SourceChangedError: if an input has changed since it was listed.
        """
        found = {uid: tuple(self._rows_of(uid, each, read)) for uid, each in self.inputs.items()}
        return {uid: rows for uid, rows in found.items() if rows}

    def _rows_of(self, uid: str, enumerator: SplitEnumerator, read: Read) -> Iterator[bytes]:
        before = self._size
        while (increment := enumerator.next_increment()) is not None:
            frame = enumerator.load(increment)
            _require_columns(uid, frame)
            pack = PackedRows(tuple(frame.columns), LARGEST_BYTES - self._size)
            for row in read(positional(frame).mapInArrow(pack, "rows binary")):
                yield self._counted(uid, row["rows"])
            with changes_named(uid):
                enumerator.require_unchanged(increment)
            self._read.append((enumerator, increment))
        if self._size > before:
            log.info("Each subtask of %s sees %s of its broadcast input first", uid, readable_size(self._size - before))

    def _counted(self, uid: str, packed: bytes | None) -> bytes:
        if packed is None or self._size + len(packed) > LARGEST_BYTES:
            raise UnsupportedStateError(
                f"Expected at most {readable_size(LARGEST_BYTES)} of rows in the broadcast inputs of a stage together, "
                f"which each subtask sees as a whole, found more in that of {uid!r}; select fewer rows or columns, or "
                "join the two inputs before key_by."
            )
        self._size += len(packed)
        return bytes(packed)

    def finish(self) -> None:
        """Mark what was read as finished, after all subtasks have seen it."""
        for enumerator, increment in self._read:
            enumerator.finish(increment)
        self._read.clear()

    def states(self) -> tuple[OperatorState, ...]:
        """Return the states of the sources for a checkpoint."""
        states = {**self.carried, **{uid: each.snapshot() for uid, each in self.inputs.items()}}
        return tuple(driver_state(broadcast_uid(uid), state) for uid, state in states.items())


def _require_columns(uid: str, frame: DataFrame) -> None:
    require_free_names(frame.columns, f"the broadcast input of {uid!r}")
    twice = sorted({name for name in frame.columns if frame.columns.count(name) > 1})
    if twice:
        raise InvalidConfigurationError(
            f"Expected each column of the broadcast input of {uid!r} once, found {twice} again; rename them."
        )
    require_exchanged(frame.schema)


@contextmanager
def changes_named(uid: str) -> Iterator[None]:
    """
    Name the broadcast input in the error of one that has changed, with what helps: it has no run to start again.

    :param uid: Uid of the function.
    """
    try:
        yield
    except (SourceChangedError, SourceRestartRequiredError) as changed:
        found = getattr(changed, "found", changed)
        raise SourceChangedError(
            f"Expected the broadcast input of {uid!r} as it was, found another one: {found}. Restore "
            "it; set its on_change to 'ignore' to continue with the files that were listed, if those that are still to "
            f"be read have not changed; or {REWIND}.",
        ) from changed
