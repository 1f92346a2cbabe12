"""
Pointers to checkpoints, and self-contained savepoints.

Operators, scripts, commands and storage views all resolve their pointers with this module.

A savepoint holds copies of all files that its metadata names, in one directory. The directory can be moved as a whole.

All functions and methods that access the storage raise :class:`StorageError` if it fails.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import (
    METADATA_FILE,
    is_savepoint_directory,
    is_uri,
    require_not_missing,
    restorable_uids,
    slug,
)
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, RestoreMode
from airflow_provider_statecheck.checkpoint.savepoint_restore import whole_job_not_claimable
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    OperatorState,
    SegmentFileStateHandle,
    StreamStateHandle,
    with_streams,
)
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    InvalidPointerError,
    PointerNotFoundError,
    StorageError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    SnapshotHandle,
    write_metadata,
)
from airflow_provider_statecheck.storage.uris import normalise_pointer, path_text, redact, scheme_of
from airflow_provider_statecheck.storage.views.state_streams import ResolvedPointer

log = logging.getLogger(__name__)


def pointer_uri(pointer: Any) -> str:
    """
    Return the absolute URI of a user's pointer.

    :param pointer: A URI or a path.
    :raises InvalidConfigurationError: if the pointer is missing or empty, contains credentials, or is the text that a
        template writes for a missing value.
    :raises InvalidPointerError: if the text is neither a URI nor a path.
    """
    text = path_text(pointer)
    if isinstance(text, str) and "/" in text and not is_uri(text.strip()):
        return normalise_pointer(text)
    return normalise_pointer(_require_uri(text))


def resolve_checkpoint(storage: CheckpointStorage, pointer: str | None) -> ResolvedPointer:
    """
    Find the metadata file of a pointer.

    :param pointer: URI of a checkpoint directory, with or without a trailing slash, or of its metadata file under any
        name. The checkpoint may belong to any job and may be stored on any filesystem.
    :raises InvalidConfigurationError: if the pointer is missing or empty.
    :raises InvalidPointerError: if the text is not a URI; pointers of other storages may not be.
    :raises PointerNotFoundError: if there is no such file or directory, or the directory has no metadata.
    """
    uri = _require_uri(pointer)
    storage = storage.allowing(uri)
    if storage.is_directory(uri):
        return _in_directory(storage, uri)
    size = storage.size_or_none(uri)
    if size is None:
        raise PointerNotFoundError(
            f"Expected a checkpoint at {redact(uri)}, found nothing there on the filesystem of {scheme_of(uri)}://; "
            f"{_advice(uri)}.",
            uri=redact(uri),
        )
    directory = uri.rpartition("/")[0]
    return ResolvedPointer(directory, FileStateHandle(uri, size), storage.allowing(directory))


def _require_uri(pointer: Any) -> str:
    if not isinstance(pointer, str) or not pointer.strip():
        found = "an empty pointer" if isinstance(pointer, str) else repr(pointer)
        raise InvalidConfigurationError(f"Expected the URI of a checkpoint, found {found}; give its directory.")
    require_not_missing("the URI of a checkpoint", pointer)
    uri = pointer.strip().rstrip("/")
    if not is_uri(uri):
        raise InvalidPointerError(
            f"Expected a URI such as file:///data/<job>/chk-7, found {redact(uri)!r}; it may be a pointer of another "
            "storage."
        )
    return uri


def _advice(uri: str) -> str:
    if scheme_of(uri) == "memory":
        return "files in memory are lost when the process that wrote them ends"
    return "correct the pointer, 'airflow statecheck checkpoints' shows those of a job"


def _in_directory(storage: CheckpointStorage, uri: str) -> ResolvedPointer:
    metadata_uri = f"{uri}/{METADATA_FILE}"
    size = storage.size_or_none(metadata_uri)
    if size is None:
        raise PointerNotFoundError(
            f"Expected the directory {redact(uri)} to hold a file {METADATA_FILE}, found none; point at the metadata "
            "file itself if it has another name.",
            uri=redact(uri),
        )
    return ResolvedPointer(uri, FileStateHandle(metadata_uri, size), storage)


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
    Resolve a pointer and check that its checkpoint belongs to the operator, or has a member that does.

    If the checkpoint cannot be read, the result carries the problem instead of raising it. The coordinator raises it
    only if the operator has no checkpoint in the job: a retry after a claim does not need the savepoint, which may be
    deleted.

    :param storage: Storage of the operator's checkpoints.
    :param pointer: URI of a savepoint or checkpoint directory, or of its metadata file.
    :param uid: Uid of the operator to restore.
    :param mode: Claim mode, which decides who owns the checkpoint or savepoint after the restore.
    :param renamed_uids: New uids of operators by their old uids.
    :param allow_non_restored_state: Start with empty state if the checkpoint belongs to another operator.
    :return: Source of the restore, or ``None`` if the operator starts with empty state.
    :raises IncompatibleCheckpointError: if the checkpoint belongs to other operators; the message names their uids.
    :raises InvalidConfigurationError: if the pointer is missing or empty, or for a claim of a checkpoint or of a
        savepoint of the whole job.
    :raises InvalidPointerError: if the text is neither a URI nor a path.
    """
    pointer = pointer_uri(pointer)
    try:
        resolved = resolve_checkpoint(storage, pointer)
        document, file = resolved.read()
    except (CheckpointNotFoundError, IncompatibleCheckpointError, StorageError) as error:
        return RestoreSource(
            pointer=pointer,
            metadata_uri="",
            metadata_size=0,
            metadata_sha256="",
            mode=mode,
            problem=str(error),
            is_unavailable=error.retryable,
        )
    if mode is RestoreMode.CLAIM:
        _require_claimable(document, resolved.external_pointer)
    member = _member_of(document, uid, renamed_uids, allow_non_restored_state=allow_non_restored_state)
    if member is None:
        return None
    return RestoreSource(
        pointer=resolved.external_pointer,
        metadata_uri=file.uri,
        metadata_size=file.size,
        metadata_sha256=file.sha256,
        full_size_bytes=member.named_bytes,
        mode=mode,
        member=member.uid if document.is_of_several else "",
    )


