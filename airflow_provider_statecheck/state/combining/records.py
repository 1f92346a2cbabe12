"""Records with a partial result in each field, and the functions that combine them."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.state.combining.partial_results import combined_by_group, narrowed

Combination = tuple[tuple[str, str], ...]
"""Name of each field of a record, and what combines its values: ``sum``, :data:`WRAPPING_SUM`, ``max`` or ``min``."""
WRAPPING_SUM = "wrapping_sum"
"""Sum of integers that wraps around, as those of Spark without ANSI mode."""
_FUNCTIONS = ("sum", WRAPPING_SUM, "max", "min")
_GROUP = "group"


def required_combination(combination: Combination, record_type: Any) -> Combination:
    """
    Return a combination that storage describes.

    :raises ValueError: unless it is empty, or has a function for each field of a record.
    """
    functions = dict(combination)
    is_known = set(functions.values()) <= set(_FUNCTIONS) and pa.types.is_struct(record_type)
    if functions and not (is_known and {field.name for field in record_type} <= functions.keys()):
        raise ValueError(f"the combination {combination!r:.200} of values of type {record_type}")
    return combination


def combined_records(combination: Combination, records: Any, groups: Any) -> Any:
    """
    Return the combined record of each group.

    :param records: Arrow array of structs; a null one has no values.
    :param groups: Numbers of the groups, as an ascending numpy array without gaps.
    :raises UnsupportedStateError: if a sum is too large for its type, unless it wraps around.
    """
    fields, functions = list(records.type), dict(combination)
    # Names of fields are free, and must not be that of the group.
    columns = {str(number): pc.struct_field(records, [number]) for number in range(len(fields))}
    wanted = dict(zip(columns, (functions[field.name] for field in fields), strict=True))
    plain = {at: "sum" if function == WRAPPING_SUM else function for at, function in wanted.items()}
    table = pa.table({_GROUP: pa.array(groups), **columns})
    _, found = combined_by_group(table, [_GROUP], plain, wraps=WRAPPING_SUM in wanted.values())
    arrays = [_in_type(found[at], field) for at, field in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _in_type(values: Any, field: Any) -> Any:
    try:
        return narrowed(values, field.type)
    except pa.ArrowInvalid as error:
        raise too_large("in state", f"a larger one of {field.name} {field.type}: {error}") from error


def too_large(place: str, found: str) -> UnsupportedStateError:
    """
    Return the error for sums that are too large.

    :param place: Whose sums they are.
    :param found: What was found.
    """
    return UnsupportedStateError(
        f"Expected sums {place} within the range of their types, found {found}. Sum a type with more digits, such "
        "as Sum('cast(amount as decimal(38, 0))'). With spark.sql.ansi.enabled=false, sums of integers wrap around "
        "and sums of decimals become null, as in Spark."
    )
