"""
The bytes of ``_metadata``: one line that says what it is and its checksum, then JSON.

URIs below the directory of the job that the file lies in are written relative to it, so that a checkpoint directory which
was moved or copied still loads. Any other URI stays absolute: a snapshot that was carried over from another checkpoint
directory is still there and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.storage.document import (
    CheckpointDocument,
    FileStateHandle,
    InlineStateHandle,
    SnapshotHandle,
)
from airflow_provider_statecheck.storage.uris import redact

MAGIC = b"statecheck-metadata"
VERSION = 1
_RELATIVE = "job:"


def encode_metadata(document: CheckpointDocument, *, uri: str | None = None) -> bytes:
    """
    Return the bytes to write for a checkpoint.

    :param uri: Where they will be written. Without it, that is told from what the same attempt wrote; if it wrote nothing
        yet, every URI stays absolute.
    """
    values = _to_json(document, _job_uri_told_by(document) if uri is None else _job_uri(uri))
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
        return _from_json(json.loads(body), _job_uri(uri))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptStateError(f"The metadata in {redact(uri)} cannot be understood: {error}") from error


def _require_header(header: bytes, body: bytes, uri: str) -> None:
    magic, *rest = header.split(b" ")
    if magic != MAGIC or len(rest) != 2:
        raise IncompatibleCheckpointError(
            f"Expected {redact(uri)} to begin with {MAGIC.decode()!r}, found {header[:20]!r}; not a statecheck checkpoint?"
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


def _job_uri(metadata_uri: str) -> str:
    return metadata_uri.rstrip("/").rsplit("/", 2)[0]


def _job_uri_told_by(document: CheckpointDocument) -> str | None:
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


def _to_json(document: CheckpointDocument, job_uri: str | None) -> dict[str, Any]:
    def shorten(values: dict[str, Any]) -> dict[str, Any]:
        uri = values.get("uri", "")
        if job_uri is not None and uri.startswith(f"{job_uri}/"):
            return values | {"uri": _RELATIVE + uri.removeprefix(f"{job_uri}/")}
        return values

    kind = "file" if isinstance(document.state, FileStateHandle) else "inline"
    snapshots = [shorten(_values(handle)) for handle in document.snapshots]
    return _values(document) | {"snapshots": snapshots, "state": {"kind": kind} | shorten(_values(document.state))}


def _values(record: Any) -> dict[str, Any]:
    # Not asdict(): that copies inline state to its depths.
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _from_json(values: dict[str, Any], job_uri: str) -> CheckpointDocument:
    def lengthen(uri: str) -> str:
        return f"{job_uri}/{uri.removeprefix(_RELATIVE)}" if uri.startswith(_RELATIVE) else uri

    snapshots = tuple(_snapshot(item, lengthen(item["uri"])) for item in values["snapshots"])
    state = _state(values["state"], lengthen)
    return CheckpointDocument(**_known(CheckpointDocument, values) | {"snapshots": snapshots, "state": state})


def _snapshot(values: dict[str, Any], uri: str) -> SnapshotHandle:
    scope = tuple((str(loop), str(item)) for loop, item in values["scope"])
    return SnapshotHandle(**_known(SnapshotHandle, values) | {"scope": scope, "uri": uri})


def _state(values: dict[str, Any], lengthen: Any) -> InlineStateHandle | FileStateHandle:
    if values["kind"] == "inline":
        return InlineStateHandle(value=values["value"])
    return FileStateHandle(**_known(FileStateHandle, values) | {"uri": lengthen(values["uri"])})


def _known(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    # A later release of the same version may add fields; what is not known here is not needed here.
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in values.items() if name in names}
