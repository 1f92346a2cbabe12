"""Files of a function's own, which outlive checkpoints and which only the function deletes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, StreamStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.stored_json import decoding, parse
from airflow_provider_statecheck.storage.views.checkpoint_storages import (
    MemoryBackendCheckpointStorageAccess,
    OperatorDirectories,
)
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStorageWorkerView,
    discard_state,
    read_state,
)


@dataclass(frozen=True, slots=True)
class _Reference:
    handle: StreamStateHandle


class TaskOwnedState:
    """
    Files of a function's own, such as a log of what it still has to move to another system.

    A reference to a file is a text, to be kept in state. No checkpoint owns the file: it remains when the checkpoints
    end that have the reference, until the function deletes it or its job is removed.

    :param view: The view of checkpoint storage of the task that writes the files.
    :param storage: Storage that reads and deletes them.
    :param directory: Directory of the files that the function may delete.
    """

    def __init__(self, view: CheckpointStorageWorkerView, storage: CheckpointStorage, directory: str) -> None:
        self._view = view
        self._storage = storage
        self._directory = directory

    def write(self, data: bytes) -> str:
        """
        Write a file and return its reference; small data is in the reference itself.

        :raises InvalidConfigurationError: if there are no data.
        :raises StorageError: if the storage fails.
        """
        stream = self._view.create_task_owned_state_stream()
        stream.write(data)
        handle = stream.close_and_get_handle()
        if handle is None:
            raise InvalidConfigurationError("Expected data for a file of a function, found none; write no empty file.")
        return _reference_of(handle)

    def read(self, reference: str) -> bytes:
        """
        Return the data of a file.

        :raises CheckpointNotFoundError: if the file was deleted, for instance before the restore of an older state.
        :raises CorruptStateError: if the reference or the file was changed.
        """
        return read_state(self._storage, _handle_of(reference))

    def duplicate(self, references: Sequence[str]) -> list[str]:
        """
        Copy files, on the servers of the storage where these can, and return the references of the copies in order.

        :raises CheckpointNotFoundError: if a file was deleted.
        :raises StorageError: if the storage fails.
        """
        handles = [_handle_of(reference) for reference in references]
        toolset = self._view.create_task_owned_checkpoint_state_toolset()
        if handles and all(map(toolset.can_fast_duplicate, handles)):
            return [_reference_of(copy) for copy in toolset.duplicate(handles)]
        return [self.write(read_state(self._storage, handle)) for handle in handles]

    def delete(self, reference: str) -> None:
        """
        Delete a file; a missing one is success.

        A file of another job or operator, whose state this one has restored, remains: its owner may need it.

        :raises StorageError: if the file may still exist.
        """
        handle = _handle_of(reference)
        if not isinstance(handle, ByteStreamStateHandle) and handle.uri.startswith(f"{self._directory}/"):
            discard_state(self._storage, handle)


def in_memory(storage: CheckpointStorage) -> TaskOwnedState:
    """Return files of a function whose data is in the references, for a function without an attempt."""
    attempt = AttemptRef(job_id=JobId("0" * 32), operator_id=OperatorId("0" * 32), epoch=1)
    directory = OperatorDirectories(storage, attempt).taskowned
    return TaskOwnedState(MemoryBackendCheckpointStorageAccess(attempt, storage), storage, directory)


def _reference_of(handle: StreamStateHandle) -> str:
    return json.dumps(encode(_Reference(handle)), separators=(",", ":"))


def _handle_of(reference: str) -> StreamStateHandle:
    with decoding("the reference of a function's file"):
        return decode(_Reference, parse(reference)).handle
