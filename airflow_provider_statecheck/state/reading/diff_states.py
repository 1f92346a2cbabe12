"""
Differences of a state between two checkpoints.

A block of a state file that both checkpoints reference has the same rows in both. It is read only if a block that is
not shared has a row at a position in its range; all other positions of a shared block are equal in both checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from airflow_provider_statecheck.lazy import np, pa
from airflow_provider_statecheck.state.arrow.layout import (
    KEY_GROUP,
    order_codes,
    order_columns,
    position_columns,
    single,
    with_namespaces,
)
from airflow_provider_statecheck.state.arrow.run_files import RunFile, RunFiles
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates, StateContent
from airflow_provider_statecheck.state.reading.state_reader import (
    AFTER,
    BEFORE,
    CHANGE,
    StateColumns,
    StateReader,
)
from airflow_provider_statecheck.state.schema_evolution import are_comparable
from airflow_provider_statecheck.state.serializers.custom_serializer import is_custom
from airflow_provider_statecheck.state.serializers.nested_columns import differing
from airflow_provider_statecheck.state.serializers.serializer import describe

_BYTES_AT_ONCE = 64 << 20
ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_Runs = tuple[RunFiles, ...]
_Block = tuple[str, int]
"""Path of the file, and offset of the block in the file."""


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
    Return the differences of a keyed state between two checkpoints as a ``pyarrow.RecordBatchReader``.

    The result has one row per added, removed or changed key, or entry of a map state. Its columns are those of the key,
    ``change`` (``added``, ``removed`` or ``changed``), ``before`` and ``after``; a missing value is null. A different
    time of the last access is not a change. Blocks of files that both checkpoints reference are read only where they
    can differ.

    :param before: Directory of a checkpoint or savepoint, or its metadata file.
    :param after: Directory or metadata file of another checkpoint or savepoint, of any job.
    :param name: Name of the state.
    :param uid: Uid of the function, required if several functions have a state with this name. In a savepoint of the
        whole job, the uid of the stage, or both with ``/`` in between.
    :param storage_options: Options of the filesystem.
    :param allowed_locations: URIs of further locations that checkpoints may reference, such as ``s3://archive``.
    :param namespaces: Compares rows of all namespaces and adds a column ``namespace``.
    :raises CheckpointNotFoundError: if a pointer refers to a missing checkpoint.
    :raises UnknownStateError: if one of the checkpoints has no such state.
    :raises IncompatibleCheckpointError: if the types of the state or the numbers of key groups differ.
    :raises CorruptStateError: if a state file is corrupt, also while reading.
    :raises StorageError: if the storage fails, also while reading.
    """
    checkpoints = [CheckpointStates.load(pointer, storage_options, allowed_locations) for pointer in (before, after)]
    readers = (StateReader(each.storage, each.content(name, uid), namespaces=namespaces) for each in checkpoints)
    diff = StateDiff(*readers)
    return pa.RecordBatchReader.from_batches(diff.schema, diff.batches())


class StateDiff:
    """
    Comparison of a state between two checkpoints.

    :param before: Reader of the first checkpoint.
    :param after: Reader of the second checkpoint.
    :param bytes_at_once: Approximate size of the stored state of one comparison step, in bytes.
    :raises IncompatibleCheckpointError: if the types of the state or the numbers of key groups differ.
    """

    def __init__(self, before: StateReader, after: StateReader, *, bytes_at_once: int = _BYTES_AT_ONCE) -> None:
        _require_comparable(before, after)
        self._bytes_at_once = bytes_at_once
        self._before = before
        self._after = after

    @property
    def schema(self) -> Any:
        """The Arrow schema of the differences."""
        columns = self._before.columns
        value = columns.schema.field(columns.value_name)
        kept = [field for field in columns.schema if field.name != columns.value_name]
        return pa.schema([*kept, (CHANGE, pa.string()), (BEFORE, value.type), (AFTER, value.type)])

    def batches(self) -> Iterator[Any]:
        """Return the differences as record batches in the order of key groups; raises as the methods of the readers."""
        for owned in self._before.content.windows(self._bytes_at_once):
            before, after = rows_of_both(self._before, self._after, owned)
            yield from self._compared(before, after).to_batches()

    def _compared(self, before: Any, after: Any) -> Any:
        columns = self._before.columns
        before = columns.shown(before, self._before.now_ms)
        after = self._after.columns.shown(after, self._after.now_ms)
        codes = _codes(columns, before, after)
        of_before, of_after = codes[: before.num_rows], codes[before.num_rows :]
        _, left, right = np.intersect1d(of_before, of_after, assume_unique=True, return_indices=True)
        value = columns.value_name
        old = single(before.column(value)).take(pa.array(left))
        new = single(after.column(value)).take(pa.array(right))
        differ = differing(old, new).to_numpy(zero_copy_only=False)
        removed = np.flatnonzero(~np.isin(of_before, of_after))
        added = np.flatnonzero(~np.isin(of_after, of_before))
        return pa.concat_tables(
            [
                self._rows(REMOVED, before.take(pa.array(removed)), None),
                self._rows(ADDED, None, after.take(pa.array(added))),
                self._rows(CHANGED, before.take(pa.array(left[differ])), after.take(pa.array(right[differ]))),
            ]
        )

    def _rows(self, change: str, before: Any, after: Any) -> Any:
        rows, value_name = (before if after is None else after), self._before.columns.value_name
        keys = [single(rows.column(name)) for name in rows.schema.names if name != value_name]
        missing = pa.nulls(rows.num_rows, rows.schema.field(value_name).type)
        values = [missing if each is None else single(each.column(value_name)) for each in (before, after)]
        changes = pa.repeat(pa.scalar(change), rows.num_rows)
        return pa.Table.from_arrays([*keys, changes, *values], schema=self.schema)


