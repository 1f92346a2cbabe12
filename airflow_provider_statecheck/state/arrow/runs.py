"""Sorted runs of rows in files and in memory, and look-ups of many keys and of single ones."""

from __future__ import annotations

import hashlib
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby, islice
from sys import getsizeof
from typing import Any, NamedTuple

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    KEY_GROUP,
    NAMESPACE,
    PARTIAL,
    ArrowStateSettings,
    Block,
    BlockCache,
    BlockKey,
    StateLayout,
    order_codes,
    order_columns,
    position_columns,
    row_tuples,
    single,
    with_namespaces,
)
from airflow_provider_statecheck.state.arrow.restore import RowForm
from airflow_provider_statecheck.state.arrow.row_versions import merge_tables
from airflow_provider_statecheck.state.arrow.run_files import (
    Piece,
    RunBytes,
    RunFile,
    RunFiles,
    corrupt_run_file,
)
from airflow_provider_statecheck.state.arrow.run_writer import RowGroups
from airflow_provider_statecheck.state.keyed.registered_state import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeySerializer
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer
from airflow_provider_statecheck.storage.bounds import decoded_batch

Position = tuple[Any, ...]
"""Sort key of a row, or the start of one, see :func:`row_tuples`."""
FoundRows = tuple[Block, int, int]
"""Block and range of its rows."""
FoundRow = tuple[Block, int]
"""Block and index of a row."""

_BLOCK_ROWS = 1 << 16
_PIECE_BYTES = 512 << 10
"""Approximate size of adjacent small blocks that are searched together, because each search has a price."""
_BLOCK_INDEX_BYTES = 400
"""Size of the tuples that locate a block in memory, in bytes."""
_DENSE_KEYS_PER_BLOCK = 2
"""Number of keys per block from which all candidate blocks are read without a search."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Resources for reading runs, which the runs of a backend share."""

    files: RunBytes
    cache: BlockCache = field(default_factory=lambda: BlockCache(0))
    """Cache of single blocks; by default none is cached."""
    settings: ArrowStateSettings = field(default_factory=ArrowStateSettings)


