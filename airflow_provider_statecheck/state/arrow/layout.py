"""
Columns and order of the rows of a state, blocks in memory, and settings of the backend.

The order is that of Arrow: ascending by each column, with NaN after all numbers and null last. Structs are ordered by
their fields. Lists, which Arrow cannot sort, are ordered by their Python representation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from airflow_provider_statecheck.cached_reads import LruCache
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.config_options import parse_size, parse_whole_number
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.combining.records import Combination
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer

KEY_GROUP = "key_group"
NAMESPACE = "namespace"
USER_KEY = "user_key"
VALUE = "value"
DELETED = "deleted"
PARTIAL = "partial"
KEY_PREFIX = "k_"
"""Prefix of key columns, which keeps their names apart from other columns."""


def key_names_of(keys: KeySerializer) -> tuple[str, ...]:
    """Return the names of the key columns of a state."""
    return tuple(KEY_PREFIX + field.name for field in keys.fields)


@dataclass(frozen=True)
class StateLayout:
    """
    Columns of a state: one row per key and namespace, or per map entry.

    ``namespace``, ``deleted`` and ``partial`` are left out if no row needs them. A partial row is combined with the
    older rows of its key, down to the first that is not partial; any other row replaces them.
    """

    key_fields: tuple[tuple[str, Any], ...]
    """Name and Arrow type of each key column."""
    value_type: Any
    user_key_type: Any = None
    """Arrow type of the user keys; ``None`` unless the state is a map."""
    combination: Combination = ()
    """How the values of partial rows are combined; empty for a state without such rows."""

    @classmethod
    def of(
        cls, keys: KeySerializer, value_type: Any, user_key_type: Any = None, combination: Combination = ()
    ) -> StateLayout:
        """Return the layout of a state with the keys of a serializer."""
        key_fields = tuple(zip(key_names_of(keys), keys.arrow_types, strict=True))
        return cls(key_fields, value_type, user_key_type, combination)

    def schema(self, *, namespace: bool, deleted: bool, partial: bool = False) -> Any:
        """Return the Arrow schema of the rows."""
        fields = [(KEY_GROUP, pa.int32()), *self.key_fields]
        fields += [(NAMESPACE, pa.string())] if namespace else []
        fields += [] if self.user_key_type is None else [(USER_KEY, self.user_key_type)]
        fields += [(VALUE, self.value_type)]
        fields += [(DELETED, pa.bool_())] if deleted else []
        fields += [(PARTIAL, pa.bool_())] if partial else []
        return pa.schema(fields)

    def conform(self, table: Any, *, namespace: bool, deleted: bool, partial: bool | None = None) -> Any:
        """
        Return rows with the given optional columns, filled with the void namespace and ``False``.

        :param partial: Whether to have the column of partial rows; by default if the table has it.
        """
        partial = PARTIAL in table.schema.names if partial is None else partial
        schema = self.schema(namespace=namespace, deleted=deleted, partial=partial)
        if table.schema.names == schema.names:
            return table
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        if namespace and NAMESPACE not in columns:
            columns[NAMESPACE] = pa.repeat(pa.scalar("", pa.string()), table.num_rows)
        for name in (DELETED, PARTIAL):
            columns.setdefault(name, pa.repeat(pa.scalar(False), table.num_rows))
        return pa.table([columns[name] for name in schema.names], schema=schema)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(name for name, _ in self.key_fields)


def position_names(names: list[str]) -> list[str]:
    """Return the names of the sort key columns."""
    return [name for name in names if name not in {VALUE, DELETED, PARTIAL}]


def position_columns(table: Any) -> list[Any]:
    """Return the sort key of the rows as order columns, see :func:`order_columns`."""
    columns = []
    for name in position_names(table.schema.names):
        columns += order_columns(single(table.column(name)), nullable=name == USER_KEY)
    return columns


def with_namespaces(positions: Any) -> Any:
    """Return sort keys with a namespace column, filled with the void namespace."""
    names = positions.schema.names
    if NAMESPACE in names:
        return positions
    void = pa.repeat(pa.scalar("", pa.string()), positions.num_rows)
    return positions.add_column(len(names) - (USER_KEY in names), NAMESPACE, void)


def single(column: Any) -> Any:
    """Return a column as one Arrow array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


_MAX_CODE_BITS = 62


