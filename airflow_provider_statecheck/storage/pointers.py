"""
Pointers to checkpoints and savepoints, resolved to their metadata.

This is the one way from a pointer to a checkpoint, for operators, scripts, commands and storage views.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, is_savepoint_directory
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    InvalidPointerError,
    PointerNotFoundError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, decode_metadata
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


log = logging.getLogger(__name__)


def find_source(
    storage: CheckpointStorage,
    pointer: str,
    *,
    uid: str,
    mode: RestoreMode,
    renamed_uids: Mapping[str, str],
    allow_non_restored_state: bool,
) -> RestoreSource | None:
    """
    Read what a pointer means and check that it fits the operator.

    A snapshot that is missing is an error only where the operator has no checkpoint of its own to go on from, so that a
    retry needs no savepoint that was claimed and is gone; the coordinator knows and raises it.

    :param storage: That of the operator's checkpoints.
    :param pointer: URI of a savepoint's or checkpoint's directory, or of its metadata.
    :param uid: The operator that is to be restored.
    :param mode: Whose the snapshot is afterwards.
    :param renamed_uids: For operators that changed their uid: the old one and the new one.
    :param allow_non_restored_state: Whether to start with nothing where the snapshot is another operator's.
    :return: ``None`` where nothing of the snapshot is to be restored.
    :raises IncompatibleCheckpointError: if it is another operator's, naming the uids.
    :raises InvalidConfigurationError: for what is no pointer, and for a claim of what is no savepoint.
    :raises InvalidPointerError: for text that is neither a URI nor a path.
    """
    pointer = pointer_uri(pointer)
    try:
        resolved = resolve_checkpoint(storage, pointer)
        document, data = resolved.read()
    except (CheckpointNotFoundError, IncompatibleCheckpointError, StorageError) as error:
        return _unreadable(pointer, mode, error)
    if not _fits(document, uid, renamed_uids, allow_non_restored_state=allow_non_restored_state):
        return None
    if mode is RestoreMode.CLAIM:
        _require_claimable(document, resolved.directory_uri)
    return RestoreSource(
        pointer=resolved.directory_uri,
        metadata_uri=resolved.metadata_uri,
        metadata_size=len(data),
        metadata_sha256=hashlib.sha256(data).hexdigest(),
        full_size_bytes=document.named_bytes,
        mode=mode,
    )


def _unreadable(pointer: str, mode: RestoreMode, error: StateCheckError) -> RestoreSource:
    return RestoreSource(
        pointer=pointer,
        metadata_uri="",
        metadata_size=0,
        metadata_sha256="",
        mode=mode,
        problem=str(error),
        is_unavailable=error.retryable,
    )


def _fits(
    document: CheckpointDocument, uid: str, renamed_uids: Mapping[str, str], *, allow_non_restored_state: bool
) -> bool:
    now_called = renamed_uids.get(document.uid, document.uid)
    if now_called == uid:
        return True
    if allow_non_restored_state:
        log.warning(
            "The state of operator %r in the savepoint belongs to no operator here and is not restored; %r starts with "
            "nothing",
            document.uid,
            uid,
        )
        return False
    nearest = " (a similar name)" if difflib.get_close_matches(now_called, [uid]) else ""
    raise IncompatibleCheckpointError(
        f"Expected a savepoint of operator {uid!r}, found one of operator {document.uid!r} of job {document.job_name!r}"
        f"{nearest}; say renamed_uids={{{document.uid!r}: {uid!r}}} if that is the same operator, or "
        f"allow_non_restored_state=True to start with nothing.",
        uid=uid,
        found_uid=document.uid,
    )


def _require_claimable(document: CheckpointDocument, directory: str) -> None:
    if not document.properties.is_savepoint or not is_savepoint_directory(directory):
        raise InvalidConfigurationError(
            f"Expected a savepoint in a directory of the name that it was given (savepoint-…), found {redact(directory)}; "
            f"what belongs to a job or was renamed can be restored with claim_mode='no_claim' only."
        )
