"""
Finds and deletes orphans: bytes of ended attempts that no live row names.

By epoch, never by age: a write that takes six hours is older than any age guard, but its attempt is still open.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.layout import (
    checkpoint_id_of,
    checkpoint_uri,
    epoch_of,
    job_uri,
    shared_uri,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, OperatorRecord
from airflow_provider_statecheck.storage.documents import DocumentCache
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep found."""

    deleted: tuple[str, ...] = ()
    """Directories that were orphans."""
    skipped: tuple[str, ...] = ()
    """Uids of operators that were left alone, because a retained checkpoint of theirs cannot be read."""


def sweep(storage: CheckpointStorage, view: JobView, documents: DocumentCache) -> SweepReport:
    """
    Delete the orphans of a job below the storage's base.

    :param storage: Where the bytes are.
    :param view: The job's rows, read before anything is listed: what came later has a higher epoch and is not touched.
    :param documents: Reads the metadata of the job's checkpoints, wherever they lie.
    """
    deleted: list[str] = _ended_checkpoints(storage, view)
    skipped: list[str] = []
    for operator in view.operators:
        orphans = _orphaned_snapshots(storage, view, operator, documents)
        deleted.extend(orphans or ())
        skipped.extend([operator.uid] if orphans is None else [])
    for uri in deleted:
        storage.delete_directory(uri)
    log.info("Sweep of job %s: %s orphans, %s operators skipped", view.job.name, len(deleted), len(skipped))
    return SweepReport(deleted=tuple(deleted), skipped=tuple(skipped))


def _ended_checkpoints(storage: CheckpointStorage, view: JobView) -> list[str]:
    rows = {c.checkpoint_id: c for c in view.checkpoints}
    pinned = _pinned_ids(view)
    base, job_id = storage.base_uri, view.job.job_id
    found = (checkpoint_id_of(name) for name in storage.list_directories(job_uri(base, job_id)))
    return [
        checkpoint_uri(base, job_id, i)
        for i in found
        if i is not None and i in rows and i not in pinned and _has_ended(rows[i])
    ]


def _has_ended(checkpoint: CheckpointRecord) -> bool:
    return checkpoint.status in (CheckpointStatus.ABORTED, CheckpointStatus.SUBSUMED)


def _pinned_ids(view: JobView) -> set[int]:
    open_attempts = (view.current_attempt(o) for o in view.operators if view.has_open_attempt(o))
    return {a.restored_from for a in open_attempts if a is not None and a.restored_from is not None}


def _orphaned_snapshots(
    storage: CheckpointStorage, view: JobView, operator: OperatorRecord, documents: DocumentCache
) -> list[str] | None:
    named = documents.snapshot_uris(_retained(view, operator))
    if named is None:
        return None
    first_open_epoch = operator.epoch if view.has_open_attempt(operator) else operator.epoch + 1
    root = shared_uri(storage.base_uri, view.job.job_id, operator.operator_id)
    orphans: list[str] = []
    for slug in storage.list_directories(root):
        for name in storage.list_directories(f"{root}/{slug}"):
            epoch, uri = epoch_of(name), f"{root}/{slug}/{name}"
            if epoch is not None and epoch < first_open_epoch and uri not in named:
                orphans.append(uri)
    return orphans


def _retained(view: JobView, operator: OperatorRecord) -> tuple[CheckpointRecord, ...]:
    pinned = _pinned_ids(view)
    rows = view.of_operator(operator.operator_id)
    return tuple(
        c
        for c in rows
        if c.status is CheckpointStatus.COMPLETED or (c.checkpoint_id in pinned and c.metadata_uri is not None)
    )
