"""From what a person has in hand, a directory or a file, to the metadata of a checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact, scheme_of

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPointer:
    """Where a checkpoint is."""

    metadata_uri: str
    directory_uri: str
    """The external pointer of the checkpoint."""


def resolve_checkpoint(storage: CheckpointStorage, pointer: str | None) -> ResolvedPointer:
    """
    Find the metadata that a pointer means.

    :param pointer: URI of a checkpoint's directory, with or without a slash at its end, or of its metadata file,
        whatever that is called. It may belong to any job.
    :raises InvalidConfigurationError: for no pointer or an empty one; the message tells which.
    :raises StorageError: for text that is no URI, as pointers of other storages may be, or if the storage fails.
    :raises CheckpointNotFoundError: if nothing is there, or a directory without metadata.
    """
    uri = _require_uri(pointer)
    if storage.is_directory(uri):
        return _in_directory(storage, uri)
    if not storage.exists(uri):
        raise CheckpointNotFoundError(
            f"Expected a checkpoint at {redact(uri)}, found nothing there on the filesystem of {scheme_of(uri)}://.",
            uri=redact(uri),
        )
    return ResolvedPointer(metadata_uri=uri, directory_uri=uri.rpartition("/")[0])


def _require_uri(pointer: str | None) -> str:
    if pointer is None:
        raise InvalidConfigurationError("Expected the URI of a checkpoint, found None; give a pointer.")
    uri = pointer.strip().rstrip("/")
    if not pointer.strip():
        raise InvalidConfigurationError("Expected the URI of a checkpoint, found an empty pointer; give its directory.")
    if not _URI.fullmatch(uri):
        raise StorageError(
            f"Expected a URI such as file:///data/<job>/chk-7, found {redact(uri)!r}; it may be a pointer of another storage."
        )
    return uri


def _in_directory(storage: CheckpointStorage, uri: str) -> ResolvedPointer:
    metadata_uri = f"{uri}/{METADATA_FILE}"
    if not storage.exists(metadata_uri):
        raise CheckpointNotFoundError(
            f"Expected the directory {redact(uri)} to hold a file {METADATA_FILE}, found none; point at the metadata file "
            f"itself if it has another name.",
            uri=redact(uri),
        )
    return ResolvedPointer(metadata_uri=metadata_uri, directory_uri=uri)
