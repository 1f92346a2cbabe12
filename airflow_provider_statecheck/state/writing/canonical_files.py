"""
Parquet files of canonical savepoints, which users can read with other tools.

A keyed state of a subtask is written to sorted files in which a row group has rows of one key group. A list, union list or
broadcast map of a subtask is one file. Names and bytes are derived from the state, so that repeated writing completes what an
interrupted process has left.

::

    <savepoint>/state/<uid>/keyed/<state>/<epoch>-<subtask>-<number>.parquet
    <savepoint>/state/<uid>/<distribution mode>/<state>/<epoch>-<subtask>-<number>.parquet
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import STATE_DIRECTORY, slug
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.state.arrow.layout import KEY_GROUP, ArrowStateSettings, single
from airflow_provider_statecheck.state.arrow.part_files import Footer, SnapshotMeta, StateFiles, encode_meta
from airflow_provider_statecheck.state.arrow.part_writer import PartFile, PartWriter
from airflow_provider_statecheck.state.arrow.restore import CANONICAL_ID
from airflow_provider_statecheck.state.operator.stream_format import WrittenState, encode_parquet
from airflow_provider_statecheck.state.reading.columns import EXPIRES_AT, LAST_ACCESS, StateColumns
from airflow_provider_statecheck.state.reading.state_reader import registered, restored_keys
from airflow_provider_statecheck.state.schemas import OperatorSchemas, StateSchema, encode_schemas
from airflow_provider_statecheck.state.serializers.nested_columns import (
    DESCRIPTION,
    portable_schema,
    storing,
    to_portable,
    with_elements,
)
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_streams import (
    DEFAULT_INLINE_THRESHOLD,
    BufferedStateOutputStream,
    CheckpointStateOutputStream,
)

KEYED = "keyed"
_SETTINGS = ArrowStateSettings(block_rows=1 << 16, block_bytes=4 << 20, part_bytes=128 << 20, compression="zstd")
"""Row groups are larger than the blocks of a running stage, which reads single keys."""
_BUFFER_BYTES = 8 << 20
_LONGEST_US = 1 << 62
"""Longest time to live in a file in microseconds; the sum with a time of access still fits 64 bits."""


@dataclass(frozen=True, slots=True)
class CanonicalFiles:
    """
    Writer of state files in the directory of a savepoint.

    :param storage: Storage of the savepoint.
    :param directory: URI of the directory.
    :param epoch: Fencing epoch in the names of files.
    """

    storage: CheckpointStorage
    directory: str
    epoch: int

    def uri_of(self, uid: str, kind: str, state: str, subtask: int, number: int) -> str:
        """Return the URI of a file of a state."""
        directory = f"{self.directory}/{STATE_DIRECTORY}/{slug(uid)}/{kind}/{slug(state)}"
        return f"{directory}/{self.epoch}-{subtask:05d}-{number:05d}.parquet"

    def write(self, uri: str, data: bytes) -> FileStateHandle:
        """
        Write a file, which may exist with the same bytes.

        :raises StorageError: if the storage fails, or the file exists with other bytes.
        """
        self.storage.write_bytes(uri, data)
        return FileStateHandle(uri, len(data), hashlib.sha256(data).hexdigest())

    def write_elements(self, uid: str, subtask: int, state: WrittenState) -> tuple[OperatorStateHandle, ...]:
        """
        Write an operator state of a subtask; elements with other types are in another file.

        :raises StorageError: if the storage fails.
        """
        handles = []
        for number, elements in enumerate(state.pieces):
            piece = WrittenState(state.name, state.mode, (elements,))
            uri = self.uri_of(uid, state.mode.value, state.name, subtask, number)
            file = self.write(uri, encode_parquet(piece))
            handles.append(OperatorStateHandle(states=((piece.stored_name, piece.meta),), stream=file))
        return tuple(handles)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedFiles:
    """Writer of the keyed states of a subtask."""

    files: CanonicalFiles
    """Writer of the savepoint."""
    uid: str
    """Uid of the operator."""
    subtask: int
    owned: KeyGroupRange
    key: SerializerSnapshot
    max_parallelism: int
    _states: dict[str, StateFiles] = field(default_factory=dict)

    def write(self, state: StateSchema, tables: Iterable[Any]) -> None:
        """
        Write the sorted tables of a state.

        :param state: Schema of the rows.
        :param tables: Tables in the layout of the state backends.
        :raises StorageError: if the storage fails.
        """
        columns = StateColumns(restored_keys(self.key), registered(state), with_times=True, namespaces=True)
        schema, conform = columns.layout.schema(namespace=True, deleted=False), columns.layout.conform
        open_file = partial(ParquetPartFile, columns=columns, description=self._description(state))
        numbers = count()
        writer = PartWriter(schema, state, lambda: self._open(state.name, next(numbers)), _SETTINGS, open_file)
        parts = writer.write_all(conform(table, namespace=True, deleted=False) for table in tables)
        if parts:
            self._states[state.name] = StateFiles(state, (parts,))

    def handle(self, checkpoint_id: int) -> KeyedStateHandle | None:
        """
        Write the index of the files and return their handle, ``None`` without rows.

        :param checkpoint_id: Checkpoint id in the handle.
        :raises StorageError: if the storage fails.
        """
        states = tuple(self._states.values())
        if not states:
            return None
        return KeyedStateHandle(
            backend_id=CANONICAL_ID,
            key_group_range=self.owned,
            checkpoint_id=checkpoint_id,
            shared=tuple((part.path, part.handle) for files in states for run in files.runs for part in run),
            meta=self._write_index(encode_meta(SnapshotMeta(self.key, self.max_parallelism, states))),
        )

    def _write_index(self, data: bytes) -> StreamStateHandle:
        name = f"{self.files.epoch}-{hashlib.sha256(data).hexdigest()[:32]}"
        if len(data) <= DEFAULT_INLINE_THRESHOLD:
            return ByteStreamStateHandle(f"{self.uid}/{self.subtask}/{name}", data)
        return self.files.write(f"{self.files.directory}/{name}", data)

    def _open(self, state: str, number: int) -> CheckpointStateOutputStream:
        uri = self.files.uri_of(self.uid, KEYED, state, self.subtask, number)
        return BufferedStateOutputStream(partial(self.files.write, uri), buffer_size=_BUFFER_BYTES, inline_threshold=0)

    def _description(self, state: StateSchema) -> dict[str, Any]:
        schemas = encode_schemas(OperatorSchemas(key=self.key, keyed=(state,)))
        return {"uid": self.uid, "number_of_key_groups": self.max_parallelism, "schemas": schemas}


class ParquetPartFile(PartFile):
    """
    Parquet file with the columns that users read, in which each row group is a block.

    :param schema: Arrow schema of the rows.
    :param stream: Stream of the file.
    :param compression: Compression of the file.
    :param columns: Columns for users.
    :param description: Origin and types of the rows, for the metadata of the file.
    """

    def __init__(
        self,
        schema: Any,
        stream: CheckpointStateOutputStream,
        compression: str | None,
        *,
        columns: StateColumns,
        description: dict[str, Any],
    ) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        super().__init__(schema, stream, compression)
        self._columns = columns
        self._description = description
        with storing():
            self._writer = parquet.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                self._stored_schema,
                compression=compression or "none",
                write_page_checksum=True,
            )

    def abort(self) -> None:
        """Discard the file."""
        super().abort()
        # Otherwise the writer writes its footer to the closed stream when it is destroyed.
        self._writer.is_open = False

    @cached_property
    def _stored_schema(self) -> Any:
        import pyarrow as pa

        schema = self._columns.schema
        expiry = [pa.field(EXPIRES_AT, schema.field(LAST_ACCESS).type)] if self._lifetime else []
        stored = portable_schema(pa.schema([(KEY_GROUP, pa.int32()), *schema, *expiry]))
        return stored.with_metadata({DESCRIPTION: json.dumps(self._description, sort_keys=True)})

    @cached_property
    def _lifetime(self) -> Any:
        import pyarrow as pa

        state = self._columns.state.schema()
        return pa.scalar(min(state.ttl_ms * 1000, _LONGEST_US), pa.duration("us")) if state.ttl_ms is not None else None

    def _write_block(self, rows: Any) -> tuple[int, int, int, int]:
        start = self._sink.begin_block()
        stored = self._stored(rows)
        with storing():
            self._writer.write_table(stored, row_group_size=rows.num_rows)
        return start, self._sink.position - start, rows.num_rows, self._sink.checksum

    def _write_end(self) -> Footer:
        start = self._sink.begin_block()
        self._writer.close()
        return start, self._sink.position - start, self._sink.checksum

    def _path_of(self, handle: StreamStateHandle) -> str:
        assert isinstance(handle, FileStateHandle)  # noqa: S101 - the stream has no inline state
        # Names of files are unique in a savepoint, and paths among all savepoints.
        return f"{hashlib.sha256(handle.uri.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.parquet"

    def _stored(self, rows: Any) -> Any:
        import pyarrow as pa

        named = self._columns.named(rows)
        expiry = [_later(single(named.column(LAST_ACCESS)), self._lifetime)] if self._lifetime else []
        arrays = [single(rows.column(KEY_GROUP)), *map(single, named.columns), *expiry]
        return to_portable(pa.table(arrays, names=self._stored_schema.names), self._stored_schema)


def _later(times: Any, lifetime: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(times.type):
        return with_elements(times, _later(times.flatten(), lifetime))
    return pc.add(times, lifetime)
