"""
Deletes the bytes of subsumed and aborted checkpoints, after their rows say so.

Flink's ``CheckpointsCleaner``. Deleting is idempotent and best effort: a missing file is success, one failed delete does
not stop the others, and only what is wholly gone is confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE
from airflow_provider_statecheck.checkpoint.messages import OpenEffects
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.storage.document import CheckpointDocument
from airflow_provider_statecheck.storage.documents import UNREADABLE, DocumentCache
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import decode_metadata

log = logging.getLogger(__name__)


class CheckpointsCleaner:
    """
    Carries out discards.

    :param storage: Where the bytes are.
    :param documents: The metadata read or written before.
    """

    def __init__(self, storage: CheckpointStorage, documents: DocumentCache) -> None:
        self._storage = storage
        self._documents = documents

    def discard(self, effects: OpenEffects, pinned: AbstractSet[str] = frozenset()) -> tuple[int, ...]:
        """
        Delete what the effects ask for.

        A snapshot goes with the last checkpoint that named it: it stays while a retained checkpoint names it or it is
        pinned. Where a retained checkpoint cannot be read, no snapshot is deleted at all.

        :param pinned: Snapshots that a running attempt handed out.
        :return: The checkpoints whose bytes are gone.
        """
        if not effects.discards:
            return ()
        named = self._documents.snapshot_uris(effects.retained)
        keep = None if named is None else named | pinned
        return tuple(c.checkpoint_id for c in effects.discards if self._discard(c, keep))

    def _discard(self, checkpoint: CheckpointRecord, keep: AbstractSet[str] | None) -> bool:
        try:
            snapshots = self._unneeded_snapshots(checkpoint, keep)
            # The metadata goes first: from then on nobody can restore from what is half deleted.
            self._storage.delete_file(f"{checkpoint.location}/{METADATA_FILE}")
            for uri in snapshots:
                self._storage.delete_directory(uri)
            self._storage.delete_directory(checkpoint.location)
        except StateCheckError as error:
            log.warning(
                "Checkpoint %s could not be discarded, it will be tried again: %s", checkpoint.checkpoint_id, error
            )
            return False
        self._documents.forget(checkpoint.checkpoint_id)
        return True

    def _unneeded_snapshots(self, checkpoint: CheckpointRecord, keep: AbstractSet[str] | None) -> list[str]:
        if keep is None:
            return []
        try:
            document = self._read(checkpoint)
        except UNREADABLE:
            # It never got its metadata, or lost it: its snapshots are orphans, which the sweep finds.
            return []
        return [handle.uri for handle in document.snapshots if handle.uri not in keep]

    def _read(self, checkpoint: CheckpointRecord) -> CheckpointDocument:
        if checkpoint.metadata_uri is not None:
            return self._documents.load(checkpoint)
        uri = f"{checkpoint.location}/{METADATA_FILE}"
        return decode_metadata(self._storage.read_bytes(uri), uri=uri)
