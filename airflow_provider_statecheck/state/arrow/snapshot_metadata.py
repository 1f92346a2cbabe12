"""
Metadata of a subtask's snapshot: runs, files and block indexes.

The metadata is an Arrow IPC file with one row per state. Restored states without a descriptor are copied unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import StreamStateHandle
from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.state.arrow.part_files import Footer, Part, Parts
from airflow_provider_statecheck.state.schemas import OperatorSchemas, StateSchema, decode_schemas, encode_schemas
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot

FORMAT = "statecheck-arrow-state"
VERSION = 1
_FORMAT_KEY = b"format"
_KEY_TYPE_KEY = b"key"
_GROUPS_KEY = b"number_of_key_groups"
_BLOCK_COLUMNS = ("offset", "length", "rows", "checksum")


@dataclass(frozen=True, slots=True)
class StateFiles:
    """Runs of one state."""

    state: StateSchema
    """Schema of the newest rows."""
    runs: tuple[Parts, ...]
    """Runs, newest first."""


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """Metadata of the states of one subtask."""

    key: SerializerSnapshot
    """Type of the keys."""
    number_of_key_groups: int
    states: tuple[StateFiles, ...]


def encode_meta(meta: SnapshotMeta) -> bytes:
    """Encode snapshot metadata."""
    import pyarrow as pa

    rows = [_encode_state(files) for files in meta.states]
    head = {
        _FORMAT_KEY: f"{FORMAT} {VERSION}",
        _KEY_TYPE_KEY: json.dumps(encode_schemas(OperatorSchemas(key=meta.key))),
        _GROUPS_KEY: str(meta.number_of_key_groups),
    }
    schema = pa.schema([("name", pa.string()), ("runs", pa.string()), ("blocks", pa.list_(pa.binary()))], metadata=head)
    return _ipc(pa.Table.from_pylist(rows, schema=schema))


def decode_meta(data: bytes, streams: Mapping[str, StreamStateHandle], source: str) -> SnapshotMeta:
    """
    Decode snapshot metadata.

    :param streams: State files by name.
    :param source: Name of the snapshot in errors.
    :raises IncompatibleCheckpointError: if a newer version wrote the metadata.
    :raises CorruptStateError: if the metadata is corrupt, or references a file that is not in the handle.
    """
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        head = table.schema.metadata or {}
        _require_version(head.get(_FORMAT_KEY, b"").decode(), source)
        key = decode_schemas(json.loads(head[_KEY_TYPE_KEY])).key
        groups = int(head[_GROUPS_KEY])
        states = tuple(_decode_state(row, streams) for row in table.to_pylist())
    except (pa.ArrowException, LookupError, ValueError, TypeError, AttributeError) as error:
        raise CorruptStateError(
            f"Expected snapshot metadata in {source}, found {error!r:.200}; restore from another checkpoint.",
            uri=source,
        ) from error
    if key is None:
        raise CorruptStateError(
            f"Expected the key type in the snapshot metadata in {source}, found none; restore from another checkpoint.",
            uri=source,
        )
    return SnapshotMeta(key, groups, states)


def _encode_state(files: StateFiles) -> dict[str, Any]:
    versions = _schema_versions(files)
    runs = [[_encode_part(part, versions.index(part.state)) for part in parts] for parts in files.runs]
    return {
        "name": files.state.name,
        "runs": json.dumps({"states": encode_schemas(OperatorSchemas(keyed=tuple(versions))), "runs": runs}),
        "blocks": [_encode_blocks(part) for parts in files.runs for part in parts],
    }


def _schema_versions(files: StateFiles) -> list[StateSchema]:
    """Return the distinct schemas of the rows, newest first."""
    versions = [files.state]
    for parts in files.runs:
        versions += [part.state for part in parts if part.state not in versions]
    return versions


def _encode_part(part: Part, version: int) -> dict[str, Any]:
    described = {"path": part.path, "state": version, "raw_bytes": part.raw_bytes, "deletions": part.deletions}
    return described if part.footer is None else described | {"footer": part.footer}


def _encode_blocks(part: Part) -> bytes:
    import pyarrow as pa

    numbers = (part.offsets, part.lengths, part.rows, part.checksums)
    table = part.firsts
    for name, column in zip(_BLOCK_COLUMNS, numbers, strict=True):
        table = table.append_column(name, pa.array(column))
    return _ipc(table.replace_schema_metadata({b"file": part.schema.serialize().to_pybytes()}))


def _decode_state(row: Mapping[str, Any], streams: Mapping[str, StreamStateHandle]) -> StateFiles:
    described = json.loads(row["runs"])
    versions = decode_schemas(described["states"]).keyed
    blocks = iter(row["blocks"])
    runs = tuple(
        tuple(_decode_part(part, next(blocks), versions, streams) for part in parts) for parts in described["runs"]
    )
    return StateFiles(versions[0], runs)


def _decode_part(
    described: Mapping[str, Any],
    blocks: bytes,
    versions: Sequence[StateSchema],
    streams: Mapping[str, StreamStateHandle],
) -> Part:
    import pyarrow as pa

    table = pa.ipc.open_file(pa.py_buffer(blocks)).read_all().combine_chunks()
    schema = pa.ipc.read_schema(pa.py_buffer(table.schema.metadata[b"file"]))
    offsets, lengths, rows, checksums = (table.column(name).to_numpy() for name in _BLOCK_COLUMNS)
    return Part(
        path=described["path"],
        handle=streams[described["path"]],
        state=versions[described["state"]],
        schema=schema,
        firsts=table.drop_columns(list(_BLOCK_COLUMNS)).replace_schema_metadata(None),
        offsets=offsets,
        lengths=lengths,
        rows=rows,
        checksums=checksums,
        raw_bytes=described["raw_bytes"],
        deletions=described["deletions"],
        footer=_footer_of(described, streams[described["path"]]) if "footer" in described else None,
    )


def _footer_of(described: Mapping[str, Any], stream: StreamStateHandle) -> Footer:
    offset, length, checksum = map(index, described["footer"])
    if not 0 <= offset <= offset + length <= stream.state_size:
        raise ValueError(f"a footer of {length} bytes at {offset} of {stream.state_size} bytes")
    return offset, length, checksum


def _ipc(table: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _require_version(found: str, source: str) -> None:
    name, _, version = found.partition(" ")
    if name != FORMAT:
        raise ValueError(f"the format {found!r}")
    if version != str(VERSION):
        raise IncompatibleCheckpointError(
            f"Expected snapshot metadata of version {VERSION} in {source}, found {version}; restore with the release that wrote "
            f"the checkpoint, or a newer one."
        )
