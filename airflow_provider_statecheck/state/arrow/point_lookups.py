"""Rows of single keys in the blocks of a state's sorted runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_statecheck.state.arrow.layout import Block, order_columns, row_tuples
from airflow_provider_statecheck.state.arrow.runs import FileRun, SortedRun, blocks_at
from airflow_provider_statecheck.state.keyed.registered_state import VOID_NAMESPACE
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer

Position = tuple[Any, ...]
"""Sort key of a row, or the start of one, see :func:`row_tuples`."""
FoundRows = tuple[Block, int, int]
"""Block and range of its rows."""
FoundRow = tuple[Block, int]
"""Block and index of a row."""


class Target(NamedTuple):
    """Rows to find."""

    key: Position
    """Key group and key."""
    namespace: str = VOID_NAMESPACE
    user_key: Position = ()
    """User key of a map entry; empty for all entries of a map, and for other states."""

    def position_in(self, run: SortedRun) -> Position | None:
        """Return the start of the sort key of the rows in a run, ``None`` if it has no rows of the namespace."""
        if run.has_namespaces:
            return (*self.key, self.namespace, *self.user_key)
        return (*self.key, *self.user_key) if self.namespace == VOID_NAMESPACE else None


class PositionEncoder:
    """
    Conversion of keys and user keys to sort keys.

    :param keys: Serializer of the keys.
    :param user_keys: Serializer of the user keys; ``None`` unless the state is a map.
    """

    def __init__(self, keys: KeySerializer, user_keys: TypeSerializer[Any] | None) -> None:
        self._keys = keys
        self._user_keys = user_keys
        self._is_scalar = len(keys.fields) == 1
        self._is_naturally_ordered = _have_natural_order(keys.arrow_types)

    def key(self, key: Any, key_group: int) -> Position:
        """Return the start of the sort key of a normalized key."""
        if self._is_naturally_ordered:
            return (key_group, key) if self._is_scalar else (key_group, *key)
        columns = [part for column in self._keys.to_columns_of_normalized([key]) for part in order_columns(column)]
        return (key_group, *row_tuples(columns)[0])

    def user_key(self, user_key: Any) -> Position:
        """
        Return the end of the sort key of a map entry.

        :raises UnsupportedStateError: if the user key does not fit its type.
        """
        assert self._user_keys is not None  # noqa: S101 - the state is a map
        return row_tuples(order_columns(self._user_keys.to_arrow([user_key]), nullable=True))[0]


def _have_natural_order(types: Sequence[Any]) -> bool:
    """Return whether Python values of the types have the same order as rows."""
    from pyarrow import types as kinds

    return all(kinds.is_integer(t) or kinds.is_string(t) or kinds.is_binary(t) for t in types)


def rows_in(run: SortedRun, target: Target) -> Iterator[FoundRows]:
    """Return the rows of a target in a run, including tombstones."""
    position = target.position_in(run)
    if position is not None:
        for number in blocks_at(run, position):
            yield from _rows_at(run.block(number), position)


def rows_of_each(run: FileRun, targets: Sequence[Target]) -> list[list[FoundRows]]:
    """Return the rows of each target in a run, including tombstones. Each block is read once, adjacent ones together."""
    positions = [target.position_in(run) for target in targets]
    numbers = [() if position is None else blocks_at(run, position) for position in positions]
    blocks = run.blocks(sorted(set(chain.from_iterable(numbers))))
    return [
        [rows for number in members for rows in _rows_at(blocks[number], position or ())]
        for position, members in zip(positions, numbers, strict=True)
    ]


def newest_row(runs: Sequence[SortedRun], target: Target) -> FoundRow | None:
    """
    Return the newest version of a row as a block and the index of the row, ``None`` if it is absent or removed.

    :param runs: Runs, newest first.
    """
    for run in runs:
        for found in rows_in(run, target):
            return _unless_deleted(found)
    return None


def newest_rows(runs: Sequence[FileRun], targets: Sequence[Target]) -> list[FoundRow | None]:
    """
    Return what :func:`newest_row` returns for each target. Each block is read once, adjacent ones together.

    :param runs: Runs, newest first.
    """
    if len(targets) == 1:
        return [newest_row(runs, targets[0])]
    newest: dict[int, FoundRows] = {}
    for run in runs:
        missing = [index for index in range(len(targets)) if index not in newest]
        rows = rows_of_each(run, [targets[index] for index in missing])
        newest.update({index: found[0] for index, found in zip(missing, rows, strict=True) if found})
    return [_unless_deleted(newest[index]) if index in newest else None for index in range(len(targets))]


def _rows_at(block: Block, position: Position) -> Iterator[FoundRows]:
    start, end = block.find(position)
    if start < end:
        yield block, start, end


def _unless_deleted(found: FoundRows) -> FoundRow | None:
    block, row, _ = found
    return None if block.is_deleted(row) else (block, row)
