"""Disposing of a savepoint by its pointer, whether its job is still known or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, is_savepoint_directory
from airflow_provider_statecheck.checkpoint.messages import ConfirmDiscards, DisposeSavepoint
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.storage.pointer import pointer_uri
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.maintenance import MaintenanceGateway
    from airflow_provider_statecheck.checkpoint.savepoints import SavepointGateway
    from airflow_provider_statecheck.hooks.collecting import OpenStorage
    from airflow_provider_statecheck.storage.document import CheckpointDocument
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

_NO_JOB = JobId("0" * 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposed:
    """What was deleted."""

    pointer: str
    size_bytes: int


def dispose(
    savepoints: SavepointGateway,
    maintenance: MaintenanceGateway,
    open_storage: OpenStorage,
    pointer: str,
    *,
    dry_run: bool = False,
) -> Disposed:
    """
    Delete a savepoint, its metadata first, so that nobody restores from what is half gone.

    It may be repeated after a failure: a directory that has lost its metadata goes on being deleted.

    :param open_storage: Gives the storage of a directory.
    :param pointer: URI of the savepoint's directory, or of its metadata.
    :param dry_run: Only say what would go.
    :raises CheckpointNotFoundError: if nothing is there, or what is there belongs to a job.
    :raises InvalidConfigurationError: for a directory of another name than savepoints are given.
    :raises SnapshotClaimedError: if an operator claimed it.
    """
    from airflow_provider_statecheck.storage.discarding import StorageDiscarder

    directory = _directory(pointer)
    storage = open_storage(directory.rpartition("/")[0])
    size = sum(storage.list_files(directory).values())
    if size == 0 and not storage.exists(directory):
        raise CheckpointNotFoundError(f"Expected a savepoint at {redact(directory)}, found nothing there.")
    document = _document(storage, directory)
    if not dry_run:
        row = _give_up(savepoints, document, directory)
        discarder = StorageDiscarder(storage, _job_of(document), lambda savepoint: savepoint == directory)
        discarder.discard_metadata(f"{directory}/{METADATA_FILE}")
        discarder.discard_location(directory)
        if row is not None:
            maintenance.confirm_discards(row)
    return Disposed(pointer=directory, size_bytes=size)


def _directory(pointer: str) -> str:
    directory = pointer_uri(pointer).removesuffix(f"/{METADATA_FILE}")
    if not is_savepoint_directory(directory):
        raise InvalidConfigurationError(
            f"Expected the directory of a savepoint (savepoint-…), found {redact(directory)}; one that was renamed is yours "
            f"to delete, and what belongs to a job goes with 'airflow statecheck gc' or 'prune'."
        )
    return directory


def _document(storage: CheckpointStorage, directory: str) -> CheckpointDocument | None:
    from airflow_provider_statecheck.storage.metadata_file import decode_metadata

    uri = f"{directory}/{METADATA_FILE}"
    try:
        return decode_metadata(storage.read_bytes(uri), uri=uri)
    except CheckpointNotFoundError:
        return None


def _job_of(document: CheckpointDocument | None) -> JobId:
    # Without metadata the job is unknown; a claim of the directory is found all the same.
    return _NO_JOB if document is None else JobId(document.job_id)


def _give_up(
    savepoints: SavepointGateway, document: CheckpointDocument | None, directory: str
) -> ConfirmDiscards | None:
    row = savepoints.dispose(DisposeSavepoint(pointer=directory, job_id=_job_of(document))).checkpoint
    return None if row is None else ConfirmDiscards(job_id=row.job_id, checkpoint_ids=(row.checkpoint_id,))
