"""Which rows of two Arrow arrays differ, for every type that state has."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.state.serializers.lists import offsets_of_array


def differing(a: Any, b: Any) -> Any:
    """
    Return an Arrow array of truth values without null.

    Two nulls are equal, and two NaN are.

    :param a: An array.
    :param b: Another of the same type and length.
    """
    import pyarrow.compute as pc

    nulls_differ = pc.not_equal(a.is_null(), b.is_null())
    both = pc.and_(a.is_valid(), b.is_valid())
    return pc.or_(nulls_differ, pc.and_(both, _values_differ(a, b)))


def _values_differ(a: Any, b: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    kind = a.type
    if types.is_struct(kind):
        return _any_of([differing(x, y) for x, y in zip(a.flatten(), b.flatten(), strict=True)], len(a))
    if types.is_map(kind) or types.is_list(kind):
        return _lists_differ(a, b)
    if types.is_null(kind):
        return pa.repeat(pa.scalar(False), len(a))
    if types.is_floating(kind):
        a, b = a.cast(pa.float64()), b.cast(pa.float64())
        are_nan = pc.and_(pc.is_nan(a), pc.is_nan(b))
        return pc.fill_null(pc.and_(pc.not_equal(a, b), pc.invert(are_nan)), True)
    return pc.fill_null(pc.not_equal(a, b), True)


def _any_of(columns: list[Any], length: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.repeat(pa.scalar(False), length)
    for column in columns:
        found = pc.or_(found, column)
    return found


def _lists_differ(a: Any, b: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    lengths_of_a, lengths_of_b = (np.diff(offsets_of_array(each).to_numpy()) for each in (a, b))
    differ = lengths_of_a != lengths_of_b
    same = np.flatnonzero(~differ)
    of_a, of_b = (_elements(each.take(pa.array(same))) for each in (a, b))
    unequal = differing(of_a, of_b).to_numpy(zero_copy_only=False)
    owners = np.repeat(same, lengths_of_a[same])
    differ[owners[unequal]] = True
    return pa.array(differ)


def _elements(lists: Any) -> Any:
    """Return the elements of lists, one after the other; those of maps are structs."""
    import pyarrow as pa

    from airflow_provider_statecheck.state.serializers.lists import entries_of_array

    if not pa.types.is_map(lists.type):
        return lists.flatten()
    keys, values = entries_of_array(lists)
    return pa.StructArray.from_arrays([keys, values], names=["key", "value"])
