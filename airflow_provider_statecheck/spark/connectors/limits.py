"""
Values that the target of a sink cannot hold, found in each batch before it is written.

A task checks its rows before it writes them: after a checkpoint, each retry would meet the same rows at its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import UnfitOutputError
from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.spark.connectors.sink import require_key_values, require_values
from airflow_provider_statecheck.spark.tables.partition_directories import NULL_PARTITION

_FIRST_DAY, _LAST_DAY = -719162, 2932896
"""0001-01-01 and 9999-12-31 as days since 1970."""
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
MAX_NAME_BYTES = 255
"""Limit of disks and HDFS for one name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values that a target cannot hold."""

    words: str
    """The values in words, as after *3 values*."""
    remedy: str
    """How the stage repairs or filters them."""
    concerns: Callable[[Any], bool]
    """Whether values of an Arrow type may be of this kind."""
    count: Callable[[Any], int]
    """Number of such values in an Arrow array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Values in a column, or in several together, that the target cannot hold."""

    columns: tuple[str, ...]
    shown: str
    """The columns for error messages."""
    words: str
    remedy: str
    count: Callable[..., int]
    """Number of such values in the columns, which are Arrow arrays."""
    path: str = ""
    """Names of the column and of its part, with dots; empty for several columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLimits:
    """
    What a target cannot hold.

    :param target: The target, for error messages.
    :param keys: Columns of upserts, in which each row needs a value.
    :param required: Columns that cannot be null in the target.
    """

    target: str
    keys: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()

    def require(self, table: Any) -> None:
        """
        Require rows that the target can hold.

        :param table: Arrow table with the rows to write.
        :raises UnfitOutputError: if it cannot; the message has the number of values by column and kind, and no value.
        """
        require_key_values(table, self.keys)
        require_values(table, self.required, self.target)
        found = self.violated(table)
        if found:
            raise self._error(found, table.num_rows)

    def violated(self, table: Any) -> list[tuple[Limit, int]]:
        """Return the limits that rows exceed, each with its number of values."""
        counted = ((each, each.count(*(table.column(name) for name in each.columns))) for each in self.limits)
        return [(limit, count) for limit, count in counted if count]

    def _error(self, found: Sequence[tuple[Limit, int]], rows: int) -> UnfitOutputError:
        parts = (
            f"{each.shown} has {count} {'value' if count == 1 else 'values'} {each.words}" for each, count in found
        )
        remedies = dict.fromkeys(each.remedy for each, _ in found)
        return UnfitOutputError(
            f"Expected output that {self.target} can hold, found in a batch of {counted(rows, 'row')}: "
            f"{'; '.join(parts)}. Repair the values in the stage ({'; '.join(remedies)}), filter their rows out, or "
            "write such rows to another target; nothing of the checkpoint was committed.",
            violations=[{"column": each.shown, "kind": each.words, "count": count} for each, count in found],
        )


def limits_of(schema: Any, kinds: Iterable[Kind]) -> tuple[Limit, ...]:
    """Return the limits of all columns of an Arrow schema, and of the parts of nested columns."""
    kinds = tuple(kinds)
    return tuple(
        Limit(
            columns=(field.name,),
            shown=f"column {'.'.join((field.name, *steps))!r}",
            path=".".join((field.name, *steps)),
            words=kind.words,
            remedy=kind.remedy,
            count=partial(_count_in, kind, steps),
        )
        for field in schema
        for steps, leaf in _leaves(field.type)
        for kind in kinds
        if kind.concerns(leaf)
    )