def _codes(columns: StateColumns, before: Any, after: Any) -> Any:
    """Return a code for each row of both tables; equal keys have equal codes."""
    names = [name for name in before.schema.names if name != columns.value_name]
    joined = pa.concat_tables([before.select(names), after.select(names)])
    found = []
    for name in names:
        found += order_columns(single(joined.column(name)), nullable=True)
    return order_codes(found)


def _require_comparable(before: StateReader, after: StateReader) -> None:
    a, b = before.content, after.content
    has_same_columns = (before.columns.schema, before.columns.keys) == (after.columns.schema, after.columns.keys)
    if not has_same_columns or not are_comparable(a.schema, b.schema):
        raise IncompatibleCheckpointError(
            f"Expected the state {a.schema.name!r} to have the same types in both checkpoints, found {_types(a)} and "
            f"{_types(b)}; compare checkpoints that were both taken before, or both after, the change of types."
        )
    if a.max_parallelism != b.max_parallelism:
        raise IncompatibleCheckpointError(
            f"Expected both checkpoints to have {a.max_parallelism} key groups, found {b.max_parallelism}; rescale one "
            "of them with 'airflow statecheck rescale'."
        )


def _types(content: StateContent) -> str:
    value = content.schema.value
    version = f" in version {value.version}" if is_custom(value) else ""
    return f"{describe(content.key)} with {describe(value)}{version}"


def rows_of_both(before: StateReader, after: StateReader, owned: KeyGroupRange) -> tuple[Any, Any]:
    """
    Return the rows of two checkpoints in the columns of the backend, without shared blocks that are equal in both.

    :param owned: Key groups to compare.
    """
    files = [reader.files(owned).runs for reader in (before, after)]
    shared = _blocks_of(files[0]) & _blocks_of(files[1])
    # A row of a shared block may have expired in one of the two checkpoints only.
    if not shared or before.content.schema.expires or after.content.schema.expires:
        return _joined(before, before.rows(owned)), _joined(after, after.rows(owned))
    own = [
        rows
        for reader, runs in zip((before, after), files, strict=True)
        for run in _without(runs, shared)
        for rows in reader.written(run)
    ]
    touched = _joined(before, own)
    # Both sides must read the same shared blocks. Otherwise a row would appear to be missing on one side.
    equal = shared - _holding(before, files[0], touched) - _holding(after, files[1], touched)
    of_before, of_after = (_without(runs, equal) for runs in files)
    return _joined(before, before.merged(of_before)), _joined(after, after.merged(of_after))


def _holding(reader: StateReader, runs: _Runs, touched: Any) -> set[_Block]:
    """Return the blocks that may have a row at one of the touched positions."""
    found: set[_Block] = set()
    for file in chain.from_iterable(runs):
        firsts = with_namespaces(reader.form.firsts(file))
        codes = order_codes(position_columns(pa.concat_tables([firsts, touched.select(firsts.schema.names)])))
        places = np.searchsorted(codes[: len(file.offsets)], codes[len(file.offsets) :], "right") - 1
        # A block has rows of one key group. A position after its last row may belong to another key group.
        fits = (places >= 0) & (file.key_groups[places] == touched.column(KEY_GROUP).to_numpy())
        found |= {(file.path, offset) for offset in file.offsets[np.unique(places[fits])].tolist()}
    return found


def _without(runs: _Runs, blocks: set[_Block]) -> _Runs:
    """Return the runs without the given blocks."""

    def rest(file: RunFile) -> RunFile | None:
        return file.only(np.array([(file.path, offset) not in blocks for offset in file.offsets.tolist()], bool))

    kept = (tuple(filter(None, map(rest, run))) for run in runs)
    return tuple(filter(None, kept))


def _blocks_of(runs: _Runs) -> set[_Block]:
    return {(file.path, offset) for file in chain.from_iterable(runs) for offset in file.offsets.tolist()}


def _joined(reader: StateReader, tables: Iterable[Any]) -> Any:
    """Concatenate tables, with a namespace column, and without one that marks partial rows or deletions."""
    layout = reader.columns.layout
    schema = layout.schema(namespace=True, deleted=False)
    found = [layout.conform(table, namespace=True, deleted=False, partial=False) for table in tables]
    return pa.concat_tables([schema.empty_table(), *found]).combine_chunks()
