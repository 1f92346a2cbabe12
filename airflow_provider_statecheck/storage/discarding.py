"""
Deletion of discarded checkpoints, the only place that deletes their files.

Rows and metadata name the files to delete, and tasks can write both. A job may therefore delete only files in a
directory with its own id and in savepoints that it owns according to its rows. Writers that remove an unfinished file
of theirs do not need the gate.

Deletion is idempotent and best effort: a missing file is success, and a failed delete does not affect other
checkpoints. Only completely deleted checkpoints are confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set as AbstractSet

from airflow_provider_statecheck.checkpoint.ids import (
    METADATA_FILE,
    JobId,
    canonical_uri,
    checkpoint_id_of,
    epoch_of,
    is_in_job,
    savepoint_directory_of,
)
from airflow_provider_statecheck.checkpoint.messages import OpenEffects
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, StreamStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, UnknownVersionError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    UNREADABLE,
    CheckpointDocument,
    DocumentCache,
    document_uris,
    find_document,
    has_unreadable_metadata,
    state_uris,
)
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)


class StorageDiscarder:
    """
    Deletes files of one job; implements ``StateDiscarder`` on checkpoint storage.

    The methods that delete raise :class:`InvalidConfigurationError` for files and directories that do not belong to the
    job, and :class:`StorageError` if the delete fails, even in part.

    :param job_id: The job that owns the files.
    :param owns_savepoint: Returns whether the job owns the savepoint in a directory; by default it owns none.
    """

    def __init__(
        self, storage: CheckpointStorage, job_id: JobId, owns_savepoint: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._storage = storage
        self._job_id = job_id
        self._owns_savepoint = owns_savepoint

    @classmethod
    def of_checkpoint(cls, storage: CheckpointStorage, checkpoint: CheckpointRecord) -> StorageDiscarder:
        """Return a discarder for the files of a checkpoint or savepoint."""
        return cls(storage, checkpoint.job_id, lambda directory: directory == checkpoint.location)

    def owns(self, uri: str) -> bool:
        """Return whether the job may delete a file or directory."""
        if is_in_job(uri):
            return is_in_job(uri, self._job_id)
        savepoint = savepoint_directory_of(uri)
        return savepoint is not None and self._owns_savepoint(savepoint)

    def discard_state(self, handle: StreamStateHandle) -> None:
        """
        Delete the file of a handle.

        Inline state has no file. Other checkpoints may reference other segments of a merged file; ``EffectDiscards``
        deletes it when none does.
        """
        if isinstance(handle, FileStateHandle):
            self.discard_file(handle.uri)

    def discard_file(self, uri: str) -> None:
        """Delete a file."""
        self._storage.delete_file(self._owned(uri))

    def discard_location(self, uri: str) -> None:
        """Delete the directory of a checkpoint or a snapshot."""
        self._storage.delete_directory(self._owned(uri))

    def discard_checkpoint(self, directory: str) -> None:
        """Delete a checkpoint or savepoint, its metadata first to prevent a restore from incomplete files."""
        self.discard_file(f"{directory}/{METADATA_FILE}")
        self.discard_location(directory)

    def _owned(self, uri: str) -> str:
        if not self.owns(uri):
            raise InvalidConfigurationError(
                f"Expected to delete a file of job {self._job_id}, found {redact(uri)!r}; nothing was deleted."
            )
        return uri


class EffectDiscards:
    """Executes the discards among the open effects of an operator."""

    def __init__(self, storage: CheckpointStorage, documents: DocumentCache) -> None:
        self.storage = storage
        self._documents = documents
        self.in_use: frozenset[int] = frozenset()
        """Checkpoints that the last call could not delete, because others reference files in their directories."""

    def discard(self, effects: OpenEffects, pinned: AbstractSet[str] = frozenset()) -> tuple[int, ...]:
        """
        Delete the checkpoints that the effects discard.

        A snapshot or state file, and the directory that contains it, is retained while a retained checkpoint references
        it or it is pinned. If a retained checkpoint cannot be read, all files that it may reference are retained.

        :param pinned: Snapshots that a running attempt uses, and files that its next checkpoint may reference.
        :return: The ids of the deleted checkpoints.
        """
        self.in_use = frozenset()
        if not effects.discards:
            return ()
        retained = _without_claimed(effects)
        naming = tuple(c for c in retained if not c.is_of_user and not is_of_another_owner(c))
        referenced = self._documents.named_uris(naming)
        keep = None if referenced is None else frozenset(map(canonical_uri, referenced | pinned))
        return tuple(c.checkpoint_id for c in effects.discards if self._discard(c, retained, keep))

    def _discard(
        self, checkpoint: CheckpointRecord, retained: tuple[CheckpointRecord, ...], keep: AbstractSet[str] | None
    ) -> bool:
        if any(c.metadata_uri is not None and _is_below(c.metadata_uri, checkpoint.location) for c in retained):
            return self._wait(checkpoint)
        try:
            return self._delete(checkpoint, keep)
        except StateCheckError as error:
            log.warning(
                "Checkpoint %s could not be discarded; the next cleanup retries it: %s", checkpoint.checkpoint_id, error
            )
            return False

    def _delete(self, checkpoint: CheckpointRecord, keep: AbstractSet[str] | None) -> bool:
        document, discarder = self._read(checkpoint), StorageDiscarder.of_checkpoint(self.storage, checkpoint)
        if document is not None and _is_written_by_another(checkpoint, document):
            return self._delete_unreferenced(checkpoint, document, keep, discarder)
        if self._is_of_unknown_owner(checkpoint):
            log.warning(
                "The directory of checkpoint %s is retained, because its metadata cannot be read and may belong to "
                "another coordinator: %s. Delete the directory by hand if it is not needed",
                checkpoint.checkpoint_id,
                redact(checkpoint.location),
            )
            return False
        if keep is None and self._may_be_referenced(checkpoint, document):
            return self._wait(checkpoint)
        # Deleting the metadata first prevents a restore from a partially deleted checkpoint.
        discarder.discard_file(f"{checkpoint.location}/{METADATA_FILE}")
        if document is not None and keep is not None:
            _delete_referenced(checkpoint, document, keep, discarder)
        self._documents.forget(checkpoint.checkpoint_id)
        if _contains_any(checkpoint, keep):
            return self._wait(checkpoint)
        discarder.discard_location(checkpoint.location)
        return True

    def _delete_unreferenced(
        self,
        checkpoint: CheckpointRecord,
        document: CheckpointDocument,
        keep: AbstractSet[str] | None,
        discarder: StorageDiscarder,
    ) -> bool:
        log.warning(
            "The directory of checkpoint %s contains a checkpoint of another coordinator and is retained: %s",
            checkpoint.checkpoint_id,
            redact(checkpoint.location),
        )
        # Files of the checkpoint's epoch that the metadata in its directory does not name.
        referenced = {uri.rpartition("/")[2] for uri in document_uris(document)}
        names = self.storage.allowing(checkpoint.location).list_files(checkpoint.location)
        of_epoch = (name for name in names if epoch_of(name) == checkpoint.epoch and name not in referenced)
        own = [f"{checkpoint.location}/{name}" for name in of_epoch]
        unneeded = [] if keep is None else [uri for uri in own if canonical_uri(uri) not in keep]
        for uri in unneeded:
            discarder.discard_file(uri)
        return len(unneeded) == len(own) or self._wait(checkpoint)

    def _may_be_referenced(self, checkpoint: CheckpointRecord, document: CheckpointDocument | None) -> bool:
        is_aborted = checkpoint.status is CheckpointStatus.ABORTED
        if document is not None:
            # In rows from a backup, a checkpoint that was complete later may be aborted. While a retained checkpoint
            # cannot be read, it may be the only one that a user can still restore.
            named = state_uris(document.operator_states)
            return is_aborted or any(_is_below(uri, checkpoint.location) for uri in named)
        # The metadata of a checkpoint that waits is deleted before. The attempt continues after an aborted checkpoint,
        # and a later checkpoint may reference the state that its tasks have written.
        storage = self.storage.allowing(checkpoint.location)
        return not is_aborted or bool(storage.list_files(checkpoint.location))

    def _wait(self, checkpoint: CheckpointRecord) -> bool:
        log.info(
            "The directory of checkpoint %s is retained, because other checkpoints reference files in it",
            checkpoint.checkpoint_id,
        )
        self.in_use |= {checkpoint.checkpoint_id}
        return False

    def _is_of_unknown_owner(self, checkpoint: CheckpointRecord) -> bool:
        # The row of an unfinished checkpoint has no checksum that tells its own metadata from that of another
        # coordinator.
        storage = self.storage.allowing(checkpoint.location)
        return checkpoint.metadata_uri is None and has_unreadable_metadata(storage, checkpoint.location)

    def _read(self, checkpoint: CheckpointRecord) -> CheckpointDocument | None:
        # Files of a checkpoint without readable metadata become orphans, which the sweep deletes.
        if checkpoint.metadata_uri is None:
            return find_document(self.storage.allowing(checkpoint.location), checkpoint.location)
        try:
            return self._documents.load(checkpoint)
        except UnknownVersionError:
            raise
        except UNREADABLE:
            return None


def _is_written_by_another(checkpoint: CheckpointRecord, document: CheckpointDocument) -> bool:
    # Two coordinators assign the same id if the database was restored from a backup, or if they share a checkpoint
    # directory. Rows of all other statuses have the checksum of the metadata, which was verified by the read.
    return checkpoint.status is CheckpointStatus.ABORTED and document.request_key != checkpoint.request_key


def _delete_referenced(
    checkpoint: CheckpointRecord, document: CheckpointDocument, keep: AbstractSet[str], discarder: StorageDiscarder
) -> None:
    if checkpoint.status is CheckpointStatus.ABORTED:
        # The attempt continues after an aborted checkpoint and references the files in the next one. In rows from a
        # backup, a checkpoint without a row may reference them too. The sweep deletes those that none does.
        return
    for handle in document.snapshots:
        # Snapshots of a claimed savepoint are deleted with the savepoint; those of other jobs are retained.
        if canonical_uri(handle.uri) not in keep and discarder.owns(handle.uri):
            discarder.discard_location(handle.uri)
    for uri in _own_files(checkpoint, document, keep):
        if canonical_uri(uri) not in keep and discarder.owns(uri):
            discarder.discard_file(uri)


def _without_claimed(effects: OpenEffects) -> tuple[CheckpointRecord, ...]:
    # The row of a claimed savepoint remains, but the checkpoint that claimed it owns the files. An aborted checkpoint
    # has claimed nothing.
    discarded = {canonical_uri(c.location) for c in effects.discards if c.status is not CheckpointStatus.ABORTED}
    return tuple(c for c in effects.retained if canonical_uri(c.location) not in discarded or not c.is_of_user)


def is_of_another_owner(checkpoint: CheckpointRecord) -> bool:
    """
    Return whether a checkpoint is an unclaimed one elsewhere.

    It names no file of its job, and its owner may have deleted it.
    """
    return checkpoint.properties.unclaimed and not is_in_job(f"{checkpoint.location}/", checkpoint.job_id)


def _own_files(checkpoint: CheckpointRecord, document: CheckpointDocument, keep: AbstractSet[str]) -> Iterator[str]:
    job, _, name = checkpoint.location.rpartition("/")
    # An aligned checkpoint contains the state of several operators, each with a directory of its own.
    of_operator = "" if checkpoint.is_of_job else f"/{checkpoint.operator_id}"
    # Files elsewhere belong to another job, or are deleted with the directory of the claimed savepoint.
    shared = f"{job}/shared{of_operator}" if checkpoint_id_of(name) is not None else None
    is_retained = _contains_any(checkpoint, keep)
    for uri in dict.fromkeys(state_uris(document.operator_states)):
        is_shared = shared is not None and _is_below(uri, shared)
        if is_shared or (is_retained and _is_below(uri, checkpoint.location)):
            yield uri


def _contains_any(checkpoint: CheckpointRecord, keep: AbstractSet[str] | None) -> bool:
    if keep is not None:
        directory = f"{canonical_uri(checkpoint.location)}/"
        return any(uri.startswith(directory) for uri in keep)
    # The references are unknown. Other checkpoints reference files of a claimed savepoint, but none in the directory of
    # a checkpoint without operator state.
    return checkpoint_id_of(checkpoint.location.rpartition("/")[2]) is None


def _is_below(uri: str, directory: str) -> bool:
    return canonical_uri(uri).startswith(f"{canonical_uri(directory)}/")
