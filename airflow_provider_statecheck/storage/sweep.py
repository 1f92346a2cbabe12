"""Deletes the orphans of a job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.job_view import RECENT, JobView
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.storage.discarding import StorageDiscarder
from airflow_provider_statecheck.storage.documents import DocumentCache
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.orphans import Orphans, OrphanSearch, checkpoint_ids
from airflow_provider_statecheck.storage.quarantine import Quarantine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep found."""

    deleted: tuple[str, ...] = ()
    """Directories and files that were orphans."""
    skipped: tuple[str, ...] = ()
    """Uids of operators that were left alone, because a retained checkpoint of theirs cannot be read."""
    quarantined: tuple[str, ...] = ()
    """Orphans that stay for now."""


def sweep(
    storage: CheckpointStorage,
    view: JobView,
    documents: DocumentCache,
    *,
    of: tuple[OperatorRecord, ...] | None = None,
    read_again: Callable[[], JobView] | None = None,
    row_of: Callable[[int], CheckpointRecord | None] = lambda _: None,
    quarantine: Quarantine | None = None,
) -> SweepReport:
    """
    Delete the orphans of a job below the storage's base.

    :param storage: Where the bytes are.
    :param view: The job's rows, read before anything is listed: what came later has a higher epoch and is not touched.
    :param documents: Reads the metadata of the job's checkpoints, wherever they lie.
    :param of: The operators whose bytes are looked at; by default all.
    :param read_again: Reads the job's rows once more. Without it, files that no operator's name is on are left alone.
    :param row_of: Reads the row of one checkpoint; needed for jobs with more checkpoints than the view holds.
    :param quarantine: Where orphans stay for a while first; bytes of which a row says that they may go stay nowhere.
    :raises StorageError: if the storage fails.
    """
    view = _with_rows_of_directories(storage, view, row_of)
    found = OrphanSearch(storage, view, documents, of=of, read_again=read_again).find()
    due = frozenset((*found.directories, *found.files))
    if quarantine is not None:
        due = quarantine.admit(due, view.read_at)
    deleted = _delete(StorageDiscarder(storage, view.job.job_id), found, due)
    log.info("Sweep of job %s: %s orphans, %s operators skipped", view.job.name, len(deleted), len(found.skipped))
    waiting = tuple(uri for uri in (*found.directories, *found.files) if uri not in due)
    return SweepReport(deleted=deleted, skipped=found.skipped, quarantined=waiting)


def _with_rows_of_directories(
    storage: CheckpointStorage, view: JobView, row_of: Callable[[int], CheckpointRecord | None]
) -> JobView:
    if view.job.next_checkpoint_id <= RECENT:
        return view
    known = {c.checkpoint_id for c in view.checkpoints}
    rows = [row_of(i) for i in checkpoint_ids(storage, view.job.job_id) if i not in known]
    # Any other row is newer than the view, and what it means for the others is not in it.
    older = tuple(row for row in rows if row is not None and row.discarded_at is not None)
    return replace(view, checkpoints=(*older, *view.checkpoints)) if older else view


def _delete(discarder: StorageDiscarder, found: Orphans, due: frozenset[str]) -> tuple[str, ...]:
    directories = (*found.ended, *(uri for uri in found.directories if uri in due))
    files = tuple(uri for uri in found.files if uri in due)
    for uri in directories:
        discarder.discard_location(uri)
    for uri in files:
        discarder.discard_file(uri)
    return (*directories, *files)
