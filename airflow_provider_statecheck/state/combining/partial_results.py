"""
Partial results of declared aggregates, combined on whole columns as Spark combines them.

NaN is the largest number, null counts as no value, and nested values have Spark's order. A sum of integers that is too
large for its type is an error, or wraps around without ANSI mode. A sum of decimals is exact until it is put into its
type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.combining.ordering import is_nested, order_numbers

_DECIMAL128_DIGITS, _DECIMAL256_DIGITS = 38, 76


def combined_by_group(
    table: Any, by: Sequence[str], functions: Mapping[str, str], *, wraps: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    """
    Return the columns of the groups of a table, ordered by the first one, and their combined values by name.

    :param functions: ``sum``, ``max``, ``min`` or, for flags, ``any`` by the names of the columns to combine.
    :param wraps: Whether sums of integers wrap around. If not, sums may have a wider type than their values.
    """
    # Names of Arrow's results are derived from these, and must not be those of other columns.
    groups = {f"group{at}": table.column(name) for at, name in enumerate(by)}
    wanted = {f"value{at}": function for at, function in enumerate(functions.values())}
    given = dict(zip(wanted, map(table.column, functions), strict=True))
    nested = {at: column for at, column in given.items() if _is_chosen(column, wanted[at])}
    columns = {at: _groupable(column, wanted[at], wraps=wraps) for at, column in given.items()}
    nan = {f"{at}_nan": at for at, function in wanted.items() if _ignores_nan(columns[at], function)}
    columns |= {flag: pc.is_nan(columns[at]) for flag, at in nan.items()}
    grouped = pa.table({**groups, **columns}).group_by(list(groups), use_threads=False)
    grouped = grouped.aggregate([*wanted.items(), *((flag, "any") for flag in nan)])
    # Hash collisions can change the order of groups.
    grouped = grouped.sort_by("group0").combine_chunks()
    found = {at: _whole(grouped.column(f"{at}_{function}")) for at, function in wanted.items()}
    for flag, at in nan.items():
        is_nan = pc.fill_null(_whole(grouped.column(f"{flag}_any")), False)
        found[at] = pc.if_else(is_nan, pa.scalar(float("nan"), found[at].type), found[at])
    found |= {at: _with_numbers(column, columns[at], found[at]) for at, column in nested.items()}
    return [_whole(grouped.column(at)) for at in groups], dict(zip(functions, found.values(), strict=True))


def _whole(column: Any) -> Any:
    """Return a column of a table as one array."""
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _is_chosen(column: Any, function: str) -> bool:
    return function in ("max", "min") and is_nested(column.type)


def _with_numbers(column: Any, numbers: Any, wanted: Any) -> Any:
    """Return a value of a column for each wanted number."""
    known = numbers.to_numpy(zero_copy_only=False)
    first = np.zeros(len(known) + 1, dtype=np.int64)
    valid = np.flatnonzero(numbers.is_valid().to_numpy(zero_copy_only=False))
    first[known[valid].astype(np.int64)] = valid
    places = pc.if_else(
        wanted.is_valid(), pa.array(first[pc.fill_null(wanted, 0).to_numpy()]), pa.scalar(None, pa.int64())
    )
    return _whole(column).take(places)


def _ignores_nan(column: Any, function: str) -> bool:
    return function == "max" and pa.types.is_floating(column.type)


def _groupable(column: Any, function: str, *, wraps: bool) -> Any:
    kind = column.type
    if is_nested(kind):
        return order_numbers(column)
    if pa.types.is_duration(kind):
        # Arrow has no groups of durations. In Spark, their sums never wrap around.
        column, wraps = column.cast(pa.int64()), False
    if function == "sum" and pa.types.is_decimal(kind):
        # Arrow adds without a check. A sum has at most the digits of the number of rows in addition.
        precision = kind.precision + len(str(len(column)))
        column = column.cast(pa.decimal256(precision, kind.scale)) if precision > _DECIMAL128_DIGITS else column
    if function == "sum" and not wraps and pa.types.is_int64(column.type):
        low, high = (limit.as_py() or 0 for limit in pc.min_max(column).values())
        if max(-low, high) * len(column) >= 2**63:
            column = column.cast(pa.decimal128(_DECIMAL128_DIGITS, 0))
    return column


def merged_values(function: str, old: Any, partial: Any, *, wraps: bool = False) -> Any:
    """
    Return the combined values of two arrays; a sum of decimals may have a wider type.

    :param function: ``sum``, ``max`` or ``min``.
    :param partial: Result of :func:`combined_by_group`, whose type may be wider.
    :param wraps: Whether sums of integers wrap around.
    :raises pyarrow.ArrowInvalid: if a sum is too large for its type and does not wrap around.
    """
    if function == "sum" and pa.types.is_decimal(old.type):
        return _added_exactly(old, partial)
    new = narrowed(partial, old.type)
    if function == "sum":
        added = pc.add(old, new) if wraps and pa.types.is_integer(old.type) else pc.add_checked(old, new)
        return pc.coalesce(added, old, new)
    return _chosen(function, old, new) if is_nested(old.type) else _extreme(function, old, new)


def narrowed(partial: Any, kind: Any) -> Any:
    """
    Return combined values in the type of their result.

    :raises pyarrow.ArrowInvalid: if a sum is too large for it.
    """
    if pa.types.is_duration(kind) and pa.types.is_decimal(partial.type):
        partial = partial.cast(pa.int64())
    return partial.cast(kind)


def _added_exactly(old: Any, new: Any) -> Any:
    # A sum has one more digit, and the type of a combined sum has all digits.
    wide = pa.decimal256(_DECIMAL256_DIGITS - 1, old.type.scale)
    old, new = old.cast(wide), new.cast(wide)
    added = pc.add(old, new)
    return pc.coalesce(added, old.cast(added.type), new.cast(added.type))


def _extreme(function: str, old: Any, new: Any) -> Any:
    # Only NaN differs from itself. Arrow's own functions lack types such as timestamps with a time zone.
    if function == "max":
        is_old = pc.or_(pc.greater(old, new), pc.not_equal(old, old))
    else:
        is_old = pc.or_(pc.less(old, new), pc.not_equal(new, new))
    return pc.coalesce(pc.if_else(is_old, old, new), old, new)


def _chosen(function: str, old: Any, new: Any) -> Any:
    both = pa.concat_arrays([old, new])
    numbers = order_numbers(both)
    of_old, of_new = numbers.slice(0, len(old)), numbers.slice(len(old))
    is_old = pc.greater(of_old, of_new) if function == "max" else pc.less(of_old, of_new)
    is_old = pc.coalesce(is_old, old.is_valid()).to_numpy(zero_copy_only=False)
    places = np.arange(len(old))
    return both.take(pa.array(np.where(is_old, places, places + len(old))))


def within_type(sums: Any, kind: Any) -> tuple[Any, Any]:
    """Return sums of decimals in their type, null where they are too large for it, and where that is."""
    digits = kind.precision - kind.scale
    limit = pa.scalar(10**digits, pa.decimal256(digits + 1, 0))
    is_too_large = pc.fill_null(pc.greater_equal(pc.abs(sums), limit), False)
    fitting = pc.if_else(is_too_large, pa.scalar(None, sums.type), sums)
    return fitting.cast(kind), is_too_large
