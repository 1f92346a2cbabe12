"""
The bytes of ``_metadata``: one line that says what it is and its checksum, then JSON.

URIs below the job's own directory are written relative to it, so that a checkpoint directory which was moved or copied
still loads.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, replace
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


def encode_metadata(document: CheckpointDocument) -> bytes:
    """Return the bytes to write for a checkpoint."""
    body = json.dumps(_to_json(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
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
        return _from_json(json.loads(body), uri.rstrip("/").rsplit("/", 2)[0])
    except (ValueError, KeyError, TypeError) as error:
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


def _to_json(document: CheckpointDocument) -> dict[str, Any]:
    def shorten(uri: str) -> str:
        before, found, after = uri.partition(f"/{document.job_id}/")
        return f"{_RELATIVE}{after}" if found and before else uri

    state: InlineStateHandle | FileStateHandle = document.state
    if isinstance(state, FileStateHandle):
        state = replace(state, uri=shorten(state.uri))
    kind = "file" if isinstance(state, FileStateHandle) else "inline"
    snapshots = [asdict(replace(handle, uri=shorten(handle.uri))) for handle in document.snapshots]
    return asdict(document) | {"snapshots": snapshots, "state": {"kind": kind} | asdict(state)}


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
