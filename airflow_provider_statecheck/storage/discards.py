"""
Deletes the bytes of subsumed and aborted checkpoints, after their rows say so.

Deleting is idempotent and best effort: a missing file is success, one failed delete does not stop the other checkpoints,
and only what is wholly gone is confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, checkpoint_id_of
from airflow_provider_statecheck.checkpoint.messages import OpenEffects
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.storage.discarding import StorageDiscarder
from airflow_provider_statecheck.storage.document import CheckpointDocument
from airflow_provider_statecheck.storage.documents import UNREADABLE, DocumentCache
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import decode_metadata

log = logging.getLogger(__name__)


class EffectDiscards:
    """
    Carries out the discards among the open effects of an operator.

    :param storage: Where the bytes are.
    :param documents: The metadata read or written before.
    """

    def __init__(self, storage: CheckpointStorage, documents: DocumentCache) -> None:
        self._storage = storage
        self._discarder = StorageDiscarder(storage)
        self._documents = documents
        self.in_use: frozenset[int] = frozenset()
        """The checkpoints of the last call that must wait: others name what lies in their directories."""

    def discard(self, effects: OpenEffects, pinned: AbstractSet[str] = frozenset()) -> tuple[int, ...]:
        """
        Delete what the effects ask for.

        A snapshot goes with the last checkpoint that named it: it stays while a retained checkpoint names it or it is
        pinned, and with it the directory that it lies in. Where a retained checkpoint cannot be read, no snapshot is
        deleted at all.

        :param pinned: Snapshots that a running attempt handed out.
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
        snapshots = self._unneeded_snapshots(checkpoint, keep)
        # The metadata goes first: from then on nobody can restore from what is half deleted.
        self._discarder.discard_metadata(f"{checkpoint.location}/{METADATA_FILE}")
        for uri in snapshots:
            self._discarder.discard_location(uri)
        self._documents.forget(checkpoint.checkpoint_id)
        if _holds_any(checkpoint, keep):
            return self._wait(checkpoint)
        self._discarder.discard_location(checkpoint.location)
        return True

    def _wait(self, checkpoint: CheckpointRecord) -> bool:
        log.info("The directory of checkpoint %s stays while others use what lies in it", checkpoint.checkpoint_id)
        self.in_use |= {checkpoint.checkpoint_id}
        return False

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


def _without_claimed(effects: OpenEffects) -> tuple[CheckpointRecord, ...]:
    # The own row of a savepoint stays when it is claimed, but the checkpoint that claimed it owns the bytes of both.
    # One that was never complete claimed nothing, and owns no byte that lies where a completed one does.
    going = {c.location for c in effects.discards if c.status is not CheckpointStatus.ABORTED}
    return tuple(c for c in effects.retained if c.location not in going or not _is_owners(c))


def _is_owners(checkpoint: CheckpointRecord) -> bool:
    return checkpoint.properties.is_savepoint and not checkpoint.properties.unclaimed


def _holds_any(checkpoint: CheckpointRecord, keep: AbstractSet[str] | None) -> bool:
    if keep is not None:
        return any(_is_below(uri, checkpoint.location) for uri in keep)
    # Nobody knows what is kept. The directory of a checkpoint holds no snapshots, that of a claimed savepoint does.
    return checkpoint_id_of(checkpoint.location.rpartition("/")[2]) is None


def _is_below(uri: str, directory: str) -> bool:
    return uri.startswith(f"{directory}/")