def order_columns(array: Any, *, nullable: bool = False) -> list[Any]:
    """
    Return non-null columns of numbers, strings, bytes or decimals with the sort order of an Arrow array.

    :param nullable: Whether the array may contain nulls; a separate column then marks them.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not nullable:
        return _non_null_columns(array)
    nulls = array.is_null().cast(pa.int8())
    return [nulls, *_non_null_columns(array)]


def _non_null_columns(array: Any) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        return [column for child in array.flatten() for column in order_columns(child, nullable=True)]
    if pa.types.is_null(kind):
        return []
    return [_without_nulls(_comparable(array))]


def _comparable(array: Any) -> Any:
    kind = array.type
    if pa.types.is_floating(kind):
        return _ordered_floats(array)
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8())
    if pa.types.is_temporal(kind):
        return array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return array.cast(pa.binary())
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        # Arrow cannot sort these.
        return array.cast(pa.decimal128(kind.precision, kind.scale))
    if pa.types.is_nested(kind):
        return pa.array([repr(_with_one_zero(value)) for value in array.to_pylist()], pa.string())
    return array


def _with_one_zero(value: Any) -> Any:
    # Values that Python considers equal need one position, or an entry could not be found again.
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {name: _with_one_zero(each) for name, each in value.items()}
    return type(value)(map(_with_one_zero, value)) if isinstance(value, list | tuple) else value


def _ordered_floats(array: Any) -> Any:
    values = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    values = np.where(np.isnan(values), np.nan, values) + 0.0
    bits = values.view(np.int64)
    return pa.array(np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits))


def _without_nulls(array: Any) -> Any:
    if array.null_count == 0:
        return array
    kind = array.type
    if pa.types.is_integer(kind):
        placeholder: Any = 0
    elif pa.types.is_decimal(kind):
        placeholder = pa.scalar(0).cast(kind)
    else:
        placeholder = "" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else b""
    return array.fill_null(placeholder)


def row_tuples(columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of order columns as tuples with the same order."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def order_codes(columns: Sequence[Any]) -> Any:
    """
    Return one integer per row with the order and equality of the rows.

    Codes of different calls are not comparable.
    """
    codes, bits = np.zeros(len(columns[0]), np.int64), 0
    for column in columns:
        numbers, width = _offset_from_minimum(_numbers(column))
        if bits + width > _MAX_CODE_BITS:
            codes, bits = _ranked(codes)
        if bits + width > _MAX_CODE_BITS:
            numbers, width = _ranked(numbers)
        codes = (codes << np.int64(width)) | numbers if width else codes
        bits += width
    return codes


def _numbers(column: Any) -> Any:
    if pa.types.is_integer(column.type) and column.type != pa.uint64():
        return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    encoded = column.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    return ranks[encoded.indices.to_numpy()]


def _offset_from_minimum(numbers: Any) -> tuple[Any, int]:
    if len(numbers) == 0:
        return numbers, 0
    minimum, maximum = int(numbers.min()), int(numbers.max())
    width = (maximum - minimum).bit_length()
    return _ranked(numbers) if width > _MAX_CODE_BITS else (numbers - minimum, width)


def _ranked(numbers: Any) -> tuple[Any, int]:
    distinct, ranks = np.unique(numbers, return_inverse=True)
    return ranks.astype(np.int64, copy=False), (len(distinct) - 1).bit_length()


_NON_HEAD_COLUMNS = (USER_KEY, VALUE, DELETED, PARTIAL)


def count_owners(tables: Iterable[Any]) -> int:
    """Return the number of pairs of key and namespace in sorted tables."""
    return sum(heads.num_rows for heads in distinct_heads(tables))


def distinct_heads(tables: Iterable[Any]) -> Iterator[Any]:
    """Return the distinct key and namespace columns of sorted tables."""
    last = None
    for table in tables:
        if table.num_rows:
            heads = table.select([name for name in table.schema.names if name not in _NON_HEAD_COLUMNS])
            columns = position_columns(heads)
            yield heads.filter(_row_starts(columns, last))
            last = row_tuples([column.slice(len(column) - 1) for column in columns])[0]


def _row_starts(columns: list[Any], last: tuple[Any, ...] | None) -> Any:
    """
    Return a mask of rows that differ from the row before.

    :param last: Row before the first one, or ``None``.
    """
    length = len(columns[0])
    starts = np.zeros(length, bool)
    for column in columns:
        differs = pc.not_equal(column.slice(1), column.slice(0, length - 1))
        starts[1:] |= differs.to_numpy(zero_copy_only=False)
    starts[0] = row_tuples([column.slice(0, 1) for column in columns])[0] != last
    return pa.array(starts)


_BLOCK_OVERHEAD = 4096
"""Size of the objects of a cached block besides its columns, in bytes."""
BlockKey = tuple[Any, ...]
"""
Identity of a block: the file and the offset in it, and everything that determines the columns and types of the rows.
"""


class Block:
    """
    Sorted rows in memory.

    :param table: Arrow table or record batch.
    """

    def __init__(self, table: Any) -> None:
        self.table = table
        self.nbytes: int = table.nbytes

    @cached_property
    def _positions(self) -> tuple[Sequence[Any], ...]:
        return tuple(_searchable(column) for column in self._order_columns)

    @cached_property
    def _order_columns(self) -> list[Any]:
        return position_columns(self.table)

    @cached_property
    def _deleted(self) -> Any:
        return self._marks(DELETED)

    @cached_property
    def _partial(self) -> Any:
        return self._marks(PARTIAL)

    def _marks(self, name: str) -> Any:
        return single(self.table.column(name)) if name in self.table.schema.names else None

    @cached_property
    def values(self) -> Any:
        """The value column."""
        return single(self.table.column(VALUE))

    @property
    def cached_nbytes(self) -> int:
        """The size in a cache in bytes, with the order columns that are computed for searches."""
        shared = {_address(single(column)) for column in self.table.columns}
        computed = [int(column.nbytes) for column in self._order_columns if _address(column) not in shared]
        return self.nbytes + sum(computed) + _BLOCK_OVERHEAD

    def find(self, position: tuple[Any, ...]) -> tuple[int, int]:
        """Return the range of rows whose sort key is equal to, or starts with, a position."""
        low, high = 0, self.table.num_rows
        for column, wanted in zip(self._positions, position, strict=False):
            low = bisect_left(column, wanted, low, high)
            if low == high or column[low] != wanted:
                return low, low
            if column[high - 1] != wanted:
                high = bisect_right(column, wanted, low, high)
        return low, high

    @property
    def num_deleted(self) -> int:
        """The number of tombstones."""
        return 0 if self._deleted is None else int(self._deleted.true_count)

    def is_deleted(self, row: int) -> bool:
        """Return whether a row is a tombstone."""
        return self._deleted is not None and bool(self._deleted[row].as_py())

    @property
    def num_partial(self) -> int:
        """The number of partial rows."""
        return 0 if self._partial is None else int(self._partial.true_count)

    def is_partial(self, row: int) -> bool:
        """Return whether a row is combined with the older ones of its key."""
        return self._partial is not None and bool(self._partial[row].as_py())


class BlockCache(LruCache[BlockKey, Block]):
    """
    LRU cache of blocks, safe for threads.

    :param capacity_bytes: Maximum size of all cached blocks in bytes.
    """

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes, lambda block: block.cached_nbytes)


class _ArrowSequence:
    """Arrow array as a sequence for ``bisect``."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getitem__(self, row: int) -> Any:
        return self._array[row].as_py()

    def __len__(self) -> int:
        return len(self._array)


