"""Restore of a stage from its newest intact checkpoint."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    AttemptRef,
    ConfirmRestore,
    RegisterAttempt,
    SkippedCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.savepoint_restore import as_adopted
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
    streams_of,
)
from airflow_provider_statecheck.exceptions import CorruptStateError, NoRestorableCheckpointError, UnknownVersionError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    UNREADABLE,
    CheckpointDocument,
    SnapshotHandle,
    load_document,
    read_values,
)
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotManifest, read_verified_manifest
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

_VERIFYING_THREADS = 8
_CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredStage:
    """A checkpoint that was loaded and verified."""

    checkpoint: CheckpointRecord
    document: CheckpointDocument
    manifests: dict[str, SnapshotManifest]
    """Manifests by the URI of their snapshot; a damaged snapshot has none."""
    state: dict[str, Any]
    skipped: tuple[SkippedCheckpoint, ...]

    @property
    def damaged(self) -> tuple[SnapshotHandle, ...]:
        """The damaged snapshots of the checkpoint, which must be recomputed."""
        return tuple(handle for handle in self.document.snapshots if handle.uri not in self.manifests)

    def confirmation(
        self, attempt: AttemptRef, *, claim: bool, starts_over: bool = False, restarted_run: str | None = None
    ) -> ConfirmRestore:
        """
        Return the message that confirms the restore to the coordinator.

        :param starts_over: Whether the attempt uses nothing of the checkpoint.
        :param restarted_run: Run whose checkpoints, and those of later runs, the attempt gives up.
        """
        return ConfirmRestore(
            attempt=attempt,
            checkpoint_id=None if starts_over else self.checkpoint.checkpoint_id,
            skipped=self.skipped,
            claim=claim,
            restarted_run=restarted_run,
        )


def restore_latest(storage: CheckpointStorage, grant: AttemptGrant, registration: RegisterAttempt) -> RestoredStage:
    """
    Load the newest intact candidate.

    Corrupt or missing files cause a fallback to the next older candidate; an unavailable storage and files of another
    release do not, because the checkpoint is intact and an attempt from an older one would give it up. If every
    candidate has a damaged snapshot, the newest is restored without its damaged snapshots.

    :raises NoRestorableCheckpointError: if no candidate is readable.
    :raises UnknownVersionError: if another release wrote a file of the newest candidate that is not damaged.
    :raises StorageError: if the storage does not answer.
    """
    restored, skipped = _newest(storage, grant, registration, omits_damaged=False)
    for each in skipped:
        log.error("Checkpoint %s cannot be restored; falling back to an older one: %s", each.checkpoint_id, each.reason)
    if restored is None:
        restored, _ = _newest(storage, grant, registration, omits_damaged=True)
    if restored is None:
        raise _no_restorable_checkpoint(grant, skipped)
    return restored


def _newest(
    storage: CheckpointStorage, grant: AttemptGrant, registration: RegisterAttempt, *, omits_damaged: bool
) -> tuple[RestoredStage | None, tuple[SkippedCheckpoint, ...]]:
    damaged = frozenset(grant.damaged_snapshots)
    skipped: tuple[SkippedCheckpoint, ...] = ()
    for candidate in grant.candidates:
        checkpoint = _as_restored(candidate, registration)
        try:
            return load_candidate(storage, checkpoint, skipped, damaged, omits_damaged=omits_damaged), skipped
        except UnknownVersionError:
            raise
        except UNREADABLE as error:
            skipped = (*skipped, SkippedCheckpoint(checkpoint_id=candidate.checkpoint_id, reason=str(error)))
    return None, skipped


def _as_restored(candidate: CheckpointRecord, registration: RegisterAttempt) -> CheckpointRecord:
    source = registration.restore_from
    if not candidate.is_adoption or source is None:
        return candidate
    return as_adopted(candidate, registration.retention, claim=source.mode is RestoreMode.CLAIM)


def load_candidate(
    storage: CheckpointStorage,
    candidate: CheckpointRecord,
    skipped: tuple[SkippedCheckpoint, ...],
    damaged: AbstractSet[str],
    *,
    omits_damaged: bool,
) -> RestoredStage:
    """
    Load one candidate, after all its files are verified.

    :param damaged: URIs of snapshots that an earlier attempt failed to read.
    :param omits_damaged: Whether damaged snapshots are left out.
    :raises CorruptStateError: if a file is damaged.
    :raises CheckpointNotFoundError: if a file is missing.
    :raises UnknownVersionError: if another release wrote a file.
    :raises StorageError: if the storage does not answer.
    """
    document = load_document(storage, candidate)
    find = _intact_manifest if omits_damaged else read_verified_manifest
    # A snapshot that an earlier attempt failed to read may pass the checks here and fail again later.
    wanted = [handle for handle in document.snapshots if handle.uri not in damaged]
    # The latency of an object store dominates.
    with ThreadPoolExecutor(_VERIFYING_THREADS) as pool:
        found = dict(zip((handle.uri for handle in wanted), pool.map(partial(find, storage), wanted), strict=True))
    if problems := StateVerifier(storage).problems(document):
        raise CorruptStateError("; ".join(problems))
    return RestoredStage(
        checkpoint=candidate,
        document=document,
        manifests={uri: manifest for uri, manifest in found.items() if manifest is not None},
        state=read_values(storage, document, is_bounded=False),
        skipped=skipped,
    )


def _intact_manifest(storage: CheckpointStorage, handle: SnapshotHandle) -> SnapshotManifest | None:
    try:
        return read_verified_manifest(storage, handle)
    except UnknownVersionError:
        raise
    except UNREADABLE as error:
        log.error("Snapshot %r is damaged and will be recomputed: %s", handle.name, error)  # noqa: TRY400 - the reason is in the text
        return None


def _no_restorable_checkpoint(
    grant: AttemptGrant, skipped: tuple[SkippedCheckpoint, ...]
) -> NoRestorableCheckpointError:
    reasons = "; ".join(f"checkpoint {s.checkpoint_id}: {s.reason}" for s in skipped)
    return NoRestorableCheckpointError(
        f"Expected a readable checkpoint to restore ({grant.start_reason}), found none: {reasons}. "
        f"Restore the files from a backup, clear the task with on_clear='restart' if this is the job's first run, or "
        f"start another job from a savepoint.",
        checkpoint_ids=tuple(s.checkpoint_id for s in skipped),
    )


class StateVerifier:
    """
    Verifies the state streams that checkpoints reference, each stream once.

    :param is_deep: Whether to compare checksums too, if the handle has one.
    """

    def __init__(self, storage: CheckpointStorage, *, is_deep: bool = False) -> None:
        self._storage = storage
        self._is_deep = is_deep
        self._problems: dict[StreamStateHandle, str] = {}
        self._sizes: dict[str, int] = {}

    def problems(self, document: CheckpointDocument) -> list[str]:
        """
        Return a message for each damaged or missing stream of the operator states.

        :raises StorageError: if the storage does not answer.
        """
        streams = {(state.uid, stream): None for state in document.operator_states for stream in streams_of(state)}
        self._verify_all([stream for _, stream in streams])
        found = ((uid, self._problems[stream]) for uid, stream in streams)
        return [f"state of operator {uid!r}: {problem}" for uid, problem in found if problem]

    def require_digest(self, file: FileStateHandle) -> None:
        """
        Compare the size and the checksum of a file with its handle, in pieces.

        :raises CorruptStateError: if they differ.
        :raises CheckpointNotFoundError: if the file is missing.
        """
        self._require_intact(file)
        if file.sha256:
            _require_digest(self._storage, file.uri, 0, file.size, file.sha256)

    def _verify_all(self, streams: Iterable[StreamStateHandle]) -> None:
        unverified = [stream for stream in dict.fromkeys(streams) if stream not in self._problems]
        # The latency of an object store dominates.
        with ThreadPoolExecutor(_VERIFYING_THREADS) as pool:
            self._problems.update(zip(unverified, pool.map(self._problem_of, unverified), strict=True))

    def _problem_of(self, stream: StreamStateHandle) -> str:
        try:
            self._require_intact(stream)
        except UNREADABLE as error:
            return str(error)
        return ""

    def _require_intact(self, stream: StreamStateHandle) -> None:
        if isinstance(stream, FileStateHandle):
            start, end = 0, stream.size
            is_as_expected, expected = self._size(stream.uri) == end, f"{end} bytes"
        elif isinstance(stream, SegmentFileStateHandle):
            start, end = stream.start, stream.start + stream.length
            is_as_expected, expected = 0 <= start <= end <= self._size(stream.uri), f"at least {end} bytes"
        else:
            return
        if not is_as_expected:
            raise CorruptStateError(
                f"Expected {expected} in {redact(stream.uri)}, found another size; the file was changed or truncated.",
                uri=redact(stream.uri),
            )
        if self._is_deep and stream.sha256:
            _require_digest(self._storage, stream.uri, start, end, stream.sha256)

    def _size(self, uri: str) -> int:
        # A merged file has several segments.
        if uri not in self._sizes:
            self._sizes[uri] = self._storage.size(uri)
        return self._sizes[uri]


def _require_digest(storage: CheckpointStorage, uri: str, start: int, end: int, expected: str) -> None:
    digest = hashlib.sha256()
    for begin in range(start, end, _CHUNK_BYTES):
        digest.update(storage.read_range(uri, begin, min(begin + _CHUNK_BYTES, end)))
    if digest.hexdigest() != expected:
        raise CorruptStateError(
            f"Expected bytes {start} to {end} of {redact(uri)} to have the digest {expected[:12]}…, found another one; "
            "they were changed after they were written.",
            uri=redact(uri),
        )
