"""
Parquet files of canonical savepoints, and the rows that users supply for them.

Other tools can read the files. A keyed state of a subtask is written to sorted files in which a row group has rows of
one key group. A list, union list or broadcast map of a subtask is one file. Names and bytes are derived from the state,
so that repeated writing completes what an interrupted process has left.

::

    <savepoint>/state/<uid>/keyed/<state>/<epoch>-<subtask>-<number>.parquet
    <savepoint>/state/<uid>/<distribution mode>/<state>/<epoch>-<subtask>-<number>.parquet
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import STATE_DIRECTORY, slug
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.lazy import np, pa, parquet, pc
from airflow_provider_statecheck.state.arrow.layout import (
    KEY_GROUP,
    NAMESPACE,
    USER_KEY,
    VALUE,
    ArrowStateSettings,
    order_codes,
    position_columns,
    position_names,
    single,
)
from airflow_provider_statecheck.state.arrow.restore import CANONICAL_ID
from airflow_provider_statecheck.state.arrow.run_files import Footer, SnapshotMeta, StateFiles, encode_meta
from airflow_provider_statecheck.state.arrow.run_writer import BlockNumbers, OpenRunFile, RunWriter
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import timed_cells
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState, contains, require_no_nan
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.operator.stream_format import WrittenState, encode_parquet
from airflow_provider_statecheck.state.reading.state_reader import (
    EXPIRES_AT,
    LAST_ACCESS,
    StateColumns,
    registered,
    restored_keys,
)
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas, StateSchema, encode_schemas
from airflow_provider_statecheck.state.serializers.nested_columns import (
    DESCRIPTION,
    conformed,
    offsets_of_array,
    portable_schema,
    storing,
    to_portable,
    with_elements,
)
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot, TypeSerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_streams import (
    DEFAULT_INLINE_THRESHOLD,
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


@dataclass(slots=True)
class KeyedFiles:
    """
    Writer of the keyed states of a subtask.

    The methods raise ``StorageError`` if the storage fails.
    """

    files: CanonicalFiles
    """Writer of the savepoint."""
    uid: str
    """Uid of the operator."""
    subtask: int
    owned: KeyGroupRange
    max_parallelism: int
    _key: SerializerSnapshot | None = None
    _states: dict[str, StateFiles] = field(default_factory=dict)

    def write(self, key: SerializerSnapshot, state: StateSchema, tables: Iterable[Any]) -> None:
        """
        Write the sorted tables of a state.

        :param key: Type of the keys, equal for all states.
        :param tables: Tables in the layout of the state backends.
        """
        self._key = key
        columns = StateColumns(restored_keys(key), registered(state), with_times=True, namespaces=True)
        schema, conform = columns.layout.schema(namespace=True, deleted=False), columns.layout.conform
        open_file = partial(ParquetRunFile, columns=columns, description=self._description(state))
        numbers = count()
        writer = RunWriter(schema, state, lambda: self._open(state.name, next(numbers)), _SETTINGS, open_file)
        run = writer.write_all(conform(table, namespace=True, deleted=False) for table in tables)
        if run:
            self._states[state.name] = StateFiles(state, (run,))

    def handle(self, checkpoint_id: int) -> KeyedStateHandle | None:
        """
        Write the index of the files and return their handle, ``None`` without rows.

        :param checkpoint_id: Checkpoint id in the handle.
        """
        states = tuple(self._states.values())
        if self._key is None or not states:
            return None
        return KeyedStateHandle(
            backend_id=CANONICAL_ID,
            key_group_range=self.owned,
            checkpoint_id=checkpoint_id,
            shared=tuple((file.path, file.handle) for files in states for run in files.runs for file in run),
            meta=self._write_index(encode_meta(SnapshotMeta(self._key, self.max_parallelism, states))),
        )

    def _write_index(self, data: bytes) -> StreamStateHandle:
        name = f"{self.files.epoch}-{hashlib.sha256(data).hexdigest()[:32]}"
        if len(data) <= DEFAULT_INLINE_THRESHOLD:
            return ByteStreamStateHandle(f"{self.uid}/{self.subtask}/{name}", data)
        return self.files.write(f"{self.files.directory}/{name}", data)

    def _open(self, state: str, number: int) -> CheckpointStateOutputStream:
        uri = self.files.uri_of(self.uid, KEYED, state, self.subtask, number)
        return CheckpointStateOutputStream(
            partial(self.files.write, uri), buffer_size=_BUFFER_BYTES, inline_threshold=0
        )

    def _description(self, state: StateSchema) -> dict[str, Any]:
        schemas = encode_schemas(OperatorSchemas(key=self._key, keyed=(state,)))
        return {"uid": self.uid, "number_of_key_groups": self.max_parallelism, "schemas": schemas}


class ParquetRunFile(OpenRunFile):
    """
    Parquet file with the columns that users read, in which each row group is a block.

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
        # The magic bytes at the start belong to no block.
        self._sink.store()

    def abort(self) -> None:
        """Discard the file."""
        super().abort()
        # Otherwise the writer writes its footer to the closed stream when it is destroyed.
        self._writer.is_open = False

    @cached_property
    def _stored_schema(self) -> Any:
        schema = self._columns.schema
        expiry = [pa.field(EXPIRES_AT, schema.field(LAST_ACCESS).type)] if self._lifetime else []
        stored = portable_schema(pa.schema([(KEY_GROUP, pa.int32()), *schema, *expiry]))
        return stored.with_metadata({DESCRIPTION: json.dumps(self._description, sort_keys=True)})

    @cached_property
    def _lifetime(self) -> Any:
        state = self._columns.state.schema()
        return pa.scalar(min(state.ttl_ms * 1000, _LONGEST_US), pa.duration("us")) if state.ttl_ms is not None else None

    def _write_block(self, rows: Any) -> BlockNumbers:
        stored = self._stored(rows)
        with storing():
            self._writer.write_table(stored, row_group_size=rows.num_rows)
        start, length, checksum = self._stored_bytes()
        return start, length, rows.num_rows, checksum

    def _write_end(self) -> Footer:
        self._writer.close()
        return self._stored_bytes()

    def _stored_bytes(self) -> Footer:
        """Store what the writer wrote last, and return its offset, length and checksum."""
        written = self._sink.store()
        return self._sink.position - len(written), len(written), zlib.crc32(written)

    def _path_of(self, handle: StreamStateHandle) -> str:
        assert isinstance(handle, FileStateHandle)  # noqa: S101 - the stream has no inline state
        # Names of files are unique in a savepoint, and paths among all savepoints.
        return f"{hashlib.sha256(handle.uri.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.parquet"

    def _stored(self, rows: Any) -> Any:
        named = self._columns.named(rows)
        expiry = [_later(single(named.column(LAST_ACCESS)), self._lifetime)] if self._lifetime else []
        arrays = [single(rows.column(KEY_GROUP)), *map(single, named.columns), *expiry]
        return to_portable(pa.table(arrays, names=self._stored_schema.names), self._stored_schema)


