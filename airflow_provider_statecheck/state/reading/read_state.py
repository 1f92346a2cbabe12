"""The state of a checkpoint as Arrow record batches, wherever PyArrow runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.state_reader import StateReader, StateView, milliseconds


def read_state(
    pointer: str,
    name: str,
    *,
    uid: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
    now: datetime | None = None,
    with_times: bool = False,
    namespaces: bool = False,
) -> Any:
    """
    Return a keyed state of a checkpoint as a ``pyarrow.RecordBatchReader``, which reads as it is asked for more.

    There is a column for each column of the key, and ``value``; of a map there is a row for each entry, with ``map_key`` and
    ``map_value``.

    :param pointer: Directory of a checkpoint or savepoint, or its metadata file.
    :param name: Of the state.
    :param uid: Of the function; needed where several have a state of that name.
    :param storage_options: Options of the filesystem.
    :param allowed_locations: Where else checkpoints may name files, as URIs such as ``s3://archive``.
    :param now: What has expired by then is left out; by default what had expired when the checkpoint was taken.
    :param with_times: Whether state that expires gets a column ``last_access``.
    :param namespaces: Whether to read rows of namespaces too, with a column ``namespace``.
    :raises CheckpointNotFoundError: if nothing is there.
    :raises UnknownStateError: if the checkpoint has no such state, naming those that it has.
    :raises InvalidConfigurationError: if several functions have one.
    :raises UnsupportedStateError: for types that this release does not know; while reading, for rows of namespaces.
    :raises CorruptStateError: also while reading, if bytes were changed.
    :raises StorageError: also while reading, if the storage fails.
    """
    states = CheckpointStates.load(pointer, storage_options, allowed_locations)
    view = StateView(now_ms=milliseconds(now), with_times=with_times, namespaces=namespaces)
    return as_batches(StateReader(states.storage, states.content(name, uid), view))


def as_batches(reader: StateReader) -> Any:
    """Return what a reader gives as a ``pyarrow.RecordBatchReader``."""
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(reader.schema, _batches(reader))


def _batches(reader: StateReader) -> Iterator[Any]:
    for table in reader.tables():
        yield from table.to_batches()
