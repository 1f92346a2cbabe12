"""Making directories, on filesystems that have any: elsewhere a file brings its directory with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.layout import new_savepoint_uri
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage import local_files
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact, scheme_of

_OWNER_FILE = "_job"
_NAMES = 10


def make_directory(storage: CheckpointStorage, uri: str) -> None:
    """
    Make a directory with its parents, durably; it may be there.

    :raises StorageError: if that fails, or the storage does not answer.
    """
    with suppress(FileExistsError):
        _make(storage, uri)
    if _is_local(uri) and not storage.is_directory(uri):
        raise StorageError(f"Expected a directory at {redact(uri)}, found a file.", uri=redact(uri))


def make_savepoint_directory(
    storage: CheckpointStorage,
    target: str,
    job_id: JobId,
    new_uri: Callable[[str, JobId], str] = new_savepoint_uri,
) -> str:
    """
    Make a new directory for a savepoint and return it.

    :param new_uri: Gives a random name.
    :raises StorageError: if that fails, or ten random names were taken.
    """
    taken: FileExistsError | None = None
    for _ in range(_NAMES):
        uri = new_uri(target, job_id)
        try:
            _make(storage, uri)
        except FileExistsError as error:
            taken = error
        else:
            return uri
    raise StorageError(
        f"Expected a free name for a savepoint in {redact(target)}, found {_NAMES} random ones taken.",
        uri=redact(target),
    ) from taken


def claim_directory(storage: CheckpointStorage, directory: str, job_id: JobId) -> None:
    """
    Note that a directory without one for each job belongs to a job; repeating it is harmless.

    :raises InvalidConfigurationError: if anything else is in it, or another job's.
    """
    uri = f"{directory}/{_OWNER_FILE}"
    is_claimed = storage.exists(uri)
    if not is_claimed and storage.list_files(directory):
        raise InvalidConfigurationError(
            f"Expected {redact(directory)} to be empty, because jobs get no directories of their own, found files in it; "
            f"choose another directory, or set execution.checkpointing.create-subdir."
        )
    if not is_claimed:
        storage.write_bytes(uri, job_id.encode())
    if storage.read_bytes(uri) != job_id.encode():
        raise InvalidConfigurationError(
            f"Expected {redact(directory)} to belong to job {job_id}, found that of another; choose another directory."
        )


def _make(storage: CheckpointStorage, uri: str) -> None:
    if not _is_local(uri):
        if storage.exists(uri):
            raise FileExistsError(uri)
        return
    try:
        local_files.make_new_directory(Path(uri.partition("://")[2]))
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(f"The directory {redact(uri)} cannot be made: {error}", uri=redact(uri)) from error


def _is_local(uri: str) -> bool:
    return scheme_of(uri) in LOCAL_SCHEMES