def _later(times: Any, lifetime: Any) -> Any:
    if pa.types.is_list(times.type):
        return with_elements(times, _later(times.flatten(), lifetime))
    return pc.add(times, lifetime)


@dataclass(frozen=True, slots=True)
class NewRows:
    """
    Conversion of user-supplied tables to rows of one state.

    :param max_parallelism: Number of key groups.
    """

    state: RegisteredState
    keys: KeySerializer
    max_parallelism: int

    def of(self, data: Any) -> Any:
        """
        Return the rows of a table in the order of their positions.

        :param data: Arrow table with the columns that a read of the state returns.
        :raises InvalidConfigurationError: if the columns differ, or if a key or a namespace is missing, or a key is
            duplicate.
        :raises UnsupportedStateError: if a value does not fit its type.
        """
        columns = StateColumns(self.keys, self.state, with_times=True, namespaces=NAMESPACE in data.schema.names)
        _require_columns(columns, data)
        schema = columns.layout.schema(namespace=columns.namespaces, deleted=False)
        arrays = self._arrays(columns, data)
        rows = pa.table([arrays[name] for name in schema.names], schema=schema)
        codes = order_codes(position_columns(rows))
        order = np.argsort(codes, kind="stable")
        _require_unique(rows, codes[order], order)
        return rows.take(pa.array(order))

    def _arrays(self, columns: StateColumns, data: Any) -> dict[str, Any]:
        keys = self.keys.normalized_columns([single(data.column(name)) for name in columns.key_names])
        arrays: dict[str, Any] = dict(zip(columns.layout.key_names, keys, strict=True))
        arrays[KEY_GROUP] = pa.array(self.keys.key_groups_of(keys, self.max_parallelism))
        if columns.namespaces:
            arrays[NAMESPACE] = _namespaces(single(data.column(NAMESPACE)))
        if self.state.key_serializer is not None:
            user_keys = conformed(single(data.column("map_key")), self.state.key_serializer.arrow_type, "map_key")
            self.state.key_serializer.require_valid(user_keys, "map_key")
            require_no_nan(self.state.key_serializer, user_keys)
            arrays[USER_KEY] = _as_stored(self.state.key_serializer, user_keys)
        return arrays | {VALUE: self._cells(columns, data)}

    def _cells(self, columns: StateColumns, data: Any) -> Any:
        name = columns.value_name
        values = self._stored(conformed(single(data.column(name)), columns.schema.field(name).type, name), name)
        if self.state.ttl is None:
            return values
        times = _milliseconds(single(data.column(LAST_ACCESS)), columns.schema.field(LAST_ACCESS).type)
        if self.state.kind is StateKind.LIST and offsets_of_array(values) != offsets_of_array(times):
            raise InvalidConfigurationError(
                f"Expected one time in {LAST_ACCESS} for each element of {name}, found lists of different lengths; "
                "make them equal."
            )
        return timed_cells(values, times)

    def _stored(self, values: Any, name: str) -> Any:
        serializer = self.state.serializer
        if self.state.kind is StateKind.MAP:
            # An entry with the value None is valid.
            serializer.require_valid_or_null(values, name)
        elif self.state.kind is not StateKind.LIST:
            serializer.require_valid(values, name)
        elif values.null_count or pc.any(pc.equal(pc.list_value_length(values), 0)).as_py():
            raise UnsupportedStateError(
                f"Expected lists with elements in {name}, found an empty one; remove these rows."
            )
        else:
            serializer.require_valid(values.flatten(), f"each element of {name}")
            return with_elements(values, _as_stored(serializer, values.flatten()))
        return _as_stored(serializer, values)


