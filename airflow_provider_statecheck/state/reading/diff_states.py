"""What changed in a state from one checkpoint to another, without reading what both share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from airflow_provider_statecheck.state.arrow.layout import single
from airflow_provider_statecheck.state.arrow.order import order_codes, order_columns
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.columns import AFTER, BEFORE, CHANGE, StateColumns
from airflow_provider_statecheck.state.reading.differing import differing
from airflow_provider_statecheck.state.reading.shared_files import rows_of_both
from airflow_provider_statecheck.state.reading.state_reader import StateReader, StateView
from airflow_provider_statecheck.state.serializers.description import describe

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
