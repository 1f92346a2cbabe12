"""Garbage collection of one job: what ended attempts left is deleted as a driver would, and confirmed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from airflow_provider_statecheck.checkpoint.effects import open_effects
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.layout import checkpoint_uri
from airflow_provider_statecheck.checkpoint.messages import ConfirmDiscards, OpenEffects
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.hooks.deletion_log import DeletionLog
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.checkpoint.maintenance import MaintenanceGateway
    from airflow_provider_statecheck.storage.documents import DocumentCache
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

OpenStorage = Callable[[str], "CheckpointStorage"]
"""Gives the storage of a checkpoint directory."""


@dataclass(slots=True)
class CollectedJob:
    """What garbage collection did with one job."""

    job: str
    deleted: dict[str, int] = field(default_factory=dict)
    """Bytes of each directory."""
    kept: list[str] = field(default_factory=list)
    """What was left alone, and why."""
    problems: list[str] = field(default_factory=list)
    """What should have been deleted and could not be."""
    unreachable: list[str] = field(default_factory=list)
    """Storage that did not answer."""
    skipped: list[str] = field(default_factory=list)
    """Uids of operators whose snapshots were left alone, because a retained checkpoint of theirs cannot be read."""

    @property
    def deleted_bytes(self) -> int:
        """Return how many bytes were deleted."""
        return sum(self.deleted.values())


def collect_job(
    gateway: MaintenanceGateway, job_id: JobId, open_storage: OpenStorage, *, dry_run: bool = False
) -> CollectedJob:
    """
    Delete the bytes of ended checkpoints and of ended attempts that no live row names.

    Attempts are closed first whose drivers died without a word. What an operator has whose newest attempt has not ended is left to that attempt: it alone knows which snapshots its
    DataFrames still read.

    :param gateway: The rows.
    :param open_storage: Gives the storage of a checkpoint directory.
    :param dry_run: Only report.
    :raises CheckpointNotFoundError: if there is no such job.
    """
    from airflow_provider_statecheck.storage.documents import DocumentCache

    if not dry_run:
        gateway.close_abandoned(job_id)
    # Read before anything is listed: an attempt that comes later has a higher epoch, and its files are not touched.
    view = gateway.describe(job_id)
    report = CollectedJob(job=view.job.name)
    closed = _without_open_attempts(view, report)
    storage_of = functools.cache(open_storage)
    # What a retained checkpoint names may lie in another directory than the checkpoint itself.
    documents = DocumentCache(lambda checkpoint: storage_of(base_of(checkpoint)))
    for base in storage_bases(view):
        try:
            deletions = DeletionLog(storage_of(base), dry_run=dry_run)
            _collect_below(gateway, closed, deletions, documents, report, dry_run=dry_run)
        except StateCheckError as error:
            (report.unreachable if error.retryable else report.problems).append(f"{redact(base)}: {error}")
    return report


def storage_bases(view: JobView) -> tuple[str, ...]:
    """Return the checkpoint directories in which a job may have bytes, the newest last."""
    attempts = sorted(view.attempts, key=lambda attempt: attempt.registered_at)
    # A row of a checkpoint may outlive that of its attempt.
    left = (base_of(checkpoint) for checkpoint in view.checkpoints if checkpoint.discarded_at is None)
    return tuple(dict.fromkeys((*left, *(attempt.storage_base for attempt in attempts))))


def base_of(checkpoint: CheckpointRecord) -> str:
    """Return the checkpoint directory that a checkpoint lies in."""
    return checkpoint.location.removesuffix(checkpoint_uri("", checkpoint.job_id, checkpoint.checkpoint_id))


def _without_open_attempts(view: JobView, report: CollectedJob) -> JobView:
    for operator in view.operators:
        attempt = view.current_attempt(operator)
        if attempt is not None and view.has_open_attempt(operator):
            pin = f"; it pins checkpoint {attempt.restored_from}" if attempt.restored_from is not None else ""
            report.kept.append(
                f"operator {operator.uid!r}: attempt {attempt.epoch} ({attempt.owner.label}) has not ended{pin}"
            )
    closed = {o.operator_id: o for o in view.operators if not view.has_open_attempt(o)}
    checkpoints = tuple(c for c in view.checkpoints if c.operator_id in closed)
    return replace(view, operators=tuple(closed.values()), checkpoints=checkpoints)


def _collect_below(
    gateway: MaintenanceGateway,
    view: JobView,
    deletions: DeletionLog,
    documents: DocumentCache,
    report: CollectedJob,
    *,
    dry_run: bool,
) -> None:
    from airflow_provider_statecheck.storage.sweep import sweep

    storage = cast("CheckpointStorage", deletions)
    try:
        for operator in view.operators:
            _serve_effects(gateway, view, operator, storage, documents, report, dry_run=dry_run)
        skipped = sweep(storage, view, documents).skipped
    finally:
        report.deleted |= deletions.directories
    new = [uid for uid in skipped if uid not in report.skipped]
    report.skipped += new
    report.kept += [f"snapshots of operator {uid!r}: a retained checkpoint of it cannot be read" for uid in new]


def _serve_effects(
    gateway: MaintenanceGateway,
    view: JobView,
    operator: OperatorRecord,
    storage: CheckpointStorage,
    documents: DocumentCache,
    report: CollectedJob,
    *,
    dry_run: bool,
) -> None:
    from airflow_provider_statecheck.storage.cleaner import CheckpointsCleaner

    effects = _effects_below(view, operator, storage.base_uri)
    gone = CheckpointsCleaner(storage, documents).discard(effects)
    if gone and not dry_run:
        gateway.confirm_discards(ConfirmDiscards(job_id=view.job.job_id, checkpoint_ids=gone))
    left = [c.checkpoint_id for c in effects.discards if c.checkpoint_id not in gone]
    report.problems += [f"checkpoint {i} of operator {operator.uid!r} could not be deleted" for i in left]


def _effects_below(view: JobView, operator: OperatorRecord, base_uri: str) -> OpenEffects:
    effects = open_effects(view.of_operator(operator.operator_id), view.current_attempt(operator))
    return replace(effects, discards=tuple(c for c in effects.discards if base_of(c) == base_uri))
