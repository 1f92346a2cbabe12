"""Checks of Arrow arrays that were not written by the serializer of their state."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.arrow.layout import order_codes, order_columns
from airflow_provider_statecheck.state.serializers.nested_columns import (
    entries_of_array,
    is_optional,
    offsets_of_array,
    value_of,
)
from airflow_provider_statecheck.state.serializers.scalar_serializers import DatetimeSerializer, zone_of
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot, decode_snapshot


def has_requirements(snapshot: SerializerSnapshot) -> bool:
    """Return whether :func:`require_values` may refuse a value other than null."""
    kind = value_of(snapshot)
    if kind.class_id in ("enum", "dict", DatetimeSerializer.class_id):
        return True
    parts = [decode_snapshot(part) for part in _parts(kind)]
    return any(not is_optional(part) or has_requirements(part) for part in parts)


def _parts(snapshot: SerializerSnapshot) -> list[Any]:
    config = snapshot.config
    if snapshot.class_id == "record":
        return [field["type"] for field in config["fields"]]
    if snapshot.class_id == "collection":
        return [config["element"]]
    return [config["key"], config["value"]] if snapshot.class_id == "dict" else []


def require_values(snapshot: SerializerSnapshot, array: Any, place: str) -> None:
    """
    Require that all values are valid for the type of a state.

    :param snapshot: Snapshot of the serializer of the type.
    :param array: Values in the Arrow type of the serializer.
    :param place: Name of the column or field, for error messages.
    :raises UnsupportedStateError: if a required value is null, or if a name is not a member of the enum.
    """
    if is_optional(snapshot):
        require_values(value_of(snapshot), array.drop_null() if array.null_count else array, place)
        return
    if array.null_count:
        raise UnsupportedStateError(
            f"Expected {place} to have a value, found {array.null_count} nulls; remove these rows, or declare an optional type."
        )
    for nested, values, name in _nested_values(snapshot, array, place):
        require_values(decode_snapshot(nested), values, name)
    if snapshot.class_id == "enum":
        aliases = snapshot.config.get("aliases", ())
        _require_names([name for name in snapshot.config["names"] if name not in aliases], array, place)
    if snapshot.class_id == "dict":
        _require_distinct_keys(array, place)
    if snapshot.class_id == DatetimeSerializer.class_id:
        _require_times(array, place)


def _nested_values(snapshot: SerializerSnapshot, array: Any, place: str) -> list[tuple[Any, Any, str]]:
    if snapshot.class_id == "record":
        names = [f"{place}.{field['name']}" for field in snapshot.config["fields"]]
        return list(zip(_parts(snapshot), array.flatten(), names, strict=True))
    if snapshot.class_id == "collection":
        return [(*_parts(snapshot), array.flatten(), f"each element of {place}")]
    if snapshot.class_id == "dict":
        names = [f"each key of {place}", f"each value of {place}"]
        return list(zip(_parts(snapshot), entries_of_array(array), names, strict=True))
    return []


def _require_names(names: list[str], array: Any, place: str) -> None:
    known = pc.is_in(array, value_set=pa.array(names, array.type))
    unknown = pc.unique(array.filter(pc.invert(known))).to_pylist()
    if unknown:
        raise UnsupportedStateError(
            f"Expected {place} to be one of {', '.join(names)}, found {unknown[0]!r}; correct it."
        )


def _require_times(array: Any, place: str) -> None:
    local, zones, fold = array.flatten()
    if local.null_count or fold.null_count:
        raise UnsupportedStateError(
            f"Expected {place} to have a local time and a fold, found {max(local.null_count, fold.null_count)} nulls; set them."
        )
    for name in zones.unique().drop_null().to_pylist():
        try:
            zone_of(name)
        except (ValueError, LookupError, OSError) as error:
            raise UnsupportedStateError(
                f"Expected {place} to have a time zone such as 'Europe/Berlin' or '+02:00', found {name!r:.100}; correct it."
            ) from error


def _require_distinct_keys(array: Any, place: str) -> None:
    lengths = np.diff(offsets_of_array(array).to_numpy())
    keys, _ = entries_of_array(array)
    codes = order_codes([pa.array(np.repeat(np.arange(len(lengths)), lengths)), *order_columns(keys)])
    if len(codes) > len(np.unique(codes)):
        raise UnsupportedStateError(
            f"Expected each key of {place} to be in it once, found {len(codes) - len(np.unique(codes))} entries too many; "
            "remove them."
        )
