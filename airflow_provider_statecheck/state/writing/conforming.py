"""Columns that a user gives, brought into the types of state and checked against them."""

from __future__ import annotations

from datetime import time
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.reading.differing import differing
from airflow_provider_statecheck.state.serializers.lists import (
    entries_of_array,
    list_array,
    map_array,
    nulls_of_array,
    offsets_of_array,
)
from airflow_provider_statecheck.state.serializers.optional import is_optional, value_of
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.state.serializers.snapshot_json import decode_snapshot


def conformed(array: Any, wanted: Any, place: str) -> Any:
    """
    Return an array in another Arrow type, if no value is changed by that; fields of structs go by their names.

    :param place: What it is, for people.
    :raises UnsupportedStateError: if there are fields too many or too few, or values that do not fit.
    """
    import pyarrow as pa
    from pyarrow import types

    if array.type == wanted:
        return array
    if types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if types.is_dictionary(array.type):
        return conformed(array.dictionary_decode(), wanted, place)
    if types.is_struct(array.type) and types.is_struct(wanted):
        return _struct(array, wanted, place)
    if types.is_map(array.type) and types.is_map(wanted):
        keys, values = entries_of_array(array)
        keys, values = conformed(keys, wanted.key_type, place), conformed(values, wanted.item_type, place)
        return map_array(offsets_of_array(array), keys, values, nulls_of_array(array))
    if types.is_list(array.type) and types.is_list(wanted):
        elements = conformed(array.flatten(), wanted.value_type, place)
        return list_array(offsets_of_array(array), elements, nulls_of_array(array))
    if _family(array.type) != _family(wanted) and not (types.is_string(array.type) and types.is_time(wanted)):
        raise UnsupportedStateError(f"Expected {place} to be of type {wanted}, found {array.type}; convert it before.")
    try:
        found = _times_of_day(array, wanted) if types.is_time(wanted) else array.cast(wanted)
    except (pa.ArrowException, ValueError) as error:
        raise UnsupportedStateError(f"Expected {place} to be of type {wanted}, found {array.type}: {error}") from error
    if types.is_floating(array.type) or types.is_floating(wanted):
        _require_exact(array, found, place)
    return found


def _require_exact(array: Any, found: Any, place: str) -> None:
    # Arrow rounds such values without a word.
    import pyarrow.compute as pc

    changed = array.filter(differing(array, found.cast(array.type, safe=False)))
    if len(changed):
        raise UnsupportedStateError(
            f"Expected {place} to be of type {found.type}, found {pc.count(changed)} values of type {array.type} that it cannot "
            "hold exactly; round or convert them before."
        )


def require_values(snapshot: SerializerSnapshot, array: Any, place: str) -> None:
    """
    Refuse values that a type of state does not have.

    :param snapshot: Of the type's serializer.
    :param array: In the type's own Arrow type.
    :param place: What it is, for people.
    :raises UnsupportedStateError: for a null where there may be none, or a name that an enumeration has not.
    """
    if is_optional(snapshot):
        require_values(value_of(snapshot), array.drop_null(), place)
        return
    if array.null_count:
        raise UnsupportedStateError(
            f"Expected {place} to have a value, found {array.null_count} nulls; leave such rows out, or declare an optional type."
        )
    for part, values, name in _parts(snapshot, array, place):
        require_values(decode_snapshot(part), values, name)
    if snapshot.class_id == "enum":
        _require_names(snapshot.config["names"], array, place)


def _parts(snapshot: SerializerSnapshot, array: Any, place: str) -> list[tuple[Any, Any, str]]:
    config = snapshot.config
    if snapshot.class_id == "record":
        columns = zip(config["fields"], array.flatten(), strict=True)
        return [(field["type"], column, f"{place}.{field['name']}") for field, column in columns]
    if snapshot.class_id == "collection":
        return [(config["element"], array.flatten(), f"each element of {place}")]
    if snapshot.class_id == "dict":
        keys, values = entries_of_array(array)
        return [(config["key"], keys, f"each key of {place}"), (config["value"], values, f"each value of {place}")]
    return []


def _family(kind: Any) -> Any:
    """Return what types have in common between which a cast keeps the meaning."""
    from pyarrow import types

    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_timestamp(kind):
        return "moment" if kind.tz else "time on the clock"
    if types.is_time(kind):
        return "time of day"
    return "duration" if types.is_duration(kind) else kind


def _times_of_day(array: Any, wanted: Any) -> Any:
    import pyarrow as pa

    if not pa.types.is_string(array.type):
        return array.cast(wanted)
    return pa.array([None if text is None else time.fromisoformat(text) for text in array.to_pylist()], wanted)


def _struct(array: Any, wanted: Any, place: str) -> Any:
    import pyarrow as pa

    have = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    names = [field.name for field in wanted]
    if sorted(have) != sorted(names):
        raise UnsupportedStateError(
            f"Expected {place} to have the fields {', '.join(names)}, found {', '.join(have)}; give exactly these."
        )
    columns = [conformed(have[field.name], field.type, f"{place}.{field.name}") for field in wanted]
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=nulls_of_array(array))


def _require_names(names: list[str], array: Any, place: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.is_in(array, value_set=pa.array(names, array.type))
    unknown = pc.unique(array.filter(pc.invert(known))).to_pylist()
    if unknown:
        raise UnsupportedStateError(f"Expected {place} to be one of {', '.join(names)}, found {unknown[0]!r}.")