class SortedRun(ABC):
    """Immutable sequence of blocks with distinct sort keys, in ascending order. Several threads may read it."""

    raw_bytes: int
    """Approximate size of the rows in memory, in bytes."""
    deletions: int
    """Number of tombstones."""
    partials: int
    """Number of rows that are combined with older ones of their keys."""
    has_namespaces: bool
    """Whether the rows have a namespace column."""
    block_key_groups: Any
    """Key group of the first row of each block, as a numpy array."""
    block_last_key_groups: Any
    """Key group of the last row of each block, as a numpy array."""
    block_rows: Any
    """Number of rows of each block, as a numpy array."""

    @property
    @abstractmethod
    def firsts(self) -> Sequence[tuple[Any, ...]]:
        """The sort key of the first row of each block, or its start."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.block_rows.sum())

    @abstractmethod
    def block(self, number: int) -> Block:
        """Return one block. A run in files reads it with one range read, and caches it."""

    @abstractmethod
    def tables(self, numbers: Sequence[int]) -> list[Any]:
        """Return several blocks as tables. Those of a file are not cached, and adjacent ones share a range read."""

    @abstractmethod
    def each_table(self, numbers: Sequence[int]) -> Iterator[Any]:
        """Return what :meth:`tables` returns, one by one; blocks of an object store are read ahead, a few at a time."""

    def pieces(self, numbers: Sequence[int]) -> Iterator[tuple[list[int], list[Any]]]:
        """Return blocks and their tables as :meth:`each_table` does, adjacent small ones together."""
        tables, rows = self.each_table(numbers), self.block_rows[list(numbers)]
        per_piece = max(1, _PIECE_BYTES * self.num_rows // max(1, self.raw_bytes))
        for _, members in groupby(zip(numbers, (np.cumsum(rows) // per_piece).tolist(), strict=True), lambda m: m[1]):
            piece = [number for number, _ in members]
            yield piece, list(islice(tables, len(piece)))


class FileRun(SortedRun):
    """
    Run in one or more files.

    :param run_files: Files in ascending order.
    :param form: Conversion of rows to the current types.
    """

    def __init__(self, run_files: RunFiles, reading: Reading, form: RowForm) -> None:
        self.run_files = run_files
        self._files = reading.files
        self._cache = reading.cache
        self._form = form
        self.raw_bytes = sum(run_file.raw_bytes for run_file in run_files)
        self.deletions = sum(form.deletions(run_file) for run_file in run_files)
        self.partials = sum(run_file.partials for run_file in run_files)
        self.is_current = all(form.is_current(run_file) for run_file in run_files)
        self.has_namespaces = any(NAMESPACE in run_file.schema.names for run_file in run_files)
        self._parquet: dict[str, RowGroups] = {}

    @cached_property
    def _block_locations(self) -> list[tuple[int, int]]:
        return [(i, j) for i, run_file in enumerate(self.run_files) for j in range(len(run_file.blocks))]

    @cached_property
    def firsts(self) -> Sequence[tuple[Any, ...]]:
        tables: Iterable[Any] = map(self._form.firsts, self.run_files)
        if self.has_namespaces:
            tables = map(with_namespaces, tables)
        return list(chain.from_iterable(row_tuples(position_columns(table)) for table in tables))

    @cached_property
    def block_key_groups(self) -> Any:
        return np.concatenate([run_file.key_groups for run_file in self.run_files])

    @property
    def block_last_key_groups(self) -> Any:
        return self.block_key_groups

    @cached_property
    def block_rows(self) -> Any:
        return np.concatenate([run_file.blocks["rows"] for run_file in self.run_files]).astype(np.int64)

    @cached_property
    def _block_keys(self) -> list[BlockKey]:
        return [key for run_file in self.run_files for key in self._keys_of(run_file)]

    def _keys_of(self, run_file: RunFile) -> Iterator[BlockKey]:
        # A block may have a namespace column in one run and none in another. Migrated rows depend on their form.
        form = None if self._form.is_current(run_file) else self._form
        # A path in metadata may be forged, so the file itself identifies the bytes.
        source = _source_of(run_file.handle)
        for offset in run_file.offsets.tolist():
            yield source, offset, self.has_namespaces, form

    @property
    def index_bytes(self) -> int:
        """The approximate size of the index of the blocks in memory, in bytes."""
        sizes: int = sum(run_file.firsts.nbytes + run_file.blocks.nbytes for run_file in self.run_files)
        return sizes + sum(_BLOCK_INDEX_BYTES + sum(map(getsizeof, first)) for first in self.firsts)

    @cached_property
    def bytes_per_block(self) -> int:
        """The approximate size of a block in memory, in bytes."""
        return self.raw_bytes // max(1, len(self.block_rows))

    def blocks_of(self, target: Target) -> Sequence[int]:
        """Return the numbers of the blocks that may have rows of a target."""
        position = target.position_in(self)
        return () if position is None else blocks_at(self, position)

    def block(self, number: int) -> Block:
        return self._cache.get_or_load(self._block_keys[number], lambda: Block(self.tables([number])[0]))

    def blocks(self, numbers: Sequence[int]) -> dict[int, Block]:
        """Return several blocks, in ascending order. Blocks that are not cached are read together."""
        keys = self._block_keys
        found = {number: self._cache.get(keys[number]) for number in numbers}
        missing = [number for number, block in found.items() if block is None]
        # A table may refer to the bytes that were read, and a cached one would keep its whole range in memory.
        read = {number: Block(table) for number, table in zip(missing, self._tables(missing, bytes), strict=True)}
        for number, block in read.items():
            self._cache.put(keys[number], block)
        return {number: block or read[number] for number, block in found.items()}

    def tables(self, numbers: Sequence[int]) -> list[Any]:
        return self._tables(numbers, memoryview)

    def each_table(self, numbers: Sequence[int]) -> Iterator[Any]:
        files = list(self._rows_of_files(numbers))
        found = self._files.read_ahead((run_file.handle, _pieces_of(run_file, rows)) for run_file, rows in files)
        for run_file, rows in files:
            yield from self._decoded(run_file, rows, islice(found, len(rows)))

    def _rows_of_files(self, numbers: Sequence[int]) -> Iterator[tuple[RunFile, list[int]]]:
        locations = (self._block_locations[number] for number in numbers)
        for index, members in groupby(locations, key=lambda location: location[0]):
            yield self.run_files[index], [row for _, row in members]

    def all_tables(self) -> Iterator[Any]:
        """Return all blocks as tables."""
        return self.each_table(range(len(self.block_rows)))

    def _tables(self, numbers: Sequence[int], bytes_of: Callable[[memoryview], Any]) -> list[Any]:
        return [table for each in self._rows_of_files(numbers) for table in self._read(*each, bytes_of)]

    def _read(self, run_file: RunFile, rows: list[int], bytes_of: Callable[[memoryview], Any]) -> list[Any]:
        found = map(bytes_of, self._files.read(run_file.handle, _pieces_of(run_file, rows)))
        return list(self._decoded(run_file, rows, found))

    def _decoded(self, run_file: RunFile, rows: list[int], found: Iterable[memoryview | bytes]) -> Iterator[Any]:
        decode = _batch_of if run_file.footer is None else self._row_groups(run_file).rows
        tables = (_verified(run_file, row, data, decode) for row, data in zip(rows, found, strict=True))
        return (self._form.rows(run_file, table, namespace=self.has_namespaces) for table in tables)

    def _row_groups(self, run_file: RunFile) -> RowGroups:
        if run_file.path not in self._parquet:
            self._parquet[run_file.path] = RowGroups.of(run_file, self._files)
        return self._parquet[run_file.path]


def _pieces_of(run_file: RunFile, rows: list[int]) -> list[Piece]:
    return [run_file.blocks[row].item()[:2] for row in rows]


def _source_of(handle: StreamStateHandle) -> Any:
    if isinstance(handle, ByteStreamStateHandle):
        return hashlib.sha256(handle.data).digest()  # the key of a block must not keep all of them in memory
    return handle.uri if isinstance(handle, FileStateHandle) else handle


def _verified(run_file: RunFile, row: int, data: memoryview | bytes, decode: Callable[[RunFile, int, Any], Any]) -> Any:
    block = run_file.blocks[row]
    if len(data) != block["length"] or zlib.crc32(data) != block["checksum"]:
        raise corrupt_run_file(run_file, f"rows at offset {block['offset']}", "bytes that do not match the checksum")
    try:
        # The checksum covers all bytes, which makes further validation unnecessary.
        return decode(run_file, row, data)
    except (pa.ArrowException, OSError, LookupError) as error:
        raise corrupt_run_file(run_file, f"rows at offset {block['offset']}", f"other data ({error!r})") from error


def _batch_of(run_file: RunFile, row: int, data: memoryview | bytes) -> Any:
    return pa.Table.from_batches([decoded_batch(data, run_file.schema, "a block of state")])


class MemoryRun(SortedRun):
    """
    Run in memory.

    :param tables: Non-empty tables in ascending order.
    """

    def __init__(self, tables: Sequence[Any]) -> None:
        self.tables_in_order = tuple(tables)
        pieces = (t.slice(start, _BLOCK_ROWS) for t in tables for start in range(0, t.num_rows, _BLOCK_ROWS))
        self._blocks = [Block(piece) for piece in pieces]
        self.raw_bytes = sum(block.nbytes for block in self._blocks)
        self.deletions = sum(block.num_deleted for block in self._blocks)
        self.partials = sum(block.num_partial for block in self._blocks)
        self.has_namespaces = any(NAMESPACE in block.table.schema.names for block in self._blocks)

    @cached_property
    def firsts(self) -> Sequence[tuple[Any, ...]]:
        return [row_tuples(position_columns(block.table.slice(0, 1)))[0] for block in self._blocks]

    @cached_property
    def block_key_groups(self) -> Any:
        return np.array([_key_group(block.table, 0) for block in self._blocks], np.int32)

    @cached_property
    def block_last_key_groups(self) -> Any:
        return np.array([_key_group(block.table, -1) for block in self._blocks], np.int32)

    @cached_property
    def block_rows(self) -> Any:
        return np.array([block.table.num_rows for block in self._blocks], np.int64)

    def block(self, number: int) -> Block:
        return self._blocks[number]

    def tables(self, numbers: Sequence[int]) -> list[Any]:
        return [self._blocks[number].table for number in numbers]

    def each_table(self, numbers: Sequence[int]) -> Iterator[Any]:
        return iter(self.tables(numbers))


def _key_group(table: Any, row: int) -> int:
    return int(table.column(KEY_GROUP)[row].as_py())


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """Rows of some keys."""

    rows: Any
    """Arrow table."""
    keys: Any
    """Index of the key of each row, as a numpy array."""


def find_rows(layout: StateLayout, run: SortedRun, keys: KeyBatch) -> Iterator[MatchedRows]:
    """Return the rows of the keys in a run, in all namespaces and including tombstones."""
    groups = single(keys.key_groups).to_numpy()
    for blocks, tables in run.pieces(_candidate_blocks(run, keys, groups)):
        start = int(np.searchsorted(groups, run.block_key_groups[blocks[0]], "left"))
        end = int(np.searchsorted(groups, run.block_last_key_groups[blocks[-1]], "right"))
        table = _joined(layout, run, tables)
        wanted = tuple(single(column).slice(start, end - start) for column in keys.columns)
        indexes = _key_indexes([single(table.column(name)) for name in layout.key_names], wanted)
        rows = np.flatnonzero(indexes >= 0)
        if len(rows):
            yield MatchedRows(table.take(pa.array(rows)), indexes[rows] + start)


def _joined(layout: StateLayout, run: SortedRun, tables: Sequence[Any]) -> Any:
    deleted, partial = (any(name in table.schema.names for table in tables) for name in (DELETED, PARTIAL))
    conformed = [layout.conform(t, namespace=run.has_namespaces, deleted=deleted, partial=partial) for t in tables]
    return pa.concat_tables(conformed).combine_chunks()


def _candidate_blocks(run: SortedRun, keys: KeyBatch, groups: Any) -> list[int]:
    """Return the blocks that may contain one of the keys."""
    first, last = run.block_key_groups, run.block_last_key_groups
    counts = np.searchsorted(groups, last, "right") - np.searchsorted(groups, first, "left")
    candidates = np.flatnonzero(counts > 0)
    if len(groups) >= _DENSE_KEYS_PER_BLOCK * len(candidates):
        return candidates.tolist()
    blocks: set[int] = set()
    columns = (run_file for column in (keys.key_groups, *keys.columns) for run_file in order_columns(single(column)))
    for position in row_tuples(list(columns)):
        blocks.update(blocks_at(run, position))
    return sorted(blocks)


def blocks_at(run: SortedRun, position: tuple[Any, ...]) -> range:
    """Return the blocks that may contain rows whose sort key is equal to, or starts with, a position."""
    firsts, length = run.firsts, len(position)
    start = max(0, bisect_right(firsts, position) - 1)
    if run.block_last_key_groups[start] < position[0]:
        start += 1
    end = start
    while end < len(firsts) and firsts[end][:length] <= position:
        end += 1
    return range(start, end)


def _key_indexes(columns: Sequence[Any], wanted: Sequence[Any]) -> Any:
    """Return the index of the key of each row, -1 for other keys. The wanted keys are distinct."""
    if len(columns) == 1:
        found = pc.index_in(columns[0], value_set=wanted[0])
        return found.fill_null(-1).to_numpy(zero_copy_only=False).astype("int64")
    joined = (pa.concat_arrays(pair) for pair in zip(columns, wanted, strict=True))
    codes = order_codes([run_file for column in joined for run_file in order_columns(column)])
    rows, keys = np.split(codes, [len(columns[0])])
    order = np.argsort(keys)
    ranks = np.minimum(np.searchsorted(keys, rows, sorter=order), len(keys) - 1)
    return np.where(keys[order[ranks]] == rows, order[ranks], -1)


class Target(NamedTuple):
    """Rows to find."""

    key: Position
    """Key group and key."""
    namespace: str = VOID_NAMESPACE
    user_key: Position = ()
    """User key of a map entry; empty for all entries of a map, and for other states."""

    def position_in(self, run: SortedRun) -> Position | None:
        """Return the start of the sort key of the rows in a run, ``None`` if it has no rows of the namespace."""
        if run.has_namespaces:
            return (*self.key, self.namespace, *self.user_key)
        return (*self.key, *self.user_key) if self.namespace == VOID_NAMESPACE else None


class PositionEncoder:
    """
    Conversion of keys and user keys to sort keys.

    :param user_keys: Serializer of the user keys; ``None`` unless the state is a map.
    """

    def __init__(self, keys: KeySerializer, user_keys: TypeSerializer[Any] | None) -> None:
        self._keys = keys
        self._user_keys = user_keys
        self._is_scalar = len(keys.fields) == 1
        # Python values of these types have the same order as rows.
        plain = (pa.types.is_integer, pa.types.is_string, pa.types.is_binary)
        self._is_naturally_ordered = all(any(test(each) for test in plain) for each in keys.arrow_types)

    def key(self, key: Any, key_group: int) -> Position:
        """Return the start of the sort key of a normalized key."""
        if self._is_naturally_ordered:
            return (key_group, key) if self._is_scalar else (key_group, *key)
        columns = [
            run_file for column in self._keys.to_columns_of_normalized([key]) for run_file in order_columns(column)
        ]
        return (key_group, *row_tuples(columns)[0])

    def user_key(self, user_key: Any) -> Position:
        """
        Return the end of the sort key of a map entry.

        :raises UnsupportedStateError: if the user key does not fit its type.
        """
        assert self._user_keys is not None  # noqa: S101 - the state is a map
        return row_tuples(order_columns(self._user_keys.to_arrow([user_key]), nullable=True))[0]


def rows_in(run: SortedRun, target: Target) -> Iterator[FoundRows]:
    """Return the rows of a target in a run, including tombstones."""
    position = target.position_in(run)
    if position is not None:
        for number in blocks_at(run, position):
            yield from _rows_at(run.block(number), position)


def rows_of_each(run: FileRun, targets: Sequence[Target]) -> list[list[FoundRows]]:
    """
    Return the rows of each target in a run, including tombstones.

    Each block is read once, adjacent ones together.
    """
    positions = [target.position_in(run) for target in targets]
    numbers = [run.blocks_of(target) for target in targets]
    blocks = run.blocks(sorted(set(chain.from_iterable(numbers))))
    return [
        [rows for number in members for rows in _rows_at(blocks[number], position or ())]
        for position, members in zip(positions, numbers, strict=True)
    ]


def current_row(layout: StateLayout, runs: Sequence[SortedRun], target: Target) -> FoundRow | None:
    """
    Return the current version of a row as a block and the index of the row, ``None`` if it is absent or removed.

    :param runs: Runs, newest first.
    :raises UnsupportedStateError: if the row is combined, and a sum is too large for its type.
    """
    versions: list[FoundRow] = []
    for run in runs:
        found = next(rows_in(run, target), None)
        if found is not None:
            versions.append(found[:2])
            if not found[0].is_partial(found[1]):
                break
    return _current(layout, versions)


def current_rows(layout: StateLayout, runs: Sequence[FileRun], targets: Sequence[Target]) -> list[FoundRow | None]:
    """
    Return what :func:`current_row` returns for each target. Each block is read once, adjacent ones together.

    :param runs: Runs, newest first.
    """
    if len(targets) == 1:
        return [current_row(layout, runs, targets[0])]
    versions: list[list[FoundRow]] = [[] for _ in targets]
    missing = list(range(len(targets)))
    for run in runs:
        rows = rows_of_each(run, [targets[index] for index in missing])
        for index, found in zip(missing, rows, strict=True):
            versions[index] += [each[:2] for each in found[:1]]
        missing = [index for index in missing if not versions[index] or _is_partial(versions[index][-1])]
    return [_current(layout, each) for each in versions]


def _is_partial(found: FoundRow) -> bool:
    block, row = found
    return block.is_partial(row)


def _current(layout: StateLayout, versions: Sequence[FoundRow]) -> FoundRow | None:
    """Return the current one of the versions of a row, newest first."""
    if len(versions) > 1:
        tables = [block.table.slice(row, 1) for block, row in versions]
        conformed = [layout.conform(table, namespace=True, deleted=True, partial=True) for table in tables]
        return Block(merge_tables(layout, conformed)), 0
    return next((None if block.is_deleted(row) else (block, row) for block, row in versions), None)


def _rows_at(block: Block, position: Position) -> Iterator[FoundRows]:
    start, end = block.find(position)
    if start < end:
        yield block, start, end
