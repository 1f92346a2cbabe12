"""
The ``_metadata`` file of a checkpoint: contents, format, reading and relative URIs.

URIs of what moves together with the file are written relative to it: for a savepoint what lies in its directory, for a
checkpoint what lies in the directory of its job. Any other URI stays absolute: a snapshot that was carried over from
another checkpoint directory is still there and nowhere else.

A savepoint is its directory, so what lies in there is written relative to it; if it names anything else it cannot be moved,
and all its URIs stay absolute. A checkpoint shares files with others of its job, so URIs below the job's directory are
written relative to that, and any other one stays absolute.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
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
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.state_json import (
    UriForm,
    boolean,
    decode_master_state,
    decode_operator_state,
    decode_properties,
    encode_master_state,
    encode_operator_state,
    encode_properties,
)
from airflow_provider_statecheck.storage.uris import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHandle:
    """One DataFrame snapshot, which several checkpoints may name."""

    name: str
    scope: tuple[tuple[str, str], ...] = ()
    """The loops and items around it, outermost first."""
    uri: str
    manifest_size: int
    manifest_sha256: str
    size_bytes: int
    rows: int | None
    files: int
    fingerprint: str
    """Of the code and the snapshots that it was built from."""
    epoch: int
    """Of the attempt that wrote it."""
    seconds: float
    """What computing and writing it took."""
    created_at: str
    lineage: str = ""
    """Set where it replaces a damaged snapshot, so that what was built from that one counts as changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineStateHandle:
    """State small enough to travel in the metadata itself."""

    value: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDocument:
    """All that a restore needs to know; no code, nothing to unpickle."""

    job_id: str
    job_name: str
    operator_id: str
    uid: str
    checkpoint_id: int
    epoch: int
    generation: int
    snapshots: tuple[SnapshotHandle, ...]
    state: InlineStateHandle | FileStateHandle
    created_at: str
    properties: CheckpointProperties = field(default_factory=CheckpointProperties)
    operator_states: tuple[OperatorState, ...] = ()
    """Of the operators whose state is aligned in this checkpoint."""
    master_states: tuple[MasterState, ...] = ()
    has_commit: bool = False
    """Whether it holds what a sink commits once the checkpoint is completed."""
    request_key: str = ""
    """The key of the message that triggered it, as in its row; empty for a savepoint that has no row."""
    relocatable: bool | None = field(default=None, compare=False)
    """
    Whether it still loads when it is moved: a savepoint with its directory, a checkpoint with that of its job. Told by the
    file; ``None`` for a document that was not read from one.
    """

    @property
    def named_bytes(self) -> int:
        """Return the size of the snapshots and of the state of operators that it names."""
        of_snapshots = sum(handle.size_bytes for handle in self.snapshots)
        return of_snapshots + sum(state.state_size for state in self.operator_states)


def document_uris(document: CheckpointDocument) -> Iterator[str]:
    """Return the URI of everything that a checkpoint names, as often as it is named."""
    yield from (handle.uri for handle in document.snapshots)
    if isinstance(document.state, FileStateHandle):
        yield document.state.uri
    yield from state_uris(document.operator_states)


def state_uris(states: Iterable[OperatorState]) -> Iterator[str]:
    """Return the URI of every file that holds state of operators, as often as it is named."""
    for state in states:
        for stream in streams_of(state):
            if isinstance(stream, FileStateHandle | SegmentFileStateHandle):
                yield stream.uri


OF_JOB = "job:"
OF_DIRECTORY = "dir:"


@dataclass(frozen=True, slots=True)
class RelativeUris:
    """
    Shortens URIs that lie below a directory.

    :param prefix: What says that a URI was shortened.
    :param base: The directory, or ``None`` where nothing is to be shortened.
    """

    prefix: str
    base: str | None

    def shorten(self, uri: str) -> str:
        """
        Return a URI as it is written.

        :raises InvalidConfigurationError: for what is no absolute URI and would be taken for a shortened one.
        """
        if self.covers(uri):
            return f"{self.prefix}{uri.removeprefix(f'{self.base}/')}"
        if is_relative(uri):
            raise InvalidConfigurationError(f"Expected an absolute URI such as file:///data/x, found {redact(uri)!r}.")
        return uri

    def covers(self, uri: str) -> bool:
        """Tell whether a URI lies below the directory."""
        return (
            self.base is not None and uri.startswith(f"{self.base}/") and _is_plain(uri.removeprefix(f"{self.base}/"))
        )

    def cover(self, uris: Iterable[str]) -> bool:
        """Tell whether all of the URIs lie below the directory."""
        return all(map(self.covers, uris))


def lengthen(written: str, metadata_uri: str) -> str:
    """
    Return the URI that was written.

    :param metadata_uri: Where it was read from.
    :raises ValueError: for one that leads out of the directory to which it is relative.
    """
    if not is_relative(written):
        return written
    prefix, path = written[:4], written[4:]
    if not _is_plain(path):
        raise ValueError(f"{written!r} leads out of its directory")
    base = directory_of(metadata_uri) if prefix == OF_DIRECTORY else job_directory_of(metadata_uri)
    return f"{base}/{path}"


