"""
Differences of a state between two checkpoints.

Blocks of files that both checkpoints name say the same in both. Where no other block has a row at a position, the position
is alike; so a shared block is read only if a block that is not shared has a position within it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import IncrementalKeyedStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from airflow_provider_statecheck.state.arrow.layout import (
    KEY_GROUP,
    order_codes,
    order_columns,
    position_columns,
    single,
)
from airflow_provider_statecheck.state.arrow.part_files import Part, Parts
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.columns import AFTER, BEFORE, CHANGE, StateColumns
from airflow_provider_statecheck.state.reading.state_reader import StateReader, StateView
from airflow_provider_statecheck.state.serializers.nested_columns import offsets_of_array
from airflow_provider_statecheck.state.serializers.serializer import describe


def differing(a: Any, b: Any) -> Any:
    """
    Return an Arrow array of truth values without null.

    Two nulls are equal, and two NaN are.

    :param a: An array.
    :param b: Another of the same type and length.
    """
    import pyarrow.compute as pc

    nulls_differ = pc.not_equal(a.is_null(), b.is_null())
    both = pc.and_(a.is_valid(), b.is_valid())
    return pc.or_(nulls_differ, pc.and_(both, _values_differ(a, b)))


def _values_differ(a: Any, b: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    kind = a.type
    if types.is_struct(kind):
        return _any_of([differing(x, y) for x, y in zip(a.flatten(), b.flatten(), strict=True)], len(a))
    if types.is_map(kind) or types.is_list(kind):
        return _lists_differ(a, b)
    if types.is_null(kind):
        return pa.repeat(pa.scalar(False), len(a))
    if types.is_floating(kind):
        a, b = a.cast(pa.float64()), b.cast(pa.float64())
        are_nan = pc.and_(pc.is_nan(a), pc.is_nan(b))
        return pc.fill_null(pc.and_(pc.not_equal(a, b), pc.invert(are_nan)), True)
    return pc.fill_null(pc.not_equal(a, b), True)


def _any_of(columns: list[Any], length: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.repeat(pa.scalar(False), length)
    for column in columns:
        found = pc.or_(found, column)
    return found


def _lists_differ(a: Any, b: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    lengths_of_a, lengths_of_b = (np.diff(offsets_of_array(each).to_numpy()) for each in (a, b))
    differ = lengths_of_a != lengths_of_b
    same = np.flatnonzero(~differ)
    of_a, of_b = (_elements(each.take(pa.array(same))) for each in (a, b))
    unequal = differing(of_a, of_b).to_numpy(zero_copy_only=False)
    owners = np.repeat(same, lengths_of_a[same])
    differ[owners[unequal]] = True
    return pa.array(differ)


def _elements(lists: Any) -> Any:
    """Return the elements of lists, one after the other; those of maps are structs."""
    import pyarrow as pa

    from airflow_provider_statecheck.state.serializers.nested_columns import entries_of_array

    if not pa.types.is_map(lists.type):
        return lists.flatten()
    keys, values = entries_of_array(lists)
    return pa.StructArray.from_arrays([keys, values], names=["key", "value"])


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


_BYTES_AT_ONCE = 64 << 20
ADDED, REMOVED, CHANGED = "added", "removed", "changed"


def diff_states(
    before: str,
    after: str,
    name: str,
    *,
    uid: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
    namespaces: bool = False,
) -> Any:
    """
    Return how a keyed state of two checkpoints differs, as a ``pyarrow.RecordBatchReader``.

    There is a row for each key, of a map for each entry, that one of them has and the other not, or with another value: its
    key, ``change`` (``added``, ``removed`` or ``changed``), and the values ``before`` and ``after``, null where there is none.
    That a value was only used again is no change. Files that both name are read only where something else touches them.

    :param before: Directory of a checkpoint or savepoint, or its metadata file.
    :param after: That of another, of any job.
    :param name: Of the state.
    :param uid: Of the function; needed where several have a state of that name.
    :param storage_options: Options of the filesystem.
    :param allowed_locations: Where else checkpoints may name files, as URIs such as ``s3://archive``.
    :param namespaces: Whether to compare rows of namespaces too, with a column ``namespace``.
    :raises CheckpointNotFoundError: if nothing is there.
    :raises UnknownStateError: if one of them has no such state.
    :raises IncompatibleCheckpointError: if the state has other types in the two, or another number of key groups.
    :raises CorruptStateError: also while reading, if bytes were changed.
    :raises StorageError: also while reading, if the storage fails.
    """
    import pyarrow as pa

    view = StateView(namespaces=namespaces)
    readers = [
        _reader(CheckpointStates.load(pointer, storage_options, allowed_locations), name, uid, view)
        for pointer in (before, after)
    ]
    diff = StateDiff(*readers)
    return pa.RecordBatchReader.from_batches(diff.schema, diff.batches())


class StateDiff:
    """
    Compares a state of two checkpoints.

    :param before: Reads the one.
    :param after: Reads the other.
    :param bytes_at_once: About how much of each is in memory, as it is on storage.
    :raises IncompatibleCheckpointError: if the two cannot be compared.
    """

    def __init__(self, before: StateReader, after: StateReader, *, bytes_at_once: int = _BYTES_AT_ONCE) -> None:
        _require_alike(before, after)
        self._bytes_at_once = bytes_at_once
        self._before = before
        self._after = after

    @property
    def schema(self) -> Any:
        """Return the Arrow schema of the rows."""
        import pyarrow as pa

        columns = self._before.columns
        value = columns.schema.field(columns.value_name)
        kept = [field for field in columns.schema if field.name != columns.value_name]
        return pa.schema([*kept, (CHANGE, pa.string()), (BEFORE, value.type), (AFTER, value.type)])

    def batches(self) -> Iterator[Any]:
        """
        Return the differences as record batches, in the order of key groups.

        :raises CorruptStateError: if bytes were changed.
        :raises CheckpointNotFoundError: if a file is missing.
        :raises StorageError: if the storage fails.
        """
        for owned in self._before.content.windows(self._before.all_key_groups, self._bytes_at_once):
            before, after = rows_of_both(self._before, self._after, owned)
            yield from self._compared(before, after).to_batches()

    def _compared(self, before: Any, after: Any) -> Any:
        import numpy as np
        import pyarrow as pa

        columns = self._before.columns
        before, after = _shown(self._before, before), _shown(self._after, after)
        codes = _codes(columns, before, after)
        of_before, of_after = codes[: before.num_rows], codes[before.num_rows :]
        _, left, right = np.intersect1d(of_before, of_after, assume_unique=True, return_indices=True)
        value = columns.value_name
        old = single(before.column(value)).take(pa.array(left))
        new = single(after.column(value)).take(pa.array(right))
        differ = differing(old, new).to_numpy(zero_copy_only=False)
        gone = np.flatnonzero(~np.isin(of_before, of_after))
        come = np.flatnonzero(~np.isin(of_after, of_before))
        return pa.concat_tables(
            [
                self._rows(REMOVED, before.take(pa.array(gone)), None),
                self._rows(ADDED, None, after.take(pa.array(come))),
                self._rows(CHANGED, before.take(pa.array(left[differ])), after.take(pa.array(right[differ]))),
            ]
        )

    def _rows(self, change: str, before: Any, after: Any) -> Any:
        import pyarrow as pa

        found, name = (before if after is None else after), self._before.columns.value_name
        value = found.schema.field(name).type
        kept = [single(found.column(each)) for each in found.schema.names if each != name]
        nothing = pa.nulls(found.num_rows, value)
        values = [nothing if each is None else single(each.column(name)) for each in (before, after)]
        changes = pa.repeat(pa.scalar(change), found.num_rows)
        return pa.Table.from_arrays([*kept, changes, *values], schema=self.schema)


def _reader(states: CheckpointStates, name: str, uid: str | None, view: StateView) -> StateReader:
    return StateReader(states.storage, states.content(name, uid), view)


def _shown(reader: StateReader, table: Any) -> Any:
    return reader.columns.shown(table, reader.now_ms)


def _codes(columns: StateColumns, before: Any, after: Any) -> Any:
    """Return a number for each row of both, equal for equal keys."""
    import pyarrow as pa

    names = [name for name in before.schema.names if name != columns.value_name]
    joined = pa.concat_tables([before.select(names), after.select(names)])
    found = []
    for name in names:
        found += order_columns(single(joined.column(name)), nullable=True)
    return order_codes(found)


def _require_alike(before: StateReader, after: StateReader) -> None:
    a, b = before.content, after.content
    if before.columns.schema != after.columns.schema or a.key != b.key or a.schema.kind is not b.schema.kind:
        raise IncompatibleCheckpointError(
            f"Expected the state {a.schema.name!r} to have the same types in both checkpoints, found {describe(a.key)} with "
            f"{describe(a.schema.value)} and {describe(b.key)} with {describe(b.schema.value)}; compare it with a checkpoint "
            f"on the same side of that change."
        )
    if a.max_parallelism != b.max_parallelism:
        raise IncompatibleCheckpointError(
            f"Expected both checkpoints to have {a.max_parallelism} key groups, found {b.max_parallelism}; compare copies that "
            f"'airflow statecheck rescale' made equal."
        )
