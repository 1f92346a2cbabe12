"""What lies below a checkpoint directory, read without any row."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.layout import (
    METADATA_FILE,
    checkpoint_id_of,
    checkpoint_uri,
    epoch_of,
    is_savepoint_directory,
    job_uri,
)
from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.storage.document import CheckpointDocument
from airflow_provider_statecheck.storage.documents import UNREADABLE
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import decode_metadata
from airflow_provider_statecheck.storage.uris import redact

_JOB_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSnapshot:
    """A checkpoint or savepoint whose metadata can be read."""

    location: str
    metadata_size: int
    metadata_sha256: str
    document: CheckpointDocument

    @property
    def metadata_uri(self) -> str:
        """Return where the metadata is."""
        return f"{self.location}/{METADATA_FILE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """What there is of one job."""

    job_id: JobId
    checkpoints: tuple[FoundSnapshot, ...]
    """The oldest first."""
    highest_epoch: int
    """In any name below the job."""
    highest_checkpoint_id: int
    problems: tuple[str, ...]


def find_jobs(storage: CheckpointStorage) -> list[JobId]:
    """
    Return the jobs that have a directory.

    :raises StorageError: if the storage fails.
    """
    return [JobId(name) for name in storage.list_directories(storage.base_uri) if _JOB_ID.fullmatch(name)]


def find_job(storage: CheckpointStorage, job_id: JobId) -> FoundJob:
    """
    Read what there is of one job; metadata that cannot be read is told and left.

    :raises StorageError: if the storage fails.
    """
    parts = [path.split("/") for path in storage.list_files(job_uri(storage.base_uri, job_id))]
    ids = sorted({i for i in (checkpoint_id_of(p[0]) for p in parts if len(p) > 1) if i is not None})
    written = [checkpoint_id_of(p[0]) for p in parts if len(p) == 2 and p[1] == METADATA_FILE]
    directories = [checkpoint_uri(storage.base_uri, job_id, i) for i in ids if i in written]
    found, problems = _read_all(storage, directories)
    checkpoints = [c for c in found if _is_in_place(c, job_id)]
    problems += [_wrong_place(c, job_id) for c in found if c not in checkpoints]
    epochs = (e for p in parts for e in map(epoch_of, p) if e is not None)
    return FoundJob(
        job_id=job_id,
        checkpoints=tuple(checkpoints),
        highest_epoch=max((*epochs, *(c.document.epoch for c in checkpoints)), default=0),
        highest_checkpoint_id=max(ids, default=0),
        problems=tuple(map(redact, problems)),
    )


def find_savepoints(storage: CheckpointStorage) -> tuple[list[FoundSnapshot], list[str]]:
    """
    Read the savepoints in the storage's base, and say which cannot be read.

    :raises StorageError: if the storage fails.
    """
    names = filter(is_savepoint_directory, storage.list_directories(storage.base_uri))
    found, problems = _read_all(storage, [f"{storage.base_uri}/{name}" for name in names])
    savepoints = [s for s in found if s.document.properties.is_savepoint]
    return savepoints, [redact(p) for p in problems]


def _read_all(storage: CheckpointStorage, directories: Iterable[str]) -> tuple[list[FoundSnapshot], list[str]]:
    found: list[FoundSnapshot] = []
    problems: list[str] = []
    for directory in directories:
        try:
            found.append(_read(storage, directory))
        except UNREADABLE as error:
            problems.append(str(error))
    return found, problems


def _read(storage: CheckpointStorage, directory: str) -> FoundSnapshot:
    uri = f"{directory}/{METADATA_FILE}"
    data = storage.read_bytes(uri)
    document = decode_metadata(data, uri=uri)
    # The ids are derived from the names; what does not fit was not written by this library.
    if (job_id_of(document.job_name), operator_id_of(document.uid)) != (document.job_id, document.operator_id):
        raise CorruptStateError(f"Expected names that fit the ids in {uri}, found others.", uri=uri)
    digest = hashlib.sha256(data).hexdigest()
    return FoundSnapshot(location=directory, metadata_size=len(data), metadata_sha256=digest, document=document)


def _is_in_place(found: FoundSnapshot, job_id: JobId) -> bool:
    document = found.document
    place = checkpoint_id_of(found.location.rpartition("/")[2])
    return (document.job_id, document.checkpoint_id) == (job_id, place) and not document.properties.is_savepoint


def _wrong_place(found: FoundSnapshot, job_id: JobId) -> str:
    document = found.document
    return (
        f"Expected a checkpoint of job {job_id} in {found.location}, found snapshot {document.checkpoint_id} of job "
        f"{document.job_id}."
    )
