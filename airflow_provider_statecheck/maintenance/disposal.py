"""Deletion of savepoints by users, also of those whose job has no rows."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.ids import (
    METADATA_FILE,
    JobId,
    canonical_uri,
    is_savepoint_directory,
    is_savepoint_of,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.maintenance.gc import OpenStorage
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.storage.discarding import StorageDiscarder
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, find_document
from airflow_provider_statecheck.storage.pointers import pointer_uri
from airflow_provider_statecheck.storage.uris import redact

_UNKNOWN_JOB = JobId("0" * 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposed:
    """Result of disposing of a savepoint."""

    pointer: str
    size_bytes: int


def dispose(
    savepoints: JobSavepoints,
    maintenance: JobMaintenance,
    open_storage: OpenStorage,
    pointer: str,
    *,
    dry_run: bool = False,
) -> Disposed:
    """
    Delete a savepoint, its metadata first to prevent a restore from incomplete files.

    If only its row is left, the savepoint was deleted by hand, and the row is disposed of. The call may be repeated
    after a failure, also if the metadata was deleted or is damaged.

    :param open_storage: Function that opens the storage of a directory.
    :param pointer: URI of the savepoint's directory or of its metadata file.
    :param dry_run: Whether to only return the result.
    :raises CheckpointNotFoundError: if there are neither files nor a row, or the files belong to a job.
    :raises InvalidConfigurationError: if the name of the directory is not that of a savepoint.
    :raises SavepointClaimedError: if an operator claimed the savepoint.
    :raises ConcurrentAttemptError: if an operator of its job restores the savepoint, or will restore it in place.
    :raises UnknownVersionError: if another release wrote the savepoint.
    """
    directory = savepoint_directory(pointer)
    storage = open_storage(directory.rpartition("/")[0])
    size = sum(storage.list_files(directory).values())
    if size == 0 and not storage.exists(directory) and not _has_row(maintenance, directory):
        raise CheckpointNotFoundError(f"Expected a savepoint at {redact(directory)}, found no files.")
    job_id = _job_of(find_document(storage, directory))
    row = savepoints.dispose(directory, job_id, dry_run=dry_run)
    if not dry_run:
        StorageDiscarder(storage, job_id, lambda savepoint: savepoint == directory).discard_checkpoint(directory)
        if row is not None:
            maintenance.confirm_discards(row.job_id, (row.checkpoint_id,))
    return Disposed(pointer=directory, size_bytes=size)


def savepoint_directory(pointer: str) -> str:
    """
    Return the directory of a savepoint.

    :param pointer: URI of the directory or of its metadata file.
    :raises InvalidConfigurationError: if its name is not that of a savepoint.
    """
    directory = pointer_uri(pointer).removesuffix(f"/{METADATA_FILE}")
    if not is_savepoint_directory(directory):
        raise InvalidConfigurationError(
            f"Expected the directory of a savepoint (savepoint-…), found {redact(directory)}; delete a renamed "
            "savepoint yourself, and the files of a job with 'airflow statecheck gc' or 'prune'."
        )
    return directory


def _has_row(maintenance: JobMaintenance, directory: str) -> bool:
    jobs = (job.job_id for job in maintenance.jobs() if is_savepoint_of(directory, job.job_id))
    rows = (row for job_id in jobs for row in maintenance.describe(job_id).checkpoints if row.discarded_at is None)
    return any(canonical_uri(row.location) == canonical_uri(directory) for row in rows)


def _job_of(document: CheckpointDocument | None) -> JobId:
    # A claim of the directory is found even if the metadata and thus the job are missing or damaged.
    return _UNKNOWN_JOB if document is None else JobId(document.job_id)
