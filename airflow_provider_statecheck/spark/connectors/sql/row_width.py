"""
Widths of rows of PostgreSQL, each within a page, with only long values elsewhere.

The widths are those that a row has at least, in the order of the columns, with their alignment.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.spark.connectors.limits import Limit, is_text, number_of
from airflow_provider_statecheck.spark.connectors.sink import CHECKPOINT, LINEAGE, ROW
from airflow_provider_statecheck.spark.connectors.sql.loading import LINEAGE_LENGTH, name_preparer

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_LAYOUT = """
SELECT CAST(attname AS TEXT), attlen, CAST(attalign AS TEXT), CAST(attstorage AS TEXT) = 'p', attnotnull, attisdropped
FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0 ORDER BY attnum
"""
_BLOCK_SIZE = "SELECT current_setting('block_size')"
_ALIGNMENTS = {"c": 1, "s": 2, "i": 4, "d": 8}
_PAGE_HEADER, _HEADER, _ALIGNED = 32, 23, 8
_ELSEWHERE, _MOST_INSIDE = 18, 24
"""Bytes of the reference to a value outside of the page, and of the longest value that is never moved there."""
_PLAIN_HEADER = 4
_GROUP, _LARGEST_PRECISION = 4, 76
"""Decimal digits of a digit of PostgreSQL's numbers, and of the longest number of Arrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    name: str
    width: int | None = None
    """Bytes of each value; ``None`` if they have different lengths."""
    alignment: int = 1
    is_plain: bool = False
    """Whether PostgreSQL never moves its values elsewhere."""
    is_given: bool = False
    """Whether each row has a value."""

    @property
    def least(self) -> int:
        return self.width if self.width is not None else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """
    Columns of a table, in their order, and the largest row.

    :param written: Columns of the output.
    """

    columns: tuple[_Column, ...]
    written: tuple[str, ...]
    most: int

    @classmethod
    def of(cls, connection: Connection, table: Table, never_null: Collection[str]) -> RowLayout:
        """
        Return the layout of an existing table.

        :param table: Table with the columns of the output, including the marks.
        :param never_null: Columns whose values are never null.
        """
        from sqlalchemy import text

        block_bytes = int(connection.execute(text(_BLOCK_SIZE)).scalar_one())
        found = connection.execute(text(_LAYOUT), {"name": name_preparer().format_table(table)})
        marks = [name for name in (LINEAGE, CHECKPOINT) if name in table.columns]
        columns = tuple(
            _Column(
                name=name,
                width=LINEAGE_LENGTH + 1 if name in marks and length < 0 else length if length > 0 else None,
                alignment=_ALIGNMENTS[align] if length > 0 or is_plain else 1,
                is_plain=is_plain and length < 0,
                is_given=not is_dropped and (is_required or name in marks or name in never_null),
            )
            for name, length, align, is_plain, is_required, is_dropped in found
        )
        written = tuple(column.name for column in table.columns if column.name not in marks)
        return cls(columns=columns, written=written, most=block_bytes - _PAGE_HEADER)

    @property
    def staged(self) -> RowLayout:
        """The layout of the temporary table of an upsert."""
        known = {column.name: column for column in self.columns}
        marks = [name for name in (LINEAGE, CHECKPOINT) if name in known and known[name].is_given]
        columns = [
            replace(column, is_plain=False, alignment=column.alignment if column.width is not None else 1)
            for column in (known[name] for name in (*self.written, *marks))
        ]
        row = _Column(name=ROW, width=8, alignment=8, is_given=True)
        return RowLayout(columns=(*columns, row), written=self.written, most=self.most)

    @property
    def difference(self) -> str | None:
        """Why no row fits into the table; ``None`` if one may."""
        fixed = sum(column.least for column in self.columns if column.is_given)
        if _HEADER + fixed <= self.most:
            return None
        return f"its columns take {_HEADER + fixed} bytes at least, and a row has {self.most} at most"

    @property
    def may_be_too_wide(self) -> bool:
        """Whether any row could be larger than the largest row."""
        if any(column.is_plain for column in self.columns if column.name in self.written):
            return True
        wide = ((column.width or _MOST_INSIDE) + column.alignment - 1 for column in self.columns)
        return self._header(has_null=True) + sum(wide) > self.most

    def is_too_wide(self, values: Mapping[str, Any]) -> Any:
        """Return for each row whether it is too large."""
        first = next(iter(values.values()))
        end: Any = pa.array([0], pa.int64()).take(pa.nulls(len(first), pa.int32()).fill_null(0))
        has_null: Any = pa.nulls(len(first), pa.bool_()).fill_null(False)
        for column in self.columns:
            if column.name in values:
                widths = _widths(column, values[column.name])
                has_null = pc.or_(has_null, pc.is_null(widths))
            elif column.is_given:
                widths = pa.scalar(column.least, pa.int64())
            else:
                has_null = pc.or_(has_null, True)
                continue
            begin = pc.bit_wise_and(pc.add(end, column.alignment - 1), -column.alignment)
            end = pc.coalesce(pc.add(begin, widths), end)
        header = pc.if_else(has_null, self._header(has_null=True), self._header(has_null=False))
        return pc.greater(pc.add(header, end), self.most)

    def _header(self, *, has_null: bool) -> int:
        size = _HEADER + ((len(self.columns) + 7) // 8 if has_null else 0)
        return -(-size // _ALIGNED) * _ALIGNED


def row_limits(layout: RowLayout, keys: Sequence[str]) -> Iterator[Limit]:
    """
    Yield the limit of whole rows, if any row of the table could exceed it.

    :param keys: Key columns for upserts; empty for inserts.
    """
    layouts = [each for each in ([layout, layout.staged] if keys else [layout]) if each.may_be_too_wide]
    if layouts:
        yield Limit(
            columns=layout.written,
            shown="the whole row",
            words=f"of more than {layout.most} bytes, the largest row of the database, where a long value takes "
            f"{_ELSEWHERE}",
            remedy="for example to_json of several columns in place of them, or more tables",
            count=partial(_count_too_wide, layouts),
        )


def _count_too_wide(layouts: Sequence[RowLayout], *columns: Any) -> int:
    values = dict(zip(layouts[0].written, columns, strict=True))
    return number_of(functools.reduce(pc.or_, (layout.is_too_wide(values) for layout in layouts)))


def _widths(column: _Column, values: Any) -> Any:
    if column.width is not None:
        return pc.if_else(pc.is_valid(values), pa.scalar(column.width, pa.int64()), pa.scalar(None, pa.int64()))
    sizes = pc.cast(_sizes(values), pa.int64())
    if column.is_plain:
        return pc.add(sizes, _PLAIN_HEADER)
    sizes = pc.add(sizes, 1)
    return pc.if_else(pc.less_equal(sizes, _MOST_INSIDE), sizes, _ELSEWHERE)


def _sizes(values: Any) -> Any:
    kind = values.type
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.binary_length(values)
    # A number of any length has a head of two bytes, and two bytes for each group of digits but zeros at both ends.
    digits = pc.utf8_ltrim(_unscaled(values).cast(pa.string()), "-0")
    groups = pc.divide(pc.add(pc.utf8_length(digits), _GROUP - 1), _GROUP)
    zeros = pc.subtract(pc.utf8_length(digits), pc.utf8_length(pc.utf8_rtrim(digits, "0")))
    return pc.add(pc.multiply(pc.subtract(groups, pc.divide(zeros, _GROUP)), 2), 2)


def _unscaled(values: Any) -> Any:
    """Return decimals as whole numbers, with the groups of their digits as they are around the point."""
    if not pa.types.is_decimal(values.type):
        return values
    scaled = pa.decimal256(_LARGEST_PRECISION, -(-values.type.scale // _GROUP) * _GROUP)
    whole = pa.decimal256(_LARGEST_PRECISION, 0)
    return pa.chunked_array([chunk.cast(scaled).view(whole) for chunk in values.chunks], whole)
