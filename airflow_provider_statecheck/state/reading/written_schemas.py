"""The types of keyed state as its files tell them, which is all there is of state that a function asked for late."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_statecheck.checkpoint.states.handles import (
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
)
from airflow_provider_statecheck.state.arrow.meta import decode_meta
from airflow_provider_statecheck.state.backends.full_snapshot_format import PREFIX_SIZE, decode_header, decode_prefix
from airflow_provider_statecheck.state.schemas import OperatorSchemas, StateSchema
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import open_input_stream, read_state


def written_schemas(storage: CheckpointStorage, handles: Iterable[KeyedStateHandle]) -> OperatorSchemas:
    """
    Return the types of the states in some handles.

    :raises CheckpointNotFoundError: if a file is missing.
    :raises CorruptStateError: if it was changed.
    :raises IncompatibleCheckpointError: if a newer version wrote it.
    :raises StorageError: if the storage fails.
    """
    key, found = None, dict[str, StateSchema]()
    for handle in handles:
        schemas = _schemas_of(storage, handle)
        key = key or schemas.key
        found = {state.name: state for state in schemas.keyed} | found
    return OperatorSchemas(key=key, keyed=tuple(found.values()))


def _schemas_of(storage: CheckpointStorage, handle: KeyedStateHandle) -> OperatorSchemas:
    if isinstance(handle, KeyGroupsStateHandle):
        return _of_snapshot(storage, handle)
    return _of_runs(storage, handle)


def _of_snapshot(storage: CheckpointStorage, handle: KeyGroupsStateHandle) -> OperatorSchemas:
    with open_input_stream(storage, handle.stream) as stream:
        prefix = stream.read(PREFIX_SIZE)
        # A length that was changed must not ask for more memory than there is.
        length = min(decode_prefix(prefix), handle.stream.state_size)
        return decode_header(prefix, stream.read(length)).schemas


def _of_runs(storage: CheckpointStorage, handle: IncrementalKeyedStateHandle) -> OperatorSchemas:
    if handle.meta is None:
        return OperatorSchemas()
    files = dict((*handle.shared, *handle.private))
    meta = decode_meta(read_state(storage, handle.meta), files, f"checkpoint {handle.checkpoint_id}")
    return OperatorSchemas(key=meta.key, keyed=tuple(files.state for files in meta.states))
