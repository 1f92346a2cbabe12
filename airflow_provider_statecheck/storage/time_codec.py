"""Dates with times as JSON and back, with their time zones by name, so that arithmetic on them stays the same."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from airflow_provider_statecheck.exceptions import UnsupportedStateError


def encode_time(value: datetime | time, path: str) -> list[Any]:
    """
    Return a point in time, or a time of day, as JSON.

    :param path: Where the value is, for messages.
    :raises UnsupportedStateError: for a time zone that is neither a fixed offset nor one with a name.
    """
    return [value.replace(tzinfo=None).isoformat(), value.fold, _encode_zone(value.tzinfo, path)]


def decode_datetime(encoded: list[Any]) -> datetime:
    """Return the point in time that was encoded."""
    text, fold, zone = encoded
    return datetime.fromisoformat(text).replace(fold=fold, tzinfo=_decode_zone(zone))


def decode_time(encoded: list[Any]) -> time:
    """Return the time of day that was encoded."""
    text, fold, zone = encoded
    return time.fromisoformat(text).replace(fold=fold, tzinfo=_decode_zone(zone))


def encode_timedelta(value: timedelta) -> list[int]:
    """Return a duration as JSON."""
    return [value.days, value.seconds, value.microseconds]


def decode_timedelta(encoded: list[int]) -> timedelta:
    """Return the duration that was encoded."""
    days, seconds, microseconds = encoded
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


def _encode_zone(zone: tzinfo | None, path: str) -> dict[str, Any] | None:
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key:
        # Subclasses too: Airflow's own times carry one, and the name alone says what it does.
        return {"zone": zone.key}
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        is_default = name == timezone(offset).tzname(None)
        return {"offset": encode_timedelta(offset), "name": None if is_default else name}
    kind = type(zone)
    raise UnsupportedStateError(
        f"Expected the time zone of {path} to be a datetime.timezone or a zoneinfo.ZoneInfo with a key; found "
        f"{kind.__module__}.{kind.__qualname__}. Convert it with astimezone()."
    )


def _decode_zone(encoded: dict[str, Any] | None) -> tzinfo | None:
    if encoded is None:
        return None
    if "zone" in encoded:
        return ZoneInfo(encoded["zone"])
    offset, name = decode_timedelta(encoded["offset"]), encoded["name"]
    return timezone(offset) if name is None else timezone(offset, name)
