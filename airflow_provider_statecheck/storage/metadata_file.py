"""
The bytes of ``_metadata``: one line that says what it is and its checksum, then JSON.

URIs of what moves together with the file are written relative to it: for a savepoint what lies in its directory, for a
checkpoint what lies in the directory of its job. Any other URI stays absolute: a snapshot that was carried over from
another checkpoint directory is still there and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from functools import partial
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.storage.document import (
    CheckpointDocument,
    InlineStateHandle,
    SnapshotHandle,
)
from airflow_provider_statecheck.storage.document_uris import document_uris
from airflow_provider_statecheck.storage.handle_json import UriForm, boolean
from airflow_provider_statecheck.storage.operator_state_json import (
    decode_master_state,
    decode_operator_state,
    decode_properties,
    encode_master_state,
    encode_operator_state,
    encode_properties,
)
from airflow_provider_statecheck.storage.relative_uris import (
    OF_DIRECTORY,
    OF_JOB,
    RelativeUris,
    directory_of,
    job_directory_of,
    lengthen,
)
from airflow_provider_statecheck.storage.uris import redact

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
