"""
Steps of a leader with rows and files: metadata, completion, deletions and failures.

Every step can be repeated, also by another process, with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import (
    AlignedStorage,
    CompletedCheckpoint,
    completed_of,
    contents,
    merged,
)
from airflow_provider_statecheck.checkpoint.aligned.rows import AcknowledgedCheckpoint, PutHandle
from airflow_provider_statecheck.checkpoint.aligned.transitions import is_triggered
from airflow_provider_statecheck.checkpoint.codec import storable_text
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason, root_cause
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, OpenEffects
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
)
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, SegmentFileStateHandle, streams_of
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CommitStateUnknownError,
    CoordinatorError,
    CorruptStateError,
    StateCheckError,
    StorageError,
    causes_of,
)

log = logging.getLogger(__name__)

DEFAULT_LEASE = timedelta(minutes=1)
"""Time after which another process may take over a finalization."""
Reply = TypeVar("Reply")


class CheckpointDeleter(Protocol):
    """Deletes the files of checkpoints; all calls are idempotent and thread-safe."""

    def discard(self, effects: OpenEffects, pinned: AbstractSet[str] = frozenset()) -> tuple[int, ...]:
        """
        Delete the checkpoints that the effects discard, without the files that retained checkpoints name.

        :param pinned: URIs of further files that must stay.
        :return: The ids of the checkpoints that are deleted completely.
        """


def repeated(change: Callable[[], Reply]) -> Reply:
    """Make an idempotent change, and repeat it once if the outcome of its commit is unknown."""
    try:
        return change()
    except CommitStateUnknownError:
        # The first write of a transaction waits for a commit that is still in progress.
        return change()


def unrecoverable(storage: AlignedStorage, acknowledged: AcknowledgedCheckpoint) -> CheckpointException | None:
    """Return why a pending checkpoint of an earlier leader cannot be completed; ``None`` if it can be."""
    if not is_triggered(acknowledged.acknowledgements):
        return _lost("the coordinator ended before it had triggered all tasks")
    try:
        merged(contents(storage, acknowledged.acknowledgements))
    except (CheckpointNotFoundError, CorruptStateError) as error:
        return _lost(f"acknowledged state cannot be read: {error}")
    return None


def _lost(why: str) -> CheckpointException:
    return CheckpointException(CheckpointFailureReason.JOB_FAILURE, CoordinatorError(why))


def write_acknowledged(
    rows: AlignedCheckpoints, leader: AttemptRef, storage: AlignedStorage, acknowledged: AcknowledgedCheckpoint
) -> CompletedCheckpoint:
    """
    Write the metadata of a checkpoint that this finalizer holds, from the manifests of its acknowledgements.

    :raises CoordinatorError: if the finalizer does not hold the checkpoint any more; nothing is written.
    """
    filled = _filled(acknowledged)
    content = merged(contents(storage, acknowledged.acknowledgements))
    _require_finalizing(rows, leader, acknowledged.checkpoint)
    return completed_of(filled, content, storage.write_metadata(filled, content))


def _filled(acknowledged: AcknowledgedCheckpoint) -> CheckpointRecord:
    """Return the row with the figures of its acknowledgements: every finalizer writes the same metadata."""
    record = acknowledged.checkpoint
    times = [a.acknowledged_at for a in acknowledged.acknowledgements if a.acknowledged_at is not None]
    return replace(
        record,
        completed_at=max(times, default=record.triggered_at),
        state_size_bytes=sum(a.state_size_bytes for a in acknowledged.acknowledgements),
    )


def _require_finalizing(rows: AlignedCheckpoints, leader: AttemptRef, record: CheckpointRecord) -> None:
    # The files of a checkpoint that was completed elsewhere may be deleted by now, and a write would leave new ones.
    if not rows.is_finalizing(leader, record.checkpoint_id, record.finalizer, record.lease_until):
        raise CoordinatorError(
            f"Expected to finalize checkpoint {record.checkpoint_id}, found another finalizer or none."
        )


def complete(
    rows: AlignedCheckpoints, leader: AttemptRef, state: CompletedCheckpoint, version: int | None = None
) -> CheckpointRecord:
    """
    Complete the row of a checkpoint with metadata on storage, add that of a restored one, or replace its properties.

    :param version: Version of the row whose properties are replaced.
    """
    handle = PutHandle(
        leader=leader,
        checkpoint_id=state.checkpoint_id,
        location=state.external_pointer,
        metadata=state.metadata,
        properties=state.properties,
        completed_at=state.completed_at,
        state_size_bytes=state.checkpointed_size,
        full_size_bytes=state.state_size,
        operators=sum(each.has_state for each in state.operator_states.values()),
        version=version,
    )
    return repeated(partial(rows.put_handle, handle))


def completed_elsewhere(
    rows: AlignedCheckpoints, record: CheckpointRecord, error: Exception
) -> CheckpointRecord | None:
    """
    Return the row of a checkpoint whose finalization failed here, and which another process has completed.

    :return: ``None`` if the checkpoint is not complete, because its other finalizer has not ended or has failed.
    """
    found = rows.checkpoint(record.job_id, record.checkpoint_id)
    if found is None or found.status is not CheckpointStatus.COMPLETED:
        log.warning("Checkpoint %s was finalized elsewhere; here it failed: %s", record.checkpoint_id, error)
        return None
    log.warning("Checkpoint %s is complete, although an error was reported: %s", record.checkpoint_id, error)
    return found


def delete_merged_manifests(storage: AlignedStorage, acknowledged: AcknowledgedCheckpoint) -> None:
    """
    Delete the manifests of a completed savepoint: its metadata has their content, and its directory is the user's.
    """
    if acknowledged.checkpoint.properties.is_savepoint:
        for uri in filter(None, (a.manifest_uri for a in acknowledged.acknowledgements)):
            delete_manifest(storage, uri)


def delete_manifest(storage: AlignedStorage, uri: str) -> None:
    """Delete a manifest that nothing refers to, and log a failure."""
    try:
        storage.delete_manifest(uri)
    except StateCheckError as error:
        log.warning("An unreferenced manifest is left to garbage collection: %s", error)


def delete_ended(
    rows: AlignedCheckpoints,
    leader: AttemptRef,
    storage: AlignedStorage,
    deleter: CheckpointDeleter,
    checkpoint_ids: Collection[int],
) -> None:
    """
    Delete the files of ended checkpoints that nothing needs, and record their deletion.

    A file stays while a retained checkpoint, the manifest of a checkpoint in progress or the checkpoint that the leader
    restored names it, and while a task that may name it has not acknowledged.
    """
    # Rows and manifests may have changed since the deletion was chosen.
    found = rows.effects(leader, tuple(checkpoint_ids))
    deleted = deleter.discard(found.effects, _named(storage, found.manifests))
    if deleted:
        rows.record_discards(leader, deleted)


def _named(storage: AlignedStorage, manifests: Iterable[AcknowledgementRecord]) -> frozenset[str]:
    # Several checkpoints may be in progress, each with a state of the same operator.
    states = chain.from_iterable(content.operator_states for content in contents(storage, manifests))
    streams = chain.from_iterable(streams_of(state) for state in states)
    return frozenset(s.uri for s in streams if isinstance(s, FileStateHandle | SegmentFileStateHandle))


def report_failure(
    rows: AlignedCheckpoints, leader: AttemptRef, error: CheckpointException, checkpoint_id: int | None
) -> None:
    """Record the root cause of a failed checkpoint, which counts as one without an id if it has no row."""
    cause = None if error.__cause__ is None else storable_text(root_cause(error))
    rows.report_failure(leader, error.reason, checkpoint_id, cause)


def recorded_failure(failed: CheckpointRequest | CheckpointRecord) -> CheckpointException:
    """Return the error of a failed request or checkpoint."""
    # A newer version may have written a reason that this one does not know.
    known = CheckpointFailureReason.__members__.values()
    reason = next((each for each in known if each == failed.failure_reason), CheckpointFailureReason.UNSPECIFIED)
    message = failed.failure_message
    cause = RuntimeError(message) if message and message != reason.message else None
    return CheckpointException(reason, cause, checkpoint_id=failed.checkpoint_id)


def message_of(error: CheckpointException) -> str:
    """Return the failure message for the rows, from which :func:`recorded_failure` makes the error again."""
    return "" if error.__cause__ is None else str(error.__cause__)


def trigger_failure(error: BaseException) -> CheckpointException:
    """Return the failure of a checkpoint that could not be triggered."""
    chained = list(causes_of(error))
    if any(isinstance(each, StorageError | OSError) for each in chained):
        return CheckpointException(CheckpointFailureReason.IO_EXCEPTION, error)
    known = next((each for each in chained if isinstance(each, CheckpointException)), None)
    return known or CheckpointException(CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE, error)


def finalization_failure(error: Exception) -> CheckpointException:
    """Return the failure of a checkpoint that could not be finalized."""
    if isinstance(error, CheckpointException):
        return error
    return CheckpointException(CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, error)
