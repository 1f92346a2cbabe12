"""
The gate that every deletion passes which follows rows or metadata.

Rows and metadata name what is to be deleted, and a task may have written them. So a job deletes only what lies in a
directory of its own id, wherever the checkpoint directory is, and what lies in the savepoint that one of its rows stands
for: the coordinator made that directory's name, or checked the claim. Writers that remove a file which they could not
finish need no gate, for they have just made its name themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.layout import lies_in_job, savepoint_directory_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, StreamStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.document import CheckpointDocument
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact


class StorageDiscarder:
    """
    Deletes the bytes of one job; a ``StateDiscarder`` on checkpoint storage.

    :param storage: Where the bytes are.
    :param job_id: The job that owns them.
    :param owns_savepoint: Tells whether the job owns the savepoint in a directory; by default it owns none.
    """

    def __init__(
        self, storage: CheckpointStorage, job_id: JobId, owns_savepoint: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._storage = storage
        self._job_id = job_id
        self._owns_savepoint = owns_savepoint

    @classmethod
    def of_checkpoint(cls, storage: CheckpointStorage, checkpoint: CheckpointRecord) -> StorageDiscarder:
        """Return what may delete the bytes of a checkpoint or savepoint of a job."""
        return cls(storage, checkpoint.job_id, lambda directory: directory == checkpoint.location)

    def owns(self, uri: str) -> bool:
        """Tell whether the job may delete a file or directory."""
        if lies_in_job(uri):
            return lies_in_job(uri, self._job_id)
        savepoint = savepoint_directory_of(uri)
        return savepoint is not None and self._owns_savepoint(savepoint)

    def discard_metadata(self, uri: str) -> None:
        """
        Delete the metadata of a checkpoint.

        :raises InvalidConfigurationError: if it does not belong to the job.
        :raises StorageError: if it may still be there.
        """
        self.discard_file(uri)

    def discard_state(self, handle: StreamStateHandle) -> None:
        """
        Delete the file of a handle; state that travels in the handle has none, and a part of a file is its manager's.

        :raises InvalidConfigurationError: if it does not belong to the job.
        :raises StorageError: if it may still be there.
        """
        if isinstance(handle, FileStateHandle):
            self.discard_file(handle.uri)

    def discard_file(self, uri: str) -> None:
        """
        Delete a file.

        :raises InvalidConfigurationError: if it does not belong to the job.
        :raises StorageError: if it may still be there.
        """
        self._storage.delete_file(self._owned(uri))

    def discard_location(self, uri: str) -> None:
        """
        Delete the directory of a checkpoint, or of a snapshot.

        :raises InvalidConfigurationError: if it does not belong to the job.
        :raises StorageError: if part of it may still be there.
        """
        self._storage.delete_directory(self._owned(uri))

    def _owned(self, uri: str) -> str:
        if not self.owns(uri):
            raise InvalidConfigurationError(
                f"Expected to delete what belongs to job {self._job_id}, found {redact(uri)!r}; nothing was deleted."
            )
        return uri


def is_written_by_another(checkpoint: CheckpointRecord, document: CheckpointDocument) -> bool:
    """
    Tell whether the metadata in a checkpoint's directory belong to another checkpoint of the same id.

    Two coordinators draw one id where the database was restored from a backup, or where two share a checkpoint directory.

    :param checkpoint: The row.
    :param document: What was read from the directory that the row names.
    """
    return document.request_key != checkpoint.request_key