def is_relative(written: str) -> bool:
    """Tell whether a URI was shortened; one whose scheme happens to be called like a prefix was not."""
    return written.startswith((OF_JOB, OF_DIRECTORY)) and not written[4:].startswith("//")


def directory_of(metadata_uri: str) -> str:
    """Return the directory of a metadata file."""
    return metadata_uri.rstrip("/").rpartition("/")[0]


def job_directory_of(metadata_uri: str) -> str:
    """Return the directory of the job whose checkpoint a metadata file describes."""
    return directory_of(directory_of(metadata_uri))


def _is_plain(path: str) -> bool:
    return not {"", ".", ".."} & set(path.split("/"))


MAGIC = b"statecheck-metadata"
VERSION = 1


def encode_metadata(document: CheckpointDocument, *, uri: str | None = None) -> bytes:
    """
    Return the bytes to write for a checkpoint.

    :param uri: Where they will be written. Without it, that of a checkpoint is told from what the same attempt wrote; if it
        wrote nothing yet, every URI stays absolute, as do all of a savepoint.
    :raises InvalidConfigurationError: if its state holds a placeholder or a URI that is not absolute.
    """
    values = _to_json(document, _relative_uris(document, uri))
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # Names of files may hold surrogates, which plain UTF-8 has no bytes for.
    body = text.encode("utf-8", "surrogatepass")
    return b"%s %d %s\n%s" % (MAGIC, VERSION, hashlib.sha256(body).hexdigest().encode(), body)


def decode_metadata(data: bytes, *, uri: str) -> CheckpointDocument:
    """
    Return the checkpoint that the bytes describe.

    :param uri: Where they were read from; relative URIs are resolved against it.
    :raises IncompatibleCheckpointError: if they are no metadata, or of a version that this one does not know.
    :raises CorruptStateError: if they were changed after they were written.
    """
    header, _, body = data.partition(b"\n")
    _require_header(header, body, uri)
    try:
        return _from_json(json.loads(body), partial(lengthen, metadata_uri=uri))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptStateError(f"The metadata in {redact(uri)} cannot be understood: {error}") from error


def is_relocatable(document: CheckpointDocument, *, uri: str) -> bool:
    """
    Tell whether everything that a snapshot names moves with it.

    A savepoint is moved with its directory, a checkpoint with that of its job.

    :param uri: Where its metadata is or will be.
    """
    return _relative_to(document, uri).cover(document_uris(document))


def _require_header(header: bytes, body: bytes, uri: str) -> None:
    magic, *rest = header.split(b" ")
    if magic != MAGIC or len(rest) != 2:
        raise IncompatibleCheckpointError(
            f"Expected {redact(uri)} to begin with {MAGIC.decode()!r}, found the unexpected magic number {header[:20]!r}; not "
            f"a statecheck checkpoint?"
        )
    version, digest = rest
    if version != b"%d" % VERSION:
        raise IncompatibleCheckpointError(
            f"Expected metadata of version {VERSION} in {redact(uri)}, found {version[:10]!r}; read it with the release "
            f"that wrote it."
        )
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise CorruptStateError(
            f"The checksum of {redact(uri)} does not fit its content; the file was changed after it was written."
        )


def _relative_uris(document: CheckpointDocument, uri: str | None) -> RelativeUris:
    if uri is None:
        is_savepoint = document.properties.is_savepoint
        return RelativeUris(OF_JOB, None if is_savepoint else _job_directory_told_by(document))
    relative = _relative_to(document, uri)
    if document.properties.is_savepoint and not relative.cover(document_uris(document)):
        # Half of it would be found after a move, half would not.
        return RelativeUris(OF_DIRECTORY, None)
    return relative


def _relative_to(document: CheckpointDocument, uri: str) -> RelativeUris:
    if document.properties.is_savepoint:
        return RelativeUris(OF_DIRECTORY, directory_of(uri))
    return RelativeUris(OF_JOB, job_directory_of(uri))


def _job_directory_told_by(document: CheckpointDocument) -> str | None:
    # An attempt writes under one checkpoint directory. What an earlier one wrote may lie under another: that the id of the
    # job is in its path proves nothing.
    uris = [handle.uri for handle in document.snapshots if handle.epoch == document.epoch]
    if isinstance(document.state, FileStateHandle):
        uris.append(document.state.uri)
    for uri in uris:
        base, job, _ = uri.partition(f"/{document.job_id}/")
        if job:
            return f"{base}/{document.job_id}"
    return None