def _as_stored(serializer: TypeSerializer[Any], values: Any) -> Any:
    # Given sets have their elements in any order, or repeat them.
    has_sets = contains(serializer.arrow_type, pa.types.is_list)
    return serializer.to_arrow(serializer.from_arrow(values)) if has_sets else values


def _require_unique(rows: Any, ordered: Any, order: Any) -> None:
    duplicates = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(duplicates):
        names = [name for name in position_names(rows.schema.names) if name != KEY_GROUP]
        shown = rows.select(names).slice(int(order[duplicates[0]]), 1).to_pylist()[0]
        raise InvalidConfigurationError(
            f"Expected one row per key, or per entry of a map state, found {counted(len(duplicates), 'row')} too "
            f"many, the first with {shown}; aggregate the rows first."
        )


def _require_columns(columns: StateColumns, data: Any) -> None:
    wanted, found = columns.schema.names, data.schema.names
    if sorted(wanted) != sorted(found):
        raise InvalidConfigurationError(
            f"Expected the columns {', '.join(wanted)}, found {', '.join(found)}; select and rename them first."
        )


def _namespaces(given: Any) -> Any:
    namespaces = conformed(given, pa.string(), NAMESPACE)
    if namespaces.null_count:
        raise InvalidConfigurationError(
            f"Expected text in each row of {NAMESPACE}, found {counted(namespaces.null_count, 'null')}; set '' for "
            "state without a namespace."
        )
    return namespaces


def _milliseconds(times: Any, wanted: Any) -> Any:
    times = conformed(times, wanted, LAST_ACCESS)
    if pa.types.is_list(wanted):
        return with_elements(times, _milliseconds(times.flatten(), wanted.value_type))
    if times.null_count:
        raise InvalidConfigurationError(
            f"Expected a time in each row of {LAST_ACCESS}, found {counted(times.null_count, 'null')}; set these times."
        )
    # The state backends store the time of the last access in milliseconds.
    return times.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


def split_by_ranges(rows: Any, ranges: Any) -> Iterator[Any]:
    """Split rows, which are ordered by key group, into the rows of each range of key groups."""
    groups = single(rows.column(KEY_GROUP)).to_numpy()
    for owned in ranges:
        start, end = groups.searchsorted([owned.start, owned.end + 1])
        yield rows.slice(int(start), int(end - start))