def _leaves(kind: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the steps to each part of a type that has no parts itself, and its type."""
    parts = _parts(kind)
    if not parts:
        yield (), kind
    for name, part in parts.items():
        for steps, leaf in _leaves(part):
            yield (name, *steps), leaf


def _parts(kind: Any) -> Mapping[str, Any]:
    types = pa.types
    if types.is_struct(kind):
        return {field.name: field.type for field in kind}
    if types.is_map(kind):
        return {"key": kind.key_type, "value": kind.item_type}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"element": kind.value_type}
    return {}


def _count_in(kind: Kind, steps: tuple[str, ...], values: Any) -> int:
    chunks = (chunk for chunk in values.chunks if chunk.null_count < len(chunk))
    parts = (_part_of(chunk, steps) for chunk in chunks)
    return sum(kind.count(part) for part in parts if len(part))


def _part_of(values: Any, steps: Sequence[str]) -> Any:
    for name in steps:
        if pa.types.is_map(values.type):
            values = _entries_of(values, values.keys if name == "key" else values.items)
        else:
            is_struct = pa.types.is_struct(values.type)
            values = values.flatten()[values.type.get_field_index(name)] if is_struct else values.flatten()
    return values


def _entries_of(maps: Any, entries: Any) -> Any:
    """Return the keys or values of maps; if the maps are a slice, PyArrow returns those of the whole array."""
    # A copy, because PyArrow takes no mask with a slice of offsets.
    offsets = pa.array(maps.offsets.to_numpy())
    return pa.ListArray.from_arrays(offsets, entries, mask=maps.is_null()).flatten()


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is one of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_day(kind: Any) -> bool:
    return bool(pa.types.is_date(kind))


def _is_timestamp(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind))


def _is_time(kind: Any) -> bool:
    return _is_day(kind) or _is_timestamp(kind)


def _count_outside(values: Any) -> int:
    kind = values.type
    per_day = 1 if pa.types.is_date32(kind) else _PER_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
    first, last = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1
    numbers = values.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is None or (bounds["min"] >= first and bounds["max"] <= last):
        return 0
    return number_of(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)))


def number_of(matches: Any) -> int:
    """Return how many values of an Arrow array of booleans are true."""
    return int(pc.sum(matches).as_py() or 0)


def _count_malformed(values: Any) -> int:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        found = values.cast(pa.large_binary()).to_pylist()
        return sum(1 for value in found if value is not None and not _is_encoded(value))
    return 0


def _is_encoded(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


OUTSIDE_OF_YEARS = Kind(
    "outside of the years 1 to 9999",
    "for example null where year(column) not between 1 and 9999",
    _is_time,
    _count_outside,
)
"""Days and times that Python, in which readers of the targets are written, does not know."""
DAYS_OUTSIDE_OF_YEARS = Kind(OUTSIDE_OF_YEARS.words, OUTSIDE_OF_YEARS.remedy, _is_day, _count_outside)
_TIMES_OUTSIDE_OF_YEARS = Kind(OUTSIDE_OF_YEARS.words, OUTSIDE_OF_YEARS.remedy, _is_timestamp, _count_outside)
MALFORMED = Kind("in invalid UTF-8", "make_valid_utf8(column), or keep them as binary", is_text, _count_malformed)
"""Texts of Spark may contain any bytes."""


def delta_limits(
    schema: Any,
    target: str,
    *,
    keys: Sequence[str] = (),
    required: Sequence[str] = (),
    partition_by: Sequence[str] = (),
) -> TargetLimits:
    """
    Return what a Delta table cannot hold.

    deltalake fails to read a table whose log has other days. Ours has none of them, but that of a later ``OPTIMIZE``
    would.

    :param keys: Key columns for upserts, which deltalake carries out; empty for appends.
    """
    partitions = (schema.field(name) for name in partition_by)
    limits = (
        *limits_of(schema, (DAYS_OUTSIDE_OF_YEARS, MALFORMED)),
        *limits_of(pa.schema([schema.field(name) for name in keys]), (_TIMES_OUTSIDE_OF_YEARS,)),
        *(
            limit
            for each in partitions
            for limit in limits_of([each], _partition_kinds(each.name, is_upserted=bool(keys)))
        ),
    )
    return TargetLimits(target=target, keys=tuple(keys), required=tuple(required), limits=limits)


def _partition_kinds(column: str, *, is_upserted: bool) -> tuple[Kind, ...]:
    null = Kind(f"equal to {NULL_PARTITION}, which stands for null", "replace them", is_text, _count_null_names)
    # The names that deltalake gives to directories are longer than ours, which are checked when files are named.
    long = Kind(
        f"with a directory whose name has more than {MAX_NAME_BYTES} bytes",
        "shorten them, or partition by another column",
        is_text,
        partial(_count_long_names, column),
    )
    return (null, long) if is_upserted else (null,)


def _count_null_names(values: Any) -> int:
    return number_of(pc.equal(values, NULL_PARTITION))


def _count_long_names(column: str, values: Any) -> int:
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    # Each byte of a name takes at most three characters.
    if 3 * (longest + len(column.encode())) + 1 <= MAX_NAME_BYTES:
        return 0
    found = (value for value in values.to_pylist() if value is not None)
    return sum(1 for value in found if len(f"{quote(column, safe='')}={quote(value, safe='')}") > MAX_NAME_BYTES)


def too_long(length: int) -> Kind:
    """Return the kind of texts with more characters than a column holds."""
    words = f"of more than {length} characters"
    return Kind(words, "shorten them, or widen the column", is_text, partial(_count_longer, length))


def _count_longer(length: int, values: Any) -> int:
    return number_of(pc.greater(pc.utf8_length(values), length))


def length_limits(schema: Any, lengths: Mapping[tuple[str, ...], int]) -> tuple[Limit, ...]:
    """
    Return the limits of texts of a target with limited lengths.

    :param lengths: Largest number of characters by the path of a column or of its part.
    """
    return tuple(
        limit
        for (column, *steps), length in lengths.items()
        if column in schema.names
        for limit in limits_of([schema.field(column)], (too_long(length),))
        if limit.path == ".".join((column, *steps))
    )


def iceberg_limits(schema: Any, target: str, *, keys: Sequence[str], required: Sequence[str]) -> TargetLimits:
    """Return what an Iceberg table cannot hold: PyIceberg cannot compute the bounds and partitions of other values."""
    limits = limits_of(schema, (OUTSIDE_OF_YEARS, MALFORMED))
    return TargetLimits(target=target, keys=tuple(keys), required=tuple(required), limits=limits)


def null_collections(schema: Any) -> tuple[Limit, ...]:
    """Return the lists and maps of structs that cannot be null: PyIceberg writes, and reads, null as an empty one."""
    return tuple(
        Limit(
            columns=(field.name,),
            shown=f"column {field.name!r}",
            words="of null in place of a list or map of structs",
            remedy=f"for example coalesce({field.name}, array())",
            count=lambda values: sum(_null_collections(chunk) for chunk in values.chunks),
        )
        for field in schema
        if _parts(field.type)
    )


def _null_collections(values: Any) -> int:
    types, kind = pa.types, values.type
    if types.is_struct(kind):
        given = values.filter(values.is_valid())
        return sum(_null_collections(given.field(position)) for position in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind):
        return int(values.null_count * types.is_struct(kind.value_type)) + _null_collections(values.flatten())
    if types.is_map(kind):
        # A slice has the items of the whole array.
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        items = values.items.slice(first, last - first)
        return int(values.null_count * types.is_struct(kind.item_type)) + _null_collections(items)
    return 0


def parquet_limits(schema: Any, target: str, *, partition_by: Sequence[str]) -> TargetLimits:
    """
    Return what a directory of Parquet files cannot hold: other values have no directory that all readers understand.
    """
    partitions = pa.schema([schema.field(name) for name in partition_by])
    return TargetLimits(target=target, limits=limits_of(partitions, (OUTSIDE_OF_YEARS, MALFORMED)))
