"""
From what a person has in hand, a directory or a file, to the metadata of a checkpoint.

This is the one way from a pointer to a checkpoint, for operators, scripts, commands and storage views.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    InvalidPointerError,
    PointerNotFoundError,
)
from airflow_provider_statecheck.storage.document import CheckpointDocument
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import decode_metadata
from airflow_provider_statecheck.storage.uris import normalise_pointer, redact, scheme_of

NOT_ADDRESSABLE = "<checkpoint-not-externally-addressable>"
"""Stands where a checkpoint in memory would have a pointer; it leads nowhere."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")
_MISSING_VALUES = ("none", "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPointer:
    """Where a checkpoint is."""

    metadata_uri: str
    directory_uri: str
    """The external pointer of the checkpoint."""
    storage: CheckpointStorage = field(compare=False, repr=False)
    """Reads the checkpoint, and what its metadata may name."""

    def read(self) -> tuple[CheckpointDocument, bytes]:
        """
        Return the checkpoint's metadata, and the bytes of it.

        :raises CheckpointNotFoundError: if somebody deleted it meanwhile.
        :raises CorruptStateError: if it was changed.
        :raises IncompatibleCheckpointError: if it is no metadata of a known version.
        :raises StorageError: if the storage fails.
        """
        data = self.storage.read_bytes(self.metadata_uri)
        return decode_metadata(data, uri=self.metadata_uri), data


def pointer_uri(pointer: Any) -> str:
    """
    Return what a user gave as pointer as an absolute URI.

    :param pointer: A URI, or a path.
    :raises InvalidConfigurationError: for no pointer, an empty one, the text that a template writes for a missing value, or
        one with credentials.
    :raises InvalidPointerError: for other text that is neither a URI nor a path.
    """
    text = os.fspath(pointer) if isinstance(pointer, os.PathLike) else pointer
    if isinstance(text, str) and "/" in text and _URI.fullmatch(text.strip()) is None:
        return normalise_pointer(text)
    return normalise_pointer(_require_uri(text))


def resolve_checkpoint(storage: CheckpointStorage, pointer: str | None) -> ResolvedPointer:
    """
    Find the metadata that a pointer means.

    :param pointer: URI of a checkpoint's directory, with or without a slash at its end, or of its metadata file,
        whatever that is called. It may belong to any job and lie on any filesystem.
    :raises InvalidConfigurationError: for no pointer or an empty one; the message tells which.
    :raises InvalidPointerError: for text that is no URI, as pointers of other storages may be.
    :raises PointerNotFoundError: if nothing is there, or a directory without metadata.
    :raises StorageError: if the storage fails.
    """
    uri = _require_uri(pointer)
    storage = storage.allowing(uri)
    if storage.is_directory(uri):
        return _in_directory(storage, uri)
    if not storage.exists(uri):
        raise PointerNotFoundError(
            f"Expected a checkpoint at {redact(uri)}, found nothing there on the filesystem of {scheme_of(uri)}://; "
            f"{_advice(uri)}.",
            uri=redact(uri),
        )
    directory = uri.rpartition("/")[0]
    return ResolvedPointer(metadata_uri=uri, directory_uri=directory, storage=storage.allowing(directory))


def _require_uri(pointer: Any) -> str:
    if not isinstance(pointer, str):
        raise InvalidConfigurationError(f"Expected the URI of a checkpoint, found {pointer!r}; give a pointer.")
    uri = pointer.strip().rstrip("/")
    if not pointer.strip():
        raise InvalidConfigurationError("Expected the URI of a checkpoint, found an empty pointer; give its directory.")
    if uri.lower() in _MISSING_VALUES:
        raise InvalidConfigurationError(
            f"Expected the URI of a checkpoint, found {uri!r}, which a template writes for a missing value; give a pointer, "
            f"or nothing."
        )
    if uri == NOT_ADDRESSABLE:
        raise InvalidPointerError(
            f"Expected a URI, found {NOT_ADDRESSABLE}, the pointer of another storage: that checkpoint was kept in the memory "
            f"of its process, and nothing of it is left."
        )
    if not _URI.fullmatch(uri):
        raise InvalidPointerError(
            f"Expected a URI such as file:///data/<job>/chk-7, found {redact(uri)!r}; it may be a pointer of another storage."
        )
    return uri


def _advice(uri: str) -> str:
    if scheme_of(uri) == "memory":
        return "what lies there is gone with the process that wrote it"
    return "correct the pointer, 'airflow statecheck checkpoints' shows those of a job"


def _in_directory(storage: CheckpointStorage, uri: str) -> ResolvedPointer:
    metadata_uri = f"{uri}/{METADATA_FILE}"
    if not storage.exists(metadata_uri):
        raise PointerNotFoundError(
            f"Expected the directory {redact(uri)} to hold a file {METADATA_FILE}, found none; point at the metadata file "
            f"itself if it has another name.",
            uri=redact(uri),
        )
    return ResolvedPointer(metadata_uri=metadata_uri, directory_uri=uri, storage=storage)