def _member_of(
    document: CheckpointDocument, uid: str, renamed_uids: Mapping[str, str], *, allow_non_restored_state: bool
) -> CheckpointDocument | None:
    uids = restorable_uids(uid, renamed_uids)
    member = next(filter(None, map(document.member_of, uids)), None)
    if member is not None:
        return member
    if not document.empty_uids.isdisjoint(uids):
        log.info("Operator %r had no state when the savepoint of its job was taken, and starts with empty state", uid)
        return None
    if not allow_non_restored_state:
        raise _other_operators(document, uid, renamed_uids)
    log.warning(
        "The state of operator %s in the savepoint matches no operator of this job and is not restored; %r starts "
        "with empty state",
        _listed(document),
        uid,
    )
    return None


def _other_operators(
    document: CheckpointDocument, uid: str, renamed_uids: Mapping[str, str]
) -> IncompatibleCheckpointError:
    found = {renamed_uids.get(stage.uid, stage.uid): stage.uid for stage in document.stages}
    similar = difflib.get_close_matches(uid, found, n=1)
    old = found[similar[0]] if similar else document.stages[0].uid
    nearest = " (a similar name)" if similar and not document.is_of_several else ""
    kind = "one of the whole job with the operators" if document.is_of_several else "one of operator"
    return IncompatibleCheckpointError(
        f"Expected a savepoint of operator {uid!r}, found {kind} {_listed(document)} of job {document.job_name!r}"
        f"{nearest}; set renamed_uids={{{old!r}: {uid!r}}} if it is the same operator, or "
        f"allow_non_restored_state=True to start with empty state.",
        uid=uid,
        found_uid=old,
    )


def _listed(document: CheckpointDocument) -> str:
    uids = {stage.uid for stage in document.members or document.stages} | document.empty_uids
    return ", ".join(map(repr, sorted(uids)))


def _require_claimable(document: CheckpointDocument, directory: str) -> None:
    if document.is_of_several:
        raise whole_job_not_claimable(redact(directory))
    if not document.properties.is_savepoint or not is_savepoint_directory(directory):
        raise InvalidConfigurationError(
            f"Expected a savepoint in a directory with its original name (savepoint-…), found {redact(directory)}; "
            f"restore a checkpoint or a renamed savepoint with claim_mode='no_claim'."
        )


@dataclass(frozen=True, slots=True)
class WrittenSavepoint:
    """Metadata and size of a savepoint, reported to the coordinator."""

    metadata: FileStateHandle
    state_size_bytes: int


