"""Deletes the orphans of a job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import OperatorRecord
from airflow_provider_statecheck.storage.documents import DocumentCache
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.orphans import Orphans, OrphanSearch
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
    quarantine: Quarantine | None = None,
) -> SweepReport:
    """
    Delete the orphans of a job below the storage's base.

    :param storage: Where the bytes are.
    :param view: The job's rows, read before anything is listed: what came later has a higher epoch and is not touched.
    :param documents: Reads the metadata of the job's checkpoints, wherever they lie.
    :param of: The operators whose bytes are looked at; by default all.
    :param read_again: Reads the job's rows once more. Without it, files that no operator's name is on are left alone.
    :param quarantine: Where orphans stay for a while first; bytes of which a row says that they may go stay nowhere.
    :raises StorageError: if the storage fails.
    """
    found = OrphanSearch(storage, view, documents, of=of, read_again=read_again).find()
    due = frozenset((*found.directories, *found.files))
    if quarantine is not None:
        due = quarantine.admit(due, view.read_at)
    deleted = _delete(storage, found, due)
    log.info("Sweep of job %s: %s orphans, %s operators skipped", view.job.name, len(deleted), len(found.skipped))
    waiting = tuple(uri for uri in (*found.directories, *found.files) if uri not in due)
    return SweepReport(deleted=deleted, skipped=found.skipped, quarantined=waiting)


def _delete(storage: CheckpointStorage, found: Orphans, due: frozenset[str]) -> tuple[str, ...]:
    directories = (*found.ended, *(uri for uri in found.directories if uri in due))
    files = tuple(uri for uri in found.files if uri in due)
    for uri in directories:
        storage.delete_directory(uri)
    for uri in files:
        storage.delete_file(uri)
    return (*directories, *files)
