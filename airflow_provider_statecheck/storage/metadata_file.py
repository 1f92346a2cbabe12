"""
The ``_metadata`` file of a checkpoint: contents, encoding, decoding and reading.

Files that move together with the metadata have relative URIs. A savepoint is self-contained, so its URIs are relative
to its own directory; if it references a file outside that directory, it cannot be moved and all its URIs are absolute.
Checkpoints of a job share files, so URIs below the job's directory are relative to that directory and all others are
absolute.

All functions that access the storage raise :class:`StorageError` if it fails.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from airflow_provider_statecheck.checkpoint.codec import decode, form_of
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_UID, METADATA_FILE
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    MAX_PARALLELISM_BOUND,
    FileStateHandle,
    MasterState,
    OperatorState,
    SegmentFileStateHandle,
    streams_of,
)
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    UnknownStateError,
    UnknownVersionError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.large_files import LARGE
from airflow_provider_statecheck.storage.stored_json import UNDECODABLE, parse, read_json, require_bounds
from airflow_provider_statecheck.storage.uris import OF_DIRECTORY, OF_JOB, RelativeUris, redact

log = logging.getLogger(__name__)

MAGIC = b"statecheck-metadata"
VERSION = 1
_HEADER_BYTES = 128
LARGEST_METADATA = 32 * 1024 * 1024
"""Largest size in bytes of a metadata file, which holds the handles of 100,000 state files or more."""
LARGEST_VALUES = 32 * 1024 * 1024
"""Largest size in bytes of the file with the values of a stage."""

UNREADABLE = (CorruptStateError, CheckpointNotFoundError, IncompatibleCheckpointError)
"""Errors of a missing, damaged or incompatible file, in contrast to an unavailable storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDocument:
    """Metadata of a checkpoint: everything that a restore needs. Contains no code and nothing pickled."""

    job_id: str
    job_name: str
    operator_id: str
    uid: str
    checkpoint_id: int
    epoch: int
    generation: int
    snapshots: tuple[SnapshotHandle, ...]
    state: InlineStateHandle | FileStateHandle
    created_at: datetime
    properties: CheckpointProperties = field(default_factory=CheckpointProperties)
    operator_states: tuple[OperatorState, ...] = ()
    """States of the operators that the aligned checkpoint covers."""
    master_states: tuple[MasterState, ...] = ()
    has_commit: bool = False
    """Whether a sink has to commit after the checkpoint is completed."""
    request_key: str = ""
    """Idempotency key of the trigger request, equal to that of the row; empty for a savepoint without a row."""
    run: str = ""
    """Run that the member of a savepoint of the whole job had reached; empty for other checkpoints."""
    members: tuple[CheckpointDocument, ...] = field(default=(), metadata={"alias": "parts"})
    """Copied checkpoints of the stages, in a savepoint of the whole job."""
    relocatable: bool | None = field(default=None, compare=False)
    """
    Whether the checkpoint can be restored after it was moved, as recorded in the file. ``None`` if the document was not
    read from a file.
    """

    @property
    def named_bytes(self) -> int:
        """Size in bytes of the referenced snapshots and operator states."""
        snapshot_bytes = sum(handle.size_bytes for handle in self.snapshots)
        own = snapshot_bytes + sum(state.state_size for state in self.operator_states)
        return own + sum(member.named_bytes for member in self.members)

    @property
    def is_of_several(self) -> bool:
        """Whether it covers several operators, as a savepoint of the whole job does."""
        return self.uid == ALIGNED_UID

    @property
    def stages(self) -> tuple[CheckpointDocument, ...]:
        """The members of a savepoint of the whole job; itself for any other checkpoint."""
        return self.members or (self,)

    @property
    def empty_uids(self) -> frozenset[str]:
        """The uids of the stages of a savepoint of the whole job that had no checkpoint."""
        if not self.is_of_several:
            return frozenset()
        stateless = {state.uid for state in self.operator_states if not state.has_state}
        return frozenset(stateless - {member.uid for member in self.members})

    def member_of(self, uid: str) -> CheckpointDocument | None:
        """
        Return the checkpoint of a stage: a member of a savepoint of the whole job, or itself.

        ``None`` if it has none.
        """
        return next((stage for stage in self.stages if stage.uid == uid), None)

    def stage_of(self, uid: str | None) -> CheckpointDocument:
        """
        Return the checkpoint of the stage that a reader names.

        :param uid: Uid of the stage, or of one of its functions after the uid of the stage and ``/``; ``None`` for the
            only stage.
        :raises InvalidConfigurationError: if there are several stages and no uid; the message lists their uids.
        :raises UnknownStateError: if there is no such stage; the message lists the uids.
        """
        exact = None if uid is None else self.member_of(uid)
        found = self.stages if uid is None else [each for each in self.stages if uid.startswith(f"{each.uid}/")]
        if exact is not None or len(found) == 1:
            return exact or found[0]
        uids = ", ".join(repr(each.uid) for each in self.stages)
        if uid is None:
            raise InvalidConfigurationError(
                f"Expected the uid of a stage, because checkpoint {self.checkpoint_id} of job {self.job_name!r} is a "
                f"savepoint of several stages, found none; set the uid to one of {uids}."
            )
        raise UnknownStateError(
            f"Expected a checkpoint of stage {uid!r} in checkpoint {self.checkpoint_id} of job {self.job_name!r}, "
            f"found {uids}; set the uid to one of these."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHandle:
    """DataFrame snapshot, which several checkpoints may reference."""

    name: str
    scope: tuple[tuple[str, str], ...] = ()
    """Enclosing loops and their items, outermost first."""
    uri: str
    manifest_size: int
    manifest_sha256: str
    size_bytes: int
    rows: int | None
    files: int
    fingerprint: str
    """Fingerprint of the code and of the input snapshots."""
    epoch: int
    """Epoch of the attempt that wrote the snapshot."""
    seconds: float
    """Time spent on computing and writing the snapshot."""
    created_at: datetime
    lineage: str = ""
    """Set if the snapshot replaces another one of its step; invalidates the snapshots built from that one."""
    part: int = 0
    """Number of the part of a step that is computed in parts, from 1; 0 if the snapshot is the whole step."""
    of_parts: int = 0
    """Number of parts of the finished step; 0 while parts are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineStateHandle:
    """State that is small enough to be stored in the metadata."""

    TAG: ClassVar[str] = "inline"
    value: dict[str, Any]


def document_uris(document: CheckpointDocument) -> Iterator[str]:
    """Return the URIs of all snapshots and files that a checkpoint references; URIs may repeat."""
    yield from (handle.uri for handle in document.snapshots)
    if isinstance(document.state, FileStateHandle):
        yield document.state.uri
    yield from state_uris(document.operator_states)
    for member in document.members:
        yield from document_uris(member)


def state_uris(states: Iterable[OperatorState]) -> Iterator[str]:
    """Return the URIs of all files that operator states reference; URIs may repeat."""
    for state in states:
        for stream in streams_of(state):
            if isinstance(stream, FileStateHandle | SegmentFileStateHandle):
                yield stream.uri


def encode_metadata(document: CheckpointDocument, *, uri: str) -> bytes:
    """
    Return the content of the metadata file of a checkpoint.

    :param uri: URI of the metadata file.
    :raises InvalidConfigurationError: if the state contains a URI that is not absolute, or the content would be so
        large that it is not read.
    """
    uris = _uris_of(document, uri)
    text = json.dumps(
        _marked(document, uris),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        check_circular=False,
        default=partial(_form_of, uris),
    )
    # File names may contain surrogates, which strict UTF-8 cannot encode.
    body = text.encode("utf-8", "surrogatepass")
    _require_readable(body, uri)
    return b"%s %d %s\n%s" % (MAGIC, VERSION, hashlib.sha256(body).hexdigest().encode(), body)


def _require_readable(body: bytes, uri: str) -> None:
    try:
        require_bounds(body, LARGEST_METADATA - _HEADER_BYTES)
    except ValueError as error:
        raise InvalidConfigurationError(
            f"Expected metadata in {redact(uri)} that every process can read, found {error}; use fewer snapshots, "
            "states or subtasks."
        ) from error


def decode_metadata(data: bytes, *, uri: str) -> CheckpointDocument:
    """
    Return the checkpoint that a metadata file describes.

    :param uri: URI of the file; relative URIs are resolved against it.
    :raises IncompatibleCheckpointError: if the file is not a metadata file, or has an unknown version.
    :raises CorruptStateError: if the file was changed after it was written.
    """
    header, _, body = data.partition(b"\n")
    # Each copy of large metadata is let go as soon as the next one exists.
    del data
    _require_header(header, body, uri)
    try:
        form = parse(body)
        del body
        _make_absolute(RelativeUris(uri), form)
        return _plausible(_decoded(form))
    except UNDECODABLE as error:
        raise CorruptStateError(f"The metadata in {redact(uri)} cannot be understood: {error}") from error


def _decoded(form: Any) -> CheckpointDocument:
    """Return a document, and let go of each snapshot of its form, of which there may be many, once it is decoded."""
    left = form.get("snapshots") if isinstance(form, dict) else None
    if not isinstance(left, list):
        return decode(CheckpointDocument, form)
    form["snapshots"] = []
    document = decode(CheckpointDocument, form)
    left.reverse()
    return replace(document, snapshots=tuple(decode(SnapshotHandle, left.pop()) for _ in range(len(left))))


def write_metadata(storage: CheckpointStorage, directory: str, document: CheckpointDocument) -> FileStateHandle:
    """
    Write the metadata file of a checkpoint, whose other files are on storage.

    :param directory: The exclusive directory of the checkpoint.
    :raises InvalidConfigurationError: if the metadata cannot be encoded; see :func:`encode_metadata`.
    :raises StorageError: as :func:`publish_metadata`.
    """
    return publish_metadata(storage, directory, encode_metadata(document, uri=f"{directory}/{METADATA_FILE}"))


def publish_metadata(storage: CheckpointStorage, directory: str, data: bytes) -> FileStateHandle:
    """
    Publish an encoded metadata file: a directory with this file is complete. The call may be repeated.

    A failure deletes nothing, because the file may be the metadata of another writer.

    :param directory: The exclusive directory of the checkpoint.
    :raises StorageError: if the storage fails, or the file exists with other contents.
    """
    uri = f"{directory}/{METADATA_FILE}"
    storage.write_bytes(uri, data)
    return FileStateHandle.of(uri, data)


def read_metadata(storage: CheckpointStorage, uri: str) -> tuple[CheckpointDocument, bytes]:
    """
    Return the checkpoint in a metadata file without a row, and the content of the file.

    :raises CheckpointNotFoundError: if the file is missing.
    :raises CorruptStateError: if the file was changed or is too large, or is no file.
    :raises IncompatibleCheckpointError: if it is not a metadata file of a known version.
    """
    data = storage.read_limited(uri, LARGEST_METADATA)
    return decode_metadata(data, uri=uri), data


def find_document(storage: CheckpointStorage, directory: str) -> CheckpointDocument | None:
    """
    Return the checkpoint in a directory, or ``None`` if its metadata is missing or damaged.

    :raises UnknownVersionError: if another release wrote it; what it references is unknown, and nothing may be deleted.
    """
    uri = f"{directory}/{METADATA_FILE}"
    try:
        return read_metadata(storage, uri)[0]
    except UnknownVersionError:
        raise
    except UNREADABLE:
        return None


def has_unreadable_metadata(storage: CheckpointStorage, directory: str) -> bool:
    """Return whether a directory has a metadata file that is damaged or incompatible, whose owner is unknown."""
    uri = f"{directory}/{METADATA_FILE}"
    try:
        read_metadata(storage, uri)
    except CheckpointNotFoundError:
        return False
    except UNREADABLE:
        return True
    return False


def load_document(storage: CheckpointStorage, checkpoint: CheckpointRecord) -> CheckpointDocument:
    """
    Read and verify the metadata of a completed checkpoint.

    :return: The metadata; for a stage that started from a savepoint of the whole job, that of its member.
    :raises CorruptStateError: if the size or the checksum differs from the row's.
    :raises CheckpointNotFoundError: if the file is missing or was never written.
    :raises IncompatibleCheckpointError: if the file is not a metadata file of a known version.
    """
    return _restored_member(load_whole(storage, checkpoint), checkpoint)


def load_whole(storage: CheckpointStorage, checkpoint: CheckpointRecord) -> CheckpointDocument:
    """Read and verify metadata as :func:`load_document`; return all members of a savepoint of the whole job."""
    if checkpoint.metadata_uri is None:
        raise CheckpointNotFoundError(f"Checkpoint {checkpoint.checkpoint_id} has no metadata; it was never completed.")
    # An earlier attempt may have used another checkpoint directory, so the location comes from the row.
    return decode_metadata(
        storage.allowing(checkpoint.location, checkpoint.metadata_uri).read_verified(
            checkpoint.metadata_uri,
            size=checkpoint.metadata_size,
            sha256=checkpoint.metadata_sha256,
            limit=LARGEST_METADATA,
        ),
        uri=checkpoint.metadata_uri,
    )


def _restored_member(document: CheckpointDocument, checkpoint: CheckpointRecord) -> CheckpointDocument:
    wanted = checkpoint.properties.member
    member = document.member_of(wanted) if wanted else document
    if member is None:
        raise IncompatibleCheckpointError(
            f"Expected the state of stage {wanted!r} in the savepoint {redact(checkpoint.location)}, found "
            f"{', '.join(repr(each.uid) for each in document.stages)}; restore another savepoint.",
            uid=wanted,
        )
    return member


def read_values(storage: CheckpointStorage, document: CheckpointDocument, *, is_bounded: bool = True) -> dict[str, Any]:
    """
    Return the values of a checkpoint, which its driver wrote.

    :param is_bounded: Whether to refuse a file above the bounds, as all do but a driver that restores its own job.
    :raises CorruptStateError: if their size or digest differs from the handle, or they are not a JSON object.
    :raises CheckpointNotFoundError: if their file is missing.
    """
    handle = document.state
    if isinstance(handle, InlineStateHandle):
        return dict(handle.value)
    data = storage.read_verified(
        handle.uri, size=handle.size, sha256=handle.sha256, limit=LARGEST_VALUES if is_bounded else None
    )
    values = read_json(data, handle.uri, is_bounded=is_bounded)
    if not isinstance(values, dict):
        raise CorruptStateError(
            f"Expected the state in {redact(handle.uri)} to be a mapping, found {type(values).__name__}."
        )
    return values


class DocumentCache:
    """
    Cache of checkpoint metadata. Entries stay valid because checkpoints are immutable.

    :param storage_of: Returns the storage of a checkpoint.
    :param keeps_large: Whether to keep documents of large files, as all do but maintenance, which reads the files of
        any job.
    """

    def __init__(
        self, storage_of: Callable[[CheckpointRecord], CheckpointStorage], *, keeps_large: bool = True
    ) -> None:
        self._storage_of = storage_of
        self._keeps_large = keeps_large
        self._documents: dict[int, CheckpointDocument] = {}

    def remember(self, checkpoint_id: int, document: CheckpointDocument) -> None:
        """
        Add a document.

        :param checkpoint_id: Id of the checkpoint's row; the document of a restored savepoint contains another id.
        """
        self._documents[checkpoint_id] = document

    def forget(self, checkpoint_id: int) -> None:
        """Remove the document of a deleted checkpoint."""
        self._documents.pop(checkpoint_id, None)

    def load(self, checkpoint: CheckpointRecord) -> CheckpointDocument:
        """Return the document of a completed checkpoint; raises as :func:`load_document`."""
        known = self._documents.get(checkpoint.checkpoint_id)
        if known is not None:
            return known
        loaded = load_document(self._storage_of(checkpoint), checkpoint)
        if self._keeps_large or checkpoint.metadata_size <= LARGE:
            self.remember(checkpoint.checkpoint_id, loaded)
        return loaded

    def named_uris(self, checkpoints: tuple[CheckpointRecord, ...]) -> frozenset[str] | None:
        """
        Return the URIs of all snapshots and files that the checkpoints reference.

        :return: The URIs; ``None`` if the metadata of a checkpoint cannot be read.
        """
        uris: set[str] = set()
        for checkpoint in checkpoints:
            try:
                uris.update(document_uris(self.load(checkpoint)))
            except UNREADABLE as error:
                log.warning("Checkpoint %s cannot be read (%s)", checkpoint.checkpoint_id, error)
                return None
        return frozenset(uris)


def _require_header(header: bytes, body: bytes, uri: str) -> None:
    magic, *rest = header.split(b" ")
    if magic != MAGIC or len(rest) != 2:
        raise IncompatibleCheckpointError(
            f"Expected {redact(uri)} to begin with {MAGIC.decode()!r}, found the unexpected magic number "
            f"{header[:20]!r}; not a statecheck checkpoint?"
        )
    version, digest = rest
    if version != b"%d" % VERSION:
        raise UnknownVersionError(
            f"Expected metadata of version {VERSION} in {redact(uri)}, found {version[:10]!r}; use the release of "
            "airflow-provider-statecheck that wrote it, or choose another checkpoint explicitly, as with restore_from.",
            uri=redact(uri),
        )
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise CorruptStateError(
            f"The checksum of {redact(uri)} does not match its content; the file was changed after it was written."
        )


_NUMBERS = ("epoch", "generation")
_SIZES_OF_SNAPSHOT = ("manifest_size", "size_bytes", "rows", "files", "epoch", "part", "of_parts", "seconds")


def _plausible(document: CheckpointDocument) -> CheckpointDocument:
    """
    Return a document whose numbers rows, reads and loops can take; the right checksum does not tell that they can.

    :raises ValueError: for another document, and for members of a member.
    """
    if any(member.members for member in document.members):
        raise ValueError("a member of a savepoint has members")
    for each in (document, *document.members):
        _require_plausible(each)
    return document


def _require_plausible(document: CheckpointDocument) -> None:
    _require_up_to(2**63 - 1, document.checkpoint_id)
    _require_up_to(2**31 - 1, *(getattr(document, name) for name in _NUMBERS))
    for handle in document.snapshots:
        _require_up_to(2**63 - 1, *(getattr(handle, name) or 0 for name in _SIZES_OF_SNAPSHOT))
    for operator in document.operator_states:
        _require_operator(operator)
    if isinstance(document.state, FileStateHandle):
        _require_up_to(2**63 - 1, document.state.size)


def _require_operator(operator: OperatorState) -> None:
    _require_up_to(MAX_PARALLELISM_BOUND, operator.parallelism, operator.max_parallelism)
    for stream in streams_of(operator):
        if isinstance(stream, SegmentFileStateHandle):
            _require_up_to(2**63 - 1, stream.start, stream.length, stream.start + stream.length, stream.file_size)
        else:
            _require_up_to(2**63 - 1, stream.state_size)
    keyed = (handle for subtask in operator.subtask_states.values() for handle in subtask.managed_keyed)
    for handle in keyed:
        _require_up_to(MAX_PARALLELISM_BOUND, handle.key_group_range.start, handle.key_group_range.end + 1)


def _require_up_to(highest: int, *numbers: float) -> None:
    for number in numbers:
        if not 0 <= number <= highest:
            raise ValueError(f"the number {number} where one from 0 to {highest} was expected")


def _uris_of(document: CheckpointDocument, metadata_uri: str) -> RelativeUris:
    if not document.properties.is_savepoint:
        return RelativeUris(metadata_uri, OF_JOB)
    uris = RelativeUris(metadata_uri, OF_DIRECTORY)
    # Mixed URIs would leave the savepoint half restorable after a move.
    return uris if _are_covered(document, uris) else RelativeUris(metadata_uri)


def _are_covered(document: CheckpointDocument, uris: RelativeUris) -> bool:
    return all(map(uris.covers, document_uris(document)))


def _marked(document: CheckpointDocument, uris: RelativeUris) -> CheckpointDocument:
    members = tuple(_marked(member, uris) for member in document.members)
    return replace(document, members=members, relocatable=_are_covered(document, uris))


def _form_of(uris: RelativeUris, value: Any) -> Any:
    form = form_of(value)
    if isinstance(form, dict) and "uri" in form:
        form["uri"] = uris.shorten(form["uri"])
    return form


def _make_absolute(uris: RelativeUris, form: Any) -> None:
    if isinstance(form, list):
        for each in form:
            _make_absolute(uris, each)
    elif isinstance(form, dict) and form.get("kind") != InlineStateHandle.TAG:  # its names are those of the state
        if "uri" in form:
            form["uri"] = uris.lengthen(form["uri"])
        for each in form.values():
            _make_absolute(uris, each)