def _to_json(document: CheckpointDocument, uris: RelativeUris) -> dict[str, Any]:
    kind = "file" if isinstance(document.state, FileStateHandle) else "inline"
    return _values(document) | {
        "snapshots": [_shortened(handle, uris) for handle in document.snapshots],
        "state": {"kind": kind} | _shortened(document.state, uris),
        "properties": encode_properties(document.properties),
        "operator_states": [encode_operator_state(state, uris.shorten) for state in document.operator_states],
        "master_states": [encode_master_state(state) for state in document.master_states],
        "relocatable": uris.cover(document_uris(document)),
    }


def _shortened(record: Any, uris: RelativeUris) -> dict[str, Any]:
    values = _values(record)
    return values | {"uri": uris.shorten(values["uri"])} if "uri" in values else values


def _values(record: Any) -> dict[str, Any]:
    # Not asdict(): that copies inline state to its depths.
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _from_json(values: dict[str, Any], restore: UriForm) -> CheckpointDocument:
    return CheckpointDocument(
        **_known(CheckpointDocument, values)
        | {
            "snapshots": tuple(_snapshot(item, restore(item["uri"])) for item in values["snapshots"]),
            "state": _state(values["state"], restore),
            "properties": decode_properties(values.get("properties", {})),
            "operator_states": tuple(
                decode_operator_state(state, restore) for state in values.get("operator_states", ())
            ),
            "master_states": tuple(map(decode_master_state, values.get("master_states", ()))),
            "has_commit": boolean(values.get("has_commit", False)),
            "relocatable": boolean(values["relocatable"]) if "relocatable" in values else None,
        }
    )


def _snapshot(values: dict[str, Any], uri: str) -> SnapshotHandle:
    scope = tuple((str(loop), str(item)) for loop, item in values["scope"])
    return SnapshotHandle(**_known(SnapshotHandle, values) | {"scope": scope, "uri": uri})


def _state(values: dict[str, Any], restore: UriForm) -> InlineStateHandle | FileStateHandle:
    if values["kind"] == "inline":
        return InlineStateHandle(value=values["value"])
    return FileStateHandle(**_known(FileStateHandle, values) | {"uri": restore(values["uri"])})


def _known(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    # A later release of the same version may add fields; what is not known here is not needed here.
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


log = logging.getLogger(__name__)

UNREADABLE = (CorruptStateError, CheckpointNotFoundError, IncompatibleCheckpointError)
"""What says that the bytes themselves are bad, in contrast to a storage that does not answer."""


def load_document(storage: CheckpointStorage, checkpoint: CheckpointRecord) -> CheckpointDocument:
    """
    Read and verify the metadata of a completed checkpoint.

    :raises CorruptStateError: if length or checksum differ from the row's.
    :raises CheckpointNotFoundError: if the file is missing, or was never written.
    :raises IncompatibleCheckpointError: if it is no metadata file of a known version.
    """
    if checkpoint.metadata_uri is None:
        raise CheckpointNotFoundError(f"Checkpoint {checkpoint.checkpoint_id} has no metadata; it was never completed.")
    size, digest = checkpoint.metadata_size, checkpoint.metadata_sha256
    # The row names the place of the checkpoint, which an earlier setting of its directory may have chosen.
    data = storage.allowing(checkpoint.location, checkpoint.metadata_uri).read_verified(
        checkpoint.metadata_uri, size=size, sha256=digest
    )
    return decode_metadata(data, uri=checkpoint.metadata_uri)


class DocumentCache:
    """
    The metadata of checkpoints that were read or written before; a checkpoint never changes.

    :param storage_of: Gives the storage that a checkpoint lies in.
    """

    def __init__(self, storage_of: Callable[[CheckpointRecord], CheckpointStorage]) -> None:
        self._storage_of = storage_of
        self._documents: dict[int, CheckpointDocument] = {}

    def remember(self, checkpoint_id: int, document: CheckpointDocument) -> None:
        """
        Keep a document that was just written or read.

        :param checkpoint_id: The id of the checkpoint's row; a savepoint that was restored has another one inside.
        """
        self._documents[checkpoint_id] = document

    def forget(self, checkpoint_id: int) -> None:
        """Drop a document whose checkpoint is gone."""
        self._documents.pop(checkpoint_id, None)

    def load(self, checkpoint: CheckpointRecord) -> CheckpointDocument:
        """Return a completed checkpoint's document, as :func:`load_document`."""
        if checkpoint.checkpoint_id not in self._documents:
            self.remember(checkpoint.checkpoint_id, load_document(self._storage_of(checkpoint), checkpoint))
        return self._documents[checkpoint.checkpoint_id]

    def named_uris(self, checkpoints: tuple[CheckpointRecord, ...]) -> frozenset[str] | None:
        """
        Return the snapshots and files that any of the checkpoints names.

        :return: ``None`` if one of them cannot be read: then nobody knows what it names.
        """
        uris: set[str] = set()
        for checkpoint in checkpoints:
            try:
                uris.update(document_uris(self.load(checkpoint)))
            except UNREADABLE as error:
                log.warning("Checkpoint %s cannot be read (%s)", checkpoint.checkpoint_id, error)
                return None
        return frozenset(uris)
