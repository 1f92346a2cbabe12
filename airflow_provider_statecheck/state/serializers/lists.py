"""Arrow lists and maps taken apart and put together, whatever part of an array they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any


def offsets_of(values: Sequence[Any]) -> Any:
    """Return where each of many collections begins if they stand one after the other, and where the last ends."""
    import pyarrow as pa

    return pa.array(
        list(accumulate((len(value) if value is not None else 0 for value in values), initial=0)), pa.int32()
    )


def nulls_of(values: Sequence[Any]) -> Any:
    """Return which values are ``None`` as an Arrow array; ``None`` if there are none."""
    import pyarrow as pa

    return pa.array([value is None for value in values], pa.bool_()) if any(value is None for value in values) else None


def offsets_of_array(array: Any) -> Any:
    """Return what :func:`offsets_of` gives for the lists of an Arrow array, which may be a slice."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds = array.offsets
    lengths = pc.subtract(bounds.slice(1), bounds.slice(0, len(array)))
    if array.null_count:
        # What lies behind a null counts for nothing.
        lengths = pc.if_else(array.is_valid(), lengths, pa.scalar(0, pa.int32()))
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def nulls_of_array(array: Any) -> Any:
    """Return which values of an Arrow array are null; ``None`` if there are none."""
    return array.is_null() if array.null_count else None


def list_array(offsets: Any, elements: Any, nulls: Any) -> Any:
    """Return an array of lists."""
    import pyarrow as pa

    return pa.ListArray.from_arrays(offsets, elements, type=pa.list_(elements.type), mask=nulls)


def map_array(offsets: Any, keys: Any, values: Any, nulls: Any) -> Any:
    """Return an array of maps."""
    import pyarrow as pa

    return pa.MapArray.from_arrays(offsets, keys, values, type=pa.map_(keys.type, values.type), mask=nulls)


def entries_of_array(array: Any) -> tuple[Any, Any]:
    """Return the keys and the values of the maps of an Arrow array, one after the other."""
    present = array.drop_null() if array.null_count else array
    offsets = present.offsets
    start = offsets[0].as_py()
    length = offsets[len(offsets) - 1].as_py() - start
    return present.keys.slice(start, length), present.items.slice(start, length)


def with_elements(array: Any, elements: Any) -> Any:
    """Return the lists of an array with other elements, of which there are as many."""
    return list_array(offsets_of_array(array), elements, nulls_of_array(array))
