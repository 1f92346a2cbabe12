"""
Deletion of discarded checkpoints, through one gate.

Rows and metadata name what is to be deleted, and a task may have written them. So a job deletes only what lies in a
directory of its own id, wherever the checkpoint directory is, and what lies in the savepoint that one of its rows stands
for: the coordinator made that directory's name, or checked the claim. Writers that remove a file which they could not
finish need no gate, for they have just made its name themselves.

Deleting is idempotent and best effort: a missing file is success, one failed delete does not stop the other checkpoints,
and only what is wholly gone is confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set as AbstractSet

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.layout import (
    METADATA_FILE,
    checkpoint_id_of,
    epoch_of,
    is_in_job,
    savepoint_directory_of,
)
from airflow_provider_statecheck.checkpoint.messages import OpenEffects
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, StreamStateHandle, streams_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    UNREADABLE,
    CheckpointDocument,
    DocumentCache,
    decode_metadata,
    document_uris,
    state_uris,
)
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
        if is_in_job(uri):
            return is_in_job(uri, self._job_id)
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


log = logging.getLogger(__name__)


class EffectDiscards:
    """
    Carries out the discards among the open effects of an operator.

    :param storage: Where the bytes are.
    :param documents: The metadata read or written before.
    """

    def __init__(self, storage: CheckpointStorage, documents: DocumentCache) -> None:
        self._storage = storage
        self._documents = documents
        self.in_use: frozenset[int] = frozenset()
        """The checkpoints of the last call that must wait: others name what lies in their directories."""

    def discard(self, effects: OpenEffects, pinned: AbstractSet[str] = frozenset()) -> tuple[int, ...]:
        """
        Delete what the effects ask for.

        A snapshot or a file of state goes with the last checkpoint that named it: it stays while a retained checkpoint
        names it or it is pinned, and with it the directory that it lies in. Where a retained checkpoint cannot be read,
        nothing is deleted that it may name.

        :param pinned: Snapshots that a running attempt handed out, and files that its next checkpoint may name.
        :return: The checkpoints whose bytes are gone.
        """
        self.in_use = frozenset()
        if not effects.discards:
            return ()
        retained = _without_claimed(effects)
        named = self._documents.named_uris(tuple(c for c in retained if not _is_owners(c)))
        keep = None if named is None else named | pinned
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
                "Checkpoint %s could not be discarded, it will be tried again: %s", checkpoint.checkpoint_id, error
            )
            return False

    def _delete(self, checkpoint: CheckpointRecord, keep: AbstractSet[str] | None) -> bool:
        document, discarder = self._read(checkpoint), StorageDiscarder.of_checkpoint(self._storage, checkpoint)
        if document is not None and _is_others(checkpoint, document):
            return self._leave(checkpoint, document, discarder)
        if keep is None and document is not None and _holds_state(checkpoint, document):
            return self._wait(checkpoint)
        # The metadata goes first: from then on nothing is restored from what is half deleted.
        discarder.discard_metadata(f"{checkpoint.location}/{METADATA_FILE}")
        if document is not None and keep is not None:
            _delete_unneeded(checkpoint, document, keep, discarder)
        self._documents.forget(checkpoint.checkpoint_id)
        if _holds_any(checkpoint, keep):
            return self._wait(checkpoint)
        discarder.discard_location(checkpoint.location)
        return True

    def _leave(self, checkpoint: CheckpointRecord, document: CheckpointDocument, discarder: StorageDiscarder) -> bool:
        log.warning(
            "The directory of checkpoint %s holds a checkpoint that another coordinator wrote; it stays: %s",
            checkpoint.checkpoint_id,
            redact(checkpoint.location),
        )
        named = {uri.rpartition("/")[2] for uri in document_uris(document)}
        for name in self._storage.allowing(checkpoint.location).list_files(checkpoint.location):
            if epoch_of(name) == checkpoint.epoch and name not in named:
                discarder.discard_file(f"{checkpoint.location}/{name}")
        return True

    def _wait(self, checkpoint: CheckpointRecord) -> bool:
        log.info("The directory of checkpoint %s stays while others use what lies in it", checkpoint.checkpoint_id)
        self.in_use |= {checkpoint.checkpoint_id}
        return False

    def _read(self, checkpoint: CheckpointRecord) -> CheckpointDocument | None:
        try:
            if checkpoint.metadata_uri is not None:
                return self._documents.load(checkpoint)
            uri = f"{checkpoint.location}/{METADATA_FILE}"
            return decode_metadata(self._storage.allowing(checkpoint.location).read_bytes(uri), uri=uri)
        except UNREADABLE:
            # It never got its metadata, or lost it: what it named are orphans, which the sweep finds.
            return None


def _is_others(checkpoint: CheckpointRecord, document: CheckpointDocument) -> bool:
    # The row of any other status has the digest of its metadata, which was compared when they were read.
    return checkpoint.status is CheckpointStatus.ABORTED and is_written_by_another(checkpoint, document)


def _delete_unneeded(
    checkpoint: CheckpointRecord, document: CheckpointDocument, keep: AbstractSet[str], discarder: StorageDiscarder
) -> None:
    for handle in document.snapshots:
        # A snapshot in a savepoint that was claimed goes with the savepoint; one of another job is not ours.
        if handle.uri not in keep and discarder.owns(handle.uri):
            discarder.discard_location(handle.uri)
    for stream in _own_files(checkpoint, document, keep):
        if stream.uri not in keep and discarder.owns(stream.uri):
            discarder.discard_state(stream)


def _without_claimed(effects: OpenEffects) -> tuple[CheckpointRecord, ...]:
    # The own row of a savepoint stays when it is claimed, but the checkpoint that claimed it owns the bytes of both.
    # One that was never complete claimed nothing, and owns no byte that lies where a completed one does.
    going = {c.location for c in effects.discards if c.status is not CheckpointStatus.ABORTED}
    return tuple(c for c in effects.retained if c.location not in going or not _is_owners(c))


def _is_owners(checkpoint: CheckpointRecord) -> bool:
    return checkpoint.properties.is_savepoint and not checkpoint.properties.unclaimed


def _own_files(
    checkpoint: CheckpointRecord, document: CheckpointDocument, keep: AbstractSet[str]
) -> Iterator[FileStateHandle]:
    if checkpoint.status is CheckpointStatus.ABORTED:
        # The attempt that wrote them goes on without the checkpoint, and names them in the next one.
        return
    job, _, name = checkpoint.location.rpartition("/")
    # Never what lies elsewhere: that is another job's, or goes with the directory of the savepoint that was claimed.
    shared = f"{job}/shared/{checkpoint.operator_id}" if checkpoint_id_of(name) is not None else None
    stays = _holds_any(checkpoint, keep)
    streams = (stream for state in document.operator_states for stream in streams_of(state))
    for stream in dict.fromkeys(s for s in streams if isinstance(s, FileStateHandle)):
        is_shared = shared is not None and _is_below(stream.uri, shared)
        if is_shared or (stays and _is_below(stream.uri, checkpoint.location)):
            yield stream


def _holds_state(checkpoint: CheckpointRecord, document: CheckpointDocument) -> bool:
    return any(_is_below(uri, checkpoint.location) for uri in state_uris(document.operator_states))


def _holds_any(checkpoint: CheckpointRecord, keep: AbstractSet[str] | None) -> bool:
    if keep is not None:
        return any(_is_below(uri, checkpoint.location) for uri in keep)
    # Nobody knows what is kept. The directory of a checkpoint without state of operators holds nothing that others name,
    # that of a claimed savepoint does.
    return checkpoint_id_of(checkpoint.location.rpartition("/")[2]) is None


def _is_below(uri: str, directory: str) -> bool:
    return uri.startswith(f"{directory}/")
