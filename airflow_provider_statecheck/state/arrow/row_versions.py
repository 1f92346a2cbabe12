"""Versions of a row in several runs: the newest one, or a partial one with what it adds to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    PARTIAL,
    VALUE,
    StateLayout,
    order_codes,
    position_columns,
    single,
)
from airflow_provider_statecheck.state.combining.records import combined_records


def merge_tables(layout: StateLayout, tables: Sequence[Any]) -> Any:
    """
    Merge tables into one sorted table with one row for each sort key, see :func:`current_versions`.

    :param tables: At least one table, newest first. All have equal columns, in any row order, and distinct sort keys.
    """
    joined = pa.concat_tables(tables).combine_chunks()
    codes = order_codes(position_columns(joined))
    order = np.argsort(codes, kind="stable")
    return current_versions(layout, joined, order, codes[order])


def current_versions(layout: StateLayout, joined: Any, order: Any, codes: Any) -> Any:
    """
    Return the current version of each row: the newest one, or a partial one combined with those that it adds to.

    :param joined: Table with all versions.
    :param order: Numbers of the versions in the order of their sort keys, the newest of each first.
    :param codes: An integer for each version in this order, equal for equal sort keys.
    :raises UnsupportedStateError: if a combined sum is too large for its type.
    """
    is_first = np.ones(len(codes), bool)
    is_first[1:] = codes[1:] != codes[:-1]
    newest = joined.take(pa.array(order[is_first]))
    if PARTIAL not in joined.schema.names or is_first.all():
        return newest
    return _combined(layout, joined, order, is_first, newest)


def _combined(layout: StateLayout, joined: Any, order: Any, is_first: Any, newest: Any) -> Any:
    partial = single(joined.column(PARTIAL)).to_numpy(zero_copy_only=False)[order]
    groups, count = np.cumsum(is_first) - 1, newest.num_rows
    # A version counts if all newer ones of its row are partial.
    whole_before = np.cumsum(~partial) - ~partial
    counts = whole_before == whole_before[is_first][groups]
    several = np.bincount(groups[counts], minlength=count) > 1
    if not several.any():
        return newest
    if layout.combination:
        added, numbers = counts & several[groups], np.cumsum(several) - 1
        values = single(joined.column(VALUE)).take(pa.array(order[added]))
        combined = combined_records(layout.combination, values, numbers[groups[added]])
        newest = _with(newest, VALUE, _replaced(single(newest.column(VALUE)), several, combined))
    is_partial = np.ones(count, bool)
    is_partial[groups[counts & ~partial]] = False
    return _with(newest, PARTIAL, pa.array(is_partial))


def _replaced(values: Any, chosen: Any, others: Any) -> Any:
    """Return values with others, in their order, in the chosen places."""
    if chosen.all():
        return others
    places = np.where(chosen, len(values) + np.cumsum(chosen) - 1, np.arange(len(values)))
    return pa.concat_arrays([values, others]).take(pa.array(places))


def _with(table: Any, name: str, column: Any) -> Any:
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)


def without_tombstones(table: Any) -> Any:
    """Return the rows without tombstones."""
    return table.filter(pc.invert(table.column(DELETED))).drop_columns([DELETED])
