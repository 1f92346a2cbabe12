"""
State files: format and range reads, and the metadata of a subtask's snapshot.

A run file is an Arrow IPC file of sorted rows. Each record batch is a block, which belongs to one key group and is read
on its own.

The metadata of a snapshot is an Arrow IPC file with one row per state. Restored states without a descriptor are copied
unchanged.
"""

from __future__ import annotations

import json
import operator
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, NamedTuple

from airflow_provider_statecheck.cached_reads import LruCache, about_to_wait
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyGroupRange,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    StorageError,
    UnknownVersionError,
)
from airflow_provider_statecheck.lazy import np, pa
from airflow_provider_statecheck.state.schema_evolution import (
    OperatorSchemas,
    StateSchema,
    decode_schemas,
    encode_schemas,
)
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.storage.bounds import require_decodable_file, require_readable
from airflow_provider_statecheck.storage.file_operations import NotAFileError, open_local
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.stored_json import UNDECODABLE, parse
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact, scheme_of

_MAX_OPEN_FILES = 64
_MAX_GAP = 64 << 10
"""Maximum number of unused bytes between two pieces that one request reads."""
_MAX_RANGE = 16 << 20
"""Maximum number of bytes that one request reads, unless a single piece is larger."""
_MAX_REQUESTS = 4
"""Maximum number of requests of one reader at the same time."""
_PIECES = "pieces of a file of state"