def write_copies(
    copies: StateCopies,
    source: CheckpointDocument,
    *,
    checkpoint_id: int,
    properties: CheckpointProperties,
    request_key: str = "",
) -> WrittenSavepoint:
    """
    Copy a checkpoint into the directory of a savepoint, and write its metadata last.

    :param copies: Copies in the format of the savepoint.
    :param source: Metadata of the checkpoint.
    :param request_key: Key of the message that triggered the savepoint; empty for a savepoint without a row.
    :raises CheckpointNotFoundError: if a file of the source is missing.
    """
    copy = replace(copies.of_document(source), checkpoint_id=checkpoint_id, request_key=request_key)
    document = replace(copy, properties=properties)
    return WrittenSavepoint(write_metadata(copies.storage, copies.directory, document), copies.size_bytes)


class StateCopies:
    """
    Copies of the files that a checkpoint names; each file is copied once, to a name that is derived from its own.

    The storage server copies whole files if it can, as for ``CheckpointStateToolset``, whose copies have new names each
    time: a repeated call could not go on with those of an interrupted one.

    :param directory: URI of the directory of the copies.
    :param epoch: Fencing epoch of the attempt that writes them.
    :param is_own: Returns whether a file need not be copied; by default all are copied.
    :param resumes: Whether to retain complete copies of an earlier call.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        directory: str,
        epoch: int,
        *,
        is_own: Callable[[str], bool] = lambda _: False,
        resumes: bool = False,
    ) -> None:
        self.storage = storage
        self.directory = directory
        self._epoch = epoch
        self._is_own = is_own
        self._resumes = resumes
        self._files: dict[str, FileStateHandle] = {}
        self.size_bytes = 0

    def of_document(self, source: CheckpointDocument) -> CheckpointDocument:
        """Copy all files of a checkpoint, and return its metadata with the copies; it has no commits to make."""
        return replace(
            source,
            has_commit=False,
            snapshots=tuple(self.of_snapshot(handle) for handle in source.snapshots),
            state=self.of_file(source.state) if isinstance(source.state, FileStateHandle) else source.state,
            operator_states=tuple(self.of_operator(state) for state in source.operator_states),
        )

    def of_operator(self, operator: OperatorState) -> OperatorState:
        """Copy the files of an operator, and return its state with the copies."""
        return with_streams(operator, self.of_stream)

    def of_snapshot(self, handle: SnapshotHandle) -> SnapshotHandle:
        """Copy the directory of a snapshot."""
        uri = f"{self.directory}/shared/{slug(handle.name, handle.scope)}/{handle.epoch}-{_digest(handle.uri)}"
        self.storage.copy_directory(handle.uri, uri, size_bytes=handle.size_bytes)
        self.size_bytes += handle.size_bytes
        return replace(handle, uri=uri)

    def of_file(self, handle: FileStateHandle) -> FileStateHandle:
        """Copy a file, unless it was copied before."""
        return self._copied(handle, lambda uri: self.storage.copy_file(handle.uri, uri))

    def of_stream(self, stream: StreamStateHandle) -> StreamStateHandle:
        """Copy the file or segment of a handle; return a handle of inline state unchanged."""
        if isinstance(stream, ByteStreamStateHandle) or self._is_own(stream.uri):
            return stream
        return self.of_file(stream) if isinstance(stream, FileStateHandle) else self._of_segment(stream)

    def _of_segment(self, segment: SegmentFileStateHandle) -> FileStateHandle:
        # The other segments of the file can belong to other checkpoints.
        start, end = segment.start, segment.start + segment.length
        part = FileStateHandle(f"{segment.uri}#{start}+{segment.length}", segment.length, segment.sha256)
        return self._copied(
            part, lambda uri: self.storage.write_bytes(uri, self.storage.read_range(segment.uri, start, end))
        )

    def _copied(self, source: FileStateHandle, copy_to: Callable[[str], None]) -> FileStateHandle:
        if source.uri not in self._files:
            copy = replace(source, uri=f"{self.directory}/{self._epoch}-{_digest(source.uri)}")
            if not self._resumes or self.storage.size_or_none(copy.uri) != copy.size:
                copy_to(copy.uri)
            self._files[source.uri] = copy
            self.size_bytes += copy.size
        return self._files[source.uri]


def _digest(source: str) -> str:
    # A repeated copy replaces an interrupted one.
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:32]
