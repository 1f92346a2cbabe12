"""Bytes that a state handle points to, each in a file of its own."""

from __future__ import annotations

import contextlib
import hashlib

from airflow_provider_statecheck.checkpoint.handles.state_handles import StatePointer
from airflow_provider_statecheck.checkpoint.layout import epoch_name, handles_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class StoredStates:
    """
    Files below ``<job id>/handles/<operator id>``.

    :param storage: The checkpoint directory.
    :param attempt: Who writes; its epoch is in each name.
    """

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef) -> None:
        self._storage = storage
        self._attempt = attempt

    def store(self, state: bytes) -> StatePointer:
        """Write a new file, or leave none."""
        ref = self._attempt
        directory = handles_uri(self._storage.base_uri, ref.job_id, ref.operator_id)
        uri = f"{directory}/{epoch_name(ref.epoch)}"
        try:
            self._storage.write_bytes(uri, state)
        except StorageError:
            with contextlib.suppress(StorageError):
                self._storage.delete_file(uri)
            raise
        return StatePointer(uri=uri, size=len(state), sha256=hashlib.sha256(state).hexdigest())

    def retrieve(self, pointer: StatePointer) -> bytes:
        """Return the file's bytes if they are what was written."""
        return self._storage.read_verified(pointer.uri, size=pointer.size, sha256=pointer.sha256)

    def discard(self, pointer: StatePointer) -> None:
        """Delete the file; a missing one is success."""
        self._storage.delete_file(pointer.uri)
