"""
The rows of a state that may differ between two checkpoints.

Blocks of files that both checkpoints name say the same in both. Where no other block has a row at a position, the position
is alike; so a shared block is read only if a block that is not shared has a position within it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import IncrementalKeyedStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.state.arrow.layout import KEY_GROUP, position_columns
from airflow_provider_statecheck.state.arrow.order import order_codes
from airflow_provider_statecheck.state.arrow.part import Part, Parts
from airflow_provider_statecheck.state.reading.state_reader import StateReader

_Runs = tuple[Parts, ...]
_Block = tuple[str, int]
"""The file, and where the block begins in it."""


def rows_of_both(before: StateReader, after: StateReader, owned: KeyGroupRange) -> tuple[Any, Any]:
    """
    Return rows of two checkpoints, in the columns of the backend, outside of which the two are alike.

    :param owned: The key groups of which rows are wanted.
    :raises CorruptStateError: if bytes were changed.
    :raises CheckpointNotFoundError: if a file is missing.
    :raises StorageError: if the storage fails.
    """
    if not (_may_share(before) and _may_share(after)):
        return _joined(before, before.rows.tables(owned)), _joined(after, after.rows.tables(owned))
    files = [reader.rows.files(owned).runs for reader in (before, after)]
    shared = _blocks_of(files[0]) & _blocks_of(files[1])
    touched = _joined(before, _own_rows(before, files[0], shared), _own_rows(after, files[1], shared))
    # Both must read the same shared blocks, or a row of one would seem to be missing in the other.
    alike = shared - _holding(before, files[0], touched) - _holding(after, files[1], touched)
    return _joined(before, _differing_rows(before, files[0], alike)), _joined(
        after, _differing_rows(after, files[1], alike)
    )


def _may_share(reader: StateReader) -> bool:
    # Of state that expires, what neither checkpoint wrote may be gone in one of them.
    is_of_runs = all(isinstance(each, IncrementalKeyedStateHandle) for each in reader.content.handles)
    return is_of_runs and not reader.content.schema.ttl


def _own_rows(reader: StateReader, runs: _Runs, shared: set[_Block]) -> Iterable[Any]:
    """Return all rows of the blocks that only one checkpoint names, those too that say that something is gone."""
    for parts in _without(runs, shared):
        yield from reader.rows.written(parts)


def _differing_rows(reader: StateReader, runs: _Runs, alike: set[_Block]) -> Iterable[Any]:
    return reader.rows.merged(_without(runs, alike))


def _holding(reader: StateReader, runs: _Runs, touched: Any) -> set[_Block]:
    """Return the blocks that may have a row at one of some positions."""
    found: set[_Block] = set()
    for parts in runs:
        for part in parts:
            found |= {(part.path, int(part.offsets[number])) for number in _hold(reader, part, touched)}
    return found


def _hold(reader: StateReader, part: Part, touched: Any) -> list[int]:
    import numpy as np
    import pyarrow as pa

    firsts = reader.rows.firsts(part)
    codes = order_codes(position_columns(pa.concat_tables([firsts, touched.select(firsts.schema.names)])))
    places = np.searchsorted(codes[: len(part.offsets)], codes[len(part.offsets) :], "right") - 1
    # A block has one key group; what lies behind its last row may be of another.
    fits = (places >= 0) & (part.key_groups[places] == touched.column(KEY_GROUP).to_numpy())
    found: list[int] = np.unique(places[fits]).tolist()
    return found


def _without(runs: _Runs, blocks: set[_Block]) -> _Runs:
    """Return runs without some of their blocks."""
    kept = (tuple(each for each in (_part_without(part, blocks) for part in parts) if each) for parts in runs)
    return tuple(parts for parts in kept if parts)


def _part_without(part: Part, blocks: set[_Block]) -> Part | None:
    import numpy as np
    import pyarrow as pa

    chosen = np.array([i for i, at in enumerate(part.offsets.tolist()) if (part.path, at) not in blocks], np.int64)
    if len(chosen) == 0:
        return None
    return replace(
        part,
        firsts=part.firsts.take(pa.array(chosen)),
        offsets=part.offsets[chosen],
        lengths=part.lengths[chosen],
        rows=part.rows[chosen],
        checksums=part.checksums[chosen],
    )


def _blocks_of(runs: _Runs) -> set[_Block]:
    return {(part.path, offset) for parts in runs for part in parts for offset in part.offsets.tolist()}


def _joined(reader: StateReader, *tables: Iterable[Any]) -> Any:
    """Return tables as one, with a column of namespaces."""
    import pyarrow as pa

    layout = reader.columns.layout
    schema = layout.schema(namespace=True, deleted=False)
    found = [layout.conform(table, namespace=True, deleted=False) for some in tables for table in some]
    return pa.concat_tables([schema.empty_table(), *found]).combine_chunks()