BLOCK_FIELDS = [("offset", "i8"), ("length", "i4"), ("rows", "i4"), ("checksum", "u4")]
"""
Offset of a block in its file, its size in bytes, its number of rows, and the CRC-32 of its bytes, as a numpy type.
"""
Footer = tuple[int, int, int]
"""Offset, length and CRC-32 of the footer of a file."""


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """State file, with an index of the blocks to read."""

    path: str
    """Name of the file in the handle of a snapshot, unique among all subtasks."""
    handle: StreamStateHandle
    state: StateSchema
    """Schema with which the rows were written."""
    schema: Any
    """Arrow schema of the file."""
    firsts: Any
    """Table with the sort key of the first row of each block."""
    blocks: Any
    """Numpy array with the fields of :data:`BLOCK_FIELDS` for each block."""
    raw_bytes: int
    """Size of the rows in memory, in bytes."""
    deletions: int
    """Number of tombstones."""
    partials: int = 0
    """Number of rows that are combined with older ones of their keys."""
    footer: Footer | None = None
    """Place of the footer of a Parquet file; ``None`` for an Arrow IPC file."""

    @property
    def offsets(self) -> Any:
        """The offset of each block in the file, as a numpy array."""
        return self.blocks["offset"]

    @property
    def key_groups(self) -> Any:
        """The key group of each block, as a numpy array."""
        return self.firsts.column(0).to_numpy()

    def with_key_names(self, names: tuple[str, ...]) -> RunFile:
        """Return this run file with key columns of other names; its bytes do not have any."""
        if names == tuple(self.schema.names[1 : 1 + len(names)]):
            return self
        firsts = _renamed(self.firsts.schema.names, names)
        schema = pa.schema(
            [each.with_name(name) for each, name in zip(self.schema, _renamed(self.schema.names, names), strict=True)]
        )
        return replace(self, firsts=self.firsts.rename_columns(firsts), schema=schema)

    def within(self, owned: KeyGroupRange) -> RunFile | None:
        """Return this run file with only the blocks of a range of key groups, or ``None`` if it has none."""
        groups = self.key_groups
        return self.only((groups >= owned.start) & (groups <= owned.end))

    def only(self, chosen: Any) -> RunFile | None:
        """
        Return this run file with only some blocks, or ``None`` if there are none.

        :param chosen: Whether to keep each block, as a boolean numpy array.
        """
        if chosen.all():
            return self
        if not chosen.any():
            return None
        share = float(self.blocks["rows"][chosen].sum()) / float(self.blocks["rows"].sum())
        return replace(
            self,
            firsts=self.firsts.filter(pa.array(chosen)),
            blocks=self.blocks[chosen],
            raw_bytes=int(self.raw_bytes * share),
            deletions=-int(-self.deletions * share // 1),
            partials=-int(-self.partials * share // 1),
        )


def _renamed(names: Sequence[str], key_names: tuple[str, ...]) -> list[str]:
    # The key group comes first, and the key columns follow.
    return [names[0], *key_names, *names[1 + len(key_names) :]]


RunFiles = tuple[RunFile, ...]
"""Files of one run, in ascending order."""
Piece = tuple[int, int]
"""Offset and length of bytes in a file."""


class _Range(NamedTuple):
    start: int
    length: int
    members: list[Piece]


_RangeOfFile = tuple[StreamStateHandle, _Range]


class RunBytes:
    """
    Range reads of state files, safe for threads.

    :param files: Open local files, by default separate ones.
    """

    def __init__(self, storage: CheckpointStorage, files: LocalFiles | None = None) -> None:
        self._storage = storage
        self._files = LocalFiles() if files is None else files

    def read(self, handle: StreamStateHandle, pieces: Sequence[Piece]) -> list[memoryview]:
        """
        Return pieces of a file in ascending order. Pieces beyond the end of the file are shorter.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises RequestLimitError: if the pieces are too large for a server; nothing is read.
        :raises StorageError: if the storage fails.
        """
        require_readable((length for _, length in pieces), _PIECES)
        ranges = _coalesced(pieces)
        require_readable((each.length for each in ranges), _PIECES)
        found = self._read_ranges(handle, [each[:2] for each in ranges])
        return [piece for each, data in zip(ranges, found, strict=True) for piece in _members(each, data)]

    def read_ahead(
        self, files: Iterable[tuple[StreamStateHandle, Sequence[Piece]]]
    ) -> Generator[memoryview, None, None]:
        """
        Return pieces of files in ascending order, one by one; raises as :meth:`read`.

        Of an object store, the next few ranges are read meanwhile, whichever files they are in.
        """
        ranges = ((handle, each) for handle, pieces in files for each in _coalesced(pieces))
        for is_remote, members in groupby(ranges, lambda each: _is_remote(each[0])):
            for each, data in self._ahead(members) if is_remote else self._in_turn(members):
                yield from _members(each, data)

    def _in_turn(self, ranges: Iterable[_RangeOfFile]) -> Iterator[tuple[_Range, bytes]]:
        for handle, each in ranges:
            require_readable((each.length,), _PIECES)
            yield each, self._read_ranges(handle, [each[:2]])[0]

    def _ahead(self, ranges: Iterable[_RangeOfFile]) -> Iterator[tuple[_Range, bytes]]:
        rest, waiting = iter(ranges), deque[tuple[_Range, Future[list[bytes]]]]()
        about_to_wait()
        with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
            try:
                while True:
                    for handle, each in islice(rest, _MAX_REQUESTS - len(waiting)):
                        require_readable((each.length,), _PIECES)
                        waiting.append((each, pool.submit(self._read_ranges, handle, [each[:2]])))
                    if not waiting:
                        return
                    first, read = waiting.popleft()
                    yield first, read.result()[0]
            finally:
                for _, read in waiting:
                    read.cancel()

    def require_allowed(self, handle: StreamStateHandle) -> None:
        """
        Require that the storage may read a file, which a cache of its blocks does not check.

        :raises LocationNotAllowedError: if the file is not in an allowed location.
        """
        if not isinstance(handle, ByteStreamStateHandle):
            self._storage.require_allowed(_location(handle)[0])

    def close(self) -> None:
        """Close the open local files."""
        self._files.close()

    def _read_ranges(self, handle: StreamStateHandle, ranges: Sequence[Piece]) -> list[bytes]:
        if isinstance(handle, ByteStreamStateHandle):
            return [handle.data[start : start + length] for start, length in ranges]
        about_to_wait()
        uri, begin = _location(handle)
        if scheme_of(uri) in LOCAL_SCHEMES:
            read = self._files.read
            return self._storage.reading(
                uri,
                lambda: [read(uri, begin + start, length) for start, length in ranges],
                sum(length for _, length in ranges),
            )
        if len(ranges) <= 1:
            return [self._read_remote(uri, begin, piece) for piece in ranges]
        with ThreadPoolExecutor(min(_MAX_REQUESTS, len(ranges))) as pool:
            return list(pool.map(lambda piece: self._read_remote(uri, begin, piece), ranges))

    def _read_remote(self, uri: str, begin: int, piece: Piece) -> bytes:
        start, length = piece
        return self._storage.read_range(uri, begin + start, begin + start + length)


class LocalFiles:
    """
    LRU cache of open local files, safe for threads. ``pread`` avoids the resident memory of a mapping.

    :param limit: Maximum number of open files.
    """

    def __init__(self, limit: int = _MAX_OPEN_FILES) -> None:
        self._open: LruCache[str, _OpenFile] = LruCache(limit, lambda _: 1)

    def read(self, uri: str, start: int, length: int) -> bytes:
        """
        Return bytes of a file.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises StorageError: if the file cannot be read.
        """
        try:
            file = self._file(uri)
            return os.pread(file.descriptor, length, start)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"Expected a state file at {redact(uri)}, found none; restore from another checkpoint.",
                uri=redact(uri),
            ) from error
        except NotAFileError as error:
            raise CorruptStateError(
                f"Expected a state file at {redact(uri)}, found something else; restore from another checkpoint.",
                uri=redact(uri),
            ) from error
        except OSError as error:
            raise StorageError(
                f"The state file {redact(uri)} cannot be read: {error}; check the file and its permissions.",
                uri=redact(uri),
            ) from error

    def close(self) -> None:
        """Close all files."""
        self._open.clear()

    def _file(self, uri: str) -> _OpenFile:
        file = self._open.get(uri)
        if file is None:
            # No thread waits for another one that opens the same file, because a network file system may hang.
            file = _OpenFile(open_local(uri.partition("://")[2]))
            self._open.put(uri, file)
        return file


class _OpenFile:
    """File descriptor that closes with the last reference: a thread may still read a file that another one evicts."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def _is_remote(handle: StreamStateHandle) -> bool:
    return not isinstance(handle, ByteStreamStateHandle) and scheme_of(_location(handle)[0]) not in LOCAL_SCHEMES


def _location(handle: FileStateHandle | SegmentFileStateHandle) -> tuple[str, int]:
    if isinstance(handle, FileStateHandle):
        return handle.uri, 0
    return handle.uri, handle.start


def corrupt_run_file(run_file: RunFile, what: str, found: str) -> CorruptStateError:
    """Return the error of a run file whose bytes are not those that were written."""
    handle = run_file.handle
    uri = "the checkpoint" if isinstance(handle, ByteStreamStateHandle) else redact(_location(handle)[0])
    return CorruptStateError(
        f"Expected {what} of state {run_file.state.name} in {uri}, found {found}; the file is corrupt or truncated, "
        "restore from another checkpoint.",
        uri=uri,
    )


def _coalesced(pieces: Sequence[Piece]) -> list[_Range]:
    """Group pieces into ranges for one request each."""
    groups: list[list[Piece]] = []
    for offset, length in pieces:
        last = groups[-1] if groups else []
        if last and offset - sum(last[-1]) <= _MAX_GAP and offset + length - last[0][0] <= _MAX_RANGE:
            last.append((offset, length))
        else:
            groups.append([(offset, length)])
    return [_Range(members[0][0], sum(members[-1]) - members[0][0], members) for members in groups]


def _members(each: _Range, data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[offset - each.start : offset - each.start + length] for offset, length in each.members)


FORMAT = "statecheck-arrow-state"
VERSION = 1
VERSION_OF_PARTIALS = 2
"""Version of metadata with partial rows, which a release that only knows the first version would not combine."""
_FORMAT_KEY = b"format"
_KEY_TYPE_KEY = b"key"
_GROUPS_KEY = b"number_of_key_groups"


@dataclass(frozen=True, slots=True)
class StateFiles:
    """Runs of one state."""

    state: StateSchema
    """Schema of the newest rows."""
    runs: tuple[RunFiles, ...]
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
    rows = [_encode_state(files) for files in meta.states]
    head = {
        _FORMAT_KEY: f"{FORMAT} {_version_of(meta)}",
        _KEY_TYPE_KEY: json.dumps(encode_schemas(OperatorSchemas(key=meta.key))),
        _GROUPS_KEY: str(meta.number_of_key_groups),
    }
    schema = pa.schema([("name", pa.string()), ("runs", pa.string()), ("blocks", pa.list_(pa.binary()))], metadata=head)
    return _ipc(pa.Table.from_pylist(rows, schema=schema))


def _version_of(meta: SnapshotMeta) -> int:
    run_files = (run_file for files in meta.states for run in files.runs for run_file in run)
    return VERSION_OF_PARTIALS if any(run_file.partials for run_file in run_files) else VERSION


def decode_meta(data: bytes, streams: Mapping[str, StreamStateHandle], source: str) -> SnapshotMeta:
    """
    Decode snapshot metadata.

    :param streams: State files by name.
    :param source: Name of the snapshot in errors.
    :raises UnknownVersionError: if a newer version wrote the metadata.
    :raises CorruptStateError: if the metadata is corrupt, or references a file that is not in the handle.
    """
    try:
        require_decodable_file(data, "the metadata of state")
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        head = table.schema.metadata or {}
        _require_version(head.get(_FORMAT_KEY, b"").decode(), source)
        key = decode_schemas(parse(head[_KEY_TYPE_KEY])).key
        groups = int(head[_GROUPS_KEY])
        states = tuple(_decode_state(row, streams) for row in table.to_pylist())
    except (pa.ArrowException, *UNDECODABLE) as error:
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
    runs = [
        [_encode_run_file(run_file, versions.index(run_file.state)) for run_file in run_files]
        for run_files in files.runs
    ]
    return {
        "name": files.state.name,
        "runs": json.dumps({"states": encode_schemas(OperatorSchemas(keyed=tuple(versions))), "runs": runs}),
        "blocks": [_encode_blocks(run_file) for run_files in files.runs for run_file in run_files],
    }


def _schema_versions(files: StateFiles) -> list[StateSchema]:
    """Return the distinct schemas of the rows, newest first."""
    versions = [files.state]
    for run_files in files.runs:
        versions += [run_file.state for run_file in run_files if run_file.state not in versions]
    return versions


def _encode_run_file(run_file: RunFile, version: int) -> dict[str, Any]:
    described = {
        "path": run_file.path,
        "state": version,
        "raw_bytes": run_file.raw_bytes,
        "deletions": run_file.deletions,
    }
    optional = {"partials": run_file.partials or None, "footer": run_file.footer}
    return described | {name: value for name, value in optional.items() if value is not None}


def _encode_blocks(run_file: RunFile) -> bytes:
    table = run_file.firsts
    for name, _ in BLOCK_FIELDS:
        table = table.append_column(name, pa.array(np.ascontiguousarray(run_file.blocks[name])))
    return _ipc(table.replace_schema_metadata({b"file": run_file.schema.serialize().to_pybytes()}))


def _decode_state(row: Mapping[str, Any], streams: Mapping[str, StreamStateHandle]) -> StateFiles:
    described = parse(row["runs"])
    versions = decode_schemas(described["states"]).keyed
    blocks = iter(row["blocks"])
    runs = tuple(
        tuple(_decode_run_file(run_file, next(blocks), versions, streams) for run_file in run_files)
        for run_files in described["runs"]
    )
    return StateFiles(versions[0], runs)


def _decode_run_file(
    described: Mapping[str, Any],
    index: bytes,
    versions: Sequence[StateSchema],
    streams: Mapping[str, StreamStateHandle],
) -> RunFile:
    require_decodable_file(index, "the index of a state file")
    table = pa.ipc.open_file(pa.py_buffer(index)).read_all().combine_chunks()
    blocks = np.empty(table.num_rows, BLOCK_FIELDS)
    for name, _ in BLOCK_FIELDS:
        blocks[name] = table.column(name).to_numpy()
    _require_within(blocks, streams[described["path"]])
    return RunFile(
        path=described["path"],
        handle=streams[described["path"]],
        state=versions[described["state"]],
        schema=pa.ipc.read_schema(pa.py_buffer(table.schema.metadata[b"file"])),
        firsts=table.drop_columns([*blocks.dtype.names]).replace_schema_metadata(None),
        blocks=blocks,
        raw_bytes=described["raw_bytes"],
        deletions=described["deletions"],
        partials=operator.index(described.get("partials", 0)),
        footer=_footer_of(described, streams[described["path"]]) if "footer" in described else None,
    )


def _require_within(blocks: Any, stream: StreamStateHandle) -> None:
    offsets, lengths = blocks["offset"], blocks["length"].astype(np.int64)
    is_within = (offsets >= 0) & (lengths >= 0) & (blocks["rows"] >= 0) & (offsets <= stream.state_size - lengths)
    if not is_within.all():
        wrong = blocks[int(np.argmin(is_within))]
        raise ValueError(f"a block {wrong.item()} in a file of {stream.state_size} bytes")


def _footer_of(described: Mapping[str, Any], stream: StreamStateHandle) -> Footer:
    offset, length, checksum = map(operator.index, described["footer"])
    if not 0 <= offset <= offset + length <= stream.state_size:
        raise ValueError(f"a footer of {length} bytes at {offset} of {stream.state_size} bytes")
    return offset, length, checksum


def _ipc(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _require_version(found: str, source: str) -> None:
    name, _, version = found.partition(" ")
    if name != FORMAT:
        raise ValueError(f"the format {found!r}")
    if version not in (str(VERSION), str(VERSION_OF_PARTIALS)):
        raise UnknownVersionError(
            f"Expected snapshot metadata of at most version {VERSION_OF_PARTIALS} in {source}, found {version}; "
            "restore with the release that wrote the checkpoint, or a newer one."
        )
