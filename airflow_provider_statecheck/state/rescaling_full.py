"""Full snapshots of keyed state for another number of key groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    KeyedStateHandle,
    KeyGroupsStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from airflow_provider_statecheck.state.backends.full_snapshot import FullSnapshot
from airflow_provider_statecheck.state.backends.full_snapshot_reader import FullSnapshotReader
from airflow_provider_statecheck.state.backends.restored_rows import RestoredRows
from airflow_provider_statecheck.state.backends.state_rows import NAMESPACE, StateRows, blocks_of
from airflow_provider_statecheck.state.keys.key_columns import key_groups, normalized_column
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import discard_state, open_input_stream
from airflow_provider_statecheck.storage.views.stream_factory import CheckpointStreamFactory


class FullSnapshotRescaling:
    """
    Reads the full snapshots of all subtasks into memory and writes them with new key groups.

    :param storage: From which they are read.
    :param streams: Where they are written.
    :param old: The number of key groups with which they were written.
    :param new: The number of key groups that they get.
    """

    def __init__(self, storage: CheckpointStorage, streams: CheckpointStreamFactory, *, old: int, new: int) -> None:
        self._storage = storage
        self._streams = streams
        self._old = old
        self._new = new

    def rescaled(
        self, handles: Sequence[KeyGroupsStateHandle], ranges: Sequence[KeyGroupRange]
    ) -> Iterator[KeyedStateHandle | None]:
        """
        Write the state of handles anew and return a handle for each range, ``None`` where there is no state.

        :raises CorruptStateError: if the bytes were changed.
        :raises IncompatibleCheckpointError: if they are of a newer version, or the subtasks have different keys.
        :raises StorageError: if the storage fails.
        """
        keys, states = self._read(handles)
        regrouped = [self._regrouped(rows) for rows in states]
        for key_group_range in ranges:
            parts = [
                part for rows, groups, batch in regrouped for part in _within(rows, groups, batch, key_group_range)
            ]
            yield self._write(keys, key_group_range, parts)

    def _read(self, handles: Sequence[KeyGroupsStateHandle]) -> tuple[SerializerSnapshot | None, list[StateRows]]:
        reader = FullSnapshotReader(
            lambda stream: open_input_stream(self._storage, stream), self._old, KeyGroupRange(0, self._old - 1)
        )
        found = [read for read in map(reader.read, handles) if read is not None]
        keys = {repr(header.schemas.key): header.schemas.key for header, _ in found}
        if len(keys) > 1:
            raise IncompatibleCheckpointError(f"Expected equal keys in all subtasks, found {' and '.join(keys)}.")
        return next(iter(keys.values()), None), [rows for _, states in found for rows in states if rows.blocks]

    def _regrouped(self, rows: StateRows) -> tuple[StateRows, Any, Any]:
        import numpy as np
        import pyarrow as pa

        batch = pa.concat_batches([each for _, each in rows.blocks])
        of_key = rows.arrow_schema.get_field_index(NAMESPACE)
        columns = [
            normalized_column(field.name, field.type, batch[field.name]) for field in list(batch.schema)[:of_key]
        ]
        groups = key_groups(columns, self._new)
        order = np.argsort(groups, kind="stable")
        return rows, groups[order], batch.take(pa.array(order))

    def _write(
        self, keys: SerializerSnapshot | None, key_group_range: KeyGroupRange, parts: list[StateRows]
    ) -> KeyedStateHandle | None:
        if keys is None:
            return None
        snapshot = FullSnapshot(
            key=keys,
            number_of_key_groups=self._new,
            key_group_range=key_group_range,
            states=[RestoredRows(part) for part in parts],
            open_stream=lambda: self._streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE),
            discard=lambda handle: discard_state(self._storage, handle),
        )
        return snapshot.run().handle


def _within(rows: StateRows, groups: Any, batch: Any, owned: KeyGroupRange) -> Iterator[StateRows]:
    import numpy as np
    import pyarrow as pa

    start, end = np.searchsorted(groups, [owned.start, owned.end + 1])
    if start < end:
        blocks = tuple(blocks_of(pa.array(groups[start:end]), batch.slice(start, end - start)))
        yield StateRows(rows.schema, rows.arrow_schema, blocks)