def _address(column: Any) -> Any:
    last = column.buffers()[-1]
    return None if last is None else last.address


def _searchable(column: Any) -> Any:
    # The items of a memory view are Python integers, which bisect compares without conversion.
    return memoryview(column.to_numpy()) if pa.types.is_integer(column.type) else _ArrowSequence(column)


_COMPRESSIONS = ("lz4", "zstd", None)
PREFIX = "state.backend.arrow."
_SIZES = ("block_bytes", "part_bytes", "memtable_bytes", "cache_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowStateSettings:
    """
    Sizes and compression of state files.

    :raises InvalidConfigurationError: for a size below 1, or an unknown compression.
    """

    block_rows: int = 4096
    """Maximum number of rows in a block. Reading one key fetches one block."""
    block_bytes: int = 1 << 20
    """Approximate maximum size of a block with large values."""
    part_bytes: int = 32 << 20
    """Approximate size of a file."""
    compression: str | None = "lz4"
    """Compression of the files: ``lz4``, ``zstd`` or ``none``."""
    memtable_bytes: int = 64 << 20
    """
    Estimated size of changes since the last snapshot that are buffered in memory. The rest is spilled to local files.
    """
    cache_bytes: int = 32 << 20
    """Size of the cache for reads of single keys."""

    def __post_init__(self) -> None:
        for name in ("block_rows", *_SIZES):
            require(name, getattr(self, name), lambda size: size >= 1, "at least 1")
        require("the compression of state", self.compression, _COMPRESSIONS.__contains__, "lz4, zstd or None")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """
        Return the settings of a configuration, with keys such as ``state.backend.arrow.block-rows``.

        :raises InvalidConfigurationError: for an unknown or invalid setting.
        """
        names = {PREFIX + name.replace("_", "-"): name for name in ("block_rows", *_SIZES, "compression")}
        for key in config:
            if key.startswith(PREFIX) and key not in names:
                raise InvalidConfigurationError(
                    f"Expected one of {', '.join(names)}, found {key}; correct or remove it.", key=key
                )
        return cls(
            **{name: _parse(name, key, config[key]) for key, name in names.items() if config.get(key) is not None}
        )


def _parse(name: str, key: str, value: Any) -> Any:
    if name == "compression":
        return None if str(value).lower() == "none" else str(value).lower()
    return parse_size(key, value) if name in _SIZES else parse_whole_number(key, value)
