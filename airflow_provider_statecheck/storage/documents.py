"""Reading the ``_metadata`` of checkpoints, each once."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    IncompatibleCheckpointError,
)
from airflow_provider_statecheck.storage.document import CheckpointDocument
from airflow_provider_statecheck.storage.document_uris import document_uris
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import decode_metadata

log = logging.getLogger(__name__)

UNREADABLE = (CorruptStateError, CheckpointNotFoundError, IncompatibleCheckpointError)
"""What says that the bytes themselves are bad, in contrast to a storage that does not answer."""


def load_document(storage: CheckpointStorage, checkpoint: CheckpointRecord) -> CheckpointDocument:
    """
    Read and verify the metadata of a completed checkpoint.

    :raises CorruptStateError: if length or checksum differ from the row's.
    :raises CheckpointNotFoundError: if the file is missing, or was never written.
    :raises IncompatibleCheckpointError: if it is no metadata file of a known version.
    """
    if checkpoint.metadata_uri is None:
        raise CheckpointNotFoundError(f"Checkpoint {checkpoint.checkpoint_id} has no metadata; it was never completed.")
    size, digest = checkpoint.metadata_size, checkpoint.metadata_sha256
    # The row names the place of the checkpoint, which an earlier setting of its directory may have chosen.
    data = storage.allowing(checkpoint.location, checkpoint.metadata_uri).read_verified(
        checkpoint.metadata_uri, size=size, sha256=digest
    )
    return decode_metadata(data, uri=checkpoint.metadata_uri)


class DocumentCache:
    """
    The metadata of checkpoints that were read or written before; a checkpoint never changes.

    :param storage_of: Gives the storage that a checkpoint lies in.
    """

    def __init__(self, storage_of: Callable[[CheckpointRecord], CheckpointStorage]) -> None:
        self._storage_of = storage_of
        self._documents: dict[int, CheckpointDocument] = {}

    def remember(self, checkpoint_id: int, document: CheckpointDocument) -> None:
        """
        Keep a document that was just written or read.

        :param checkpoint_id: The id of the checkpoint's row; a savepoint that was restored has another one inside.
        """
        self._documents[checkpoint_id] = document

    def forget(self, checkpoint_id: int) -> None:
        """Drop a document whose checkpoint is gone."""
        self._documents.pop(checkpoint_id, None)

    def load(self, checkpoint: CheckpointRecord) -> CheckpointDocument:
        """Return a completed checkpoint's document, as :func:`load_document`."""
        if checkpoint.checkpoint_id not in self._documents:
            self.remember(checkpoint.checkpoint_id, load_document(self._storage_of(checkpoint), checkpoint))
        return self._documents[checkpoint.checkpoint_id]

    def named_uris(self, checkpoints: tuple[CheckpointRecord, ...]) -> frozenset[str] | None:
        """
        Return the snapshots and files that any of the checkpoints names.

        :return: ``None`` if one of them cannot be read: then nobody knows what it names.
        """
        uris: set[str] = set()
        for checkpoint in checkpoints:
            try:
                uris.update(document_uris(self.load(checkpoint)))
            except UNREADABLE as error:
                log.warning("Checkpoint %s cannot be read (%s)", checkpoint.checkpoint_id, error)
                return None
        return frozenset(uris)
