"""From the pointer that a user gives to what an operator begins from."""

from __future__ import annotations

import difflib
import hashlib
import logging
from collections.abc import Mapping

from airflow_provider_statecheck.checkpoint.claims import RestoreMode
from airflow_provider_statecheck.checkpoint.layout import is_savepoint_directory
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.storage.document import CheckpointDocument
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointer import pointer_uri, resolve_checkpoint
from airflow_provider_statecheck.storage.uris import redact

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
