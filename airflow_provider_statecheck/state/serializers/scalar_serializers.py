"""Serializers of datetimes, enum members and UUIDs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import Enum, Flag
from functools import lru_cache
from types import NoneType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.base import AbstractSerializer, Plain
from airflow_provider_statecheck.state.serializers.serializer import AS_IS, Compatibility, incompatible

_MICROSECOND = timedelta(microseconds=1)
_SINGLETON_ZONES = (None, UTC)
"""Time zones that a checkpoint restores as the same object."""


class DatetimeSerializer(AbstractSerializer[datetime]):
    """
    Serializer of ``datetime`` as a struct of local time, time zone and fold.

    The struct preserves the time zone. For instants only, declare ``pyarrow.timestamp("us", tz="UTC")``.
    """

    class_id = "datetime"

    @property
    def arrow_type(self) -> Any:
        """Return the struct type: local time, name or offset of the time zone (nullable), and fold."""
        import pyarrow as pa

        return pa.struct([("local", pa.timestamp("us")), ("zone", pa.string()), ("fold", pa.bool_())])

    def to_arrow(self, values: Sequence[datetime | None]) -> Any:
        """
        Return an Arrow array of values, with null for ``None``.

        :raises UnsupportedStateError: if a value has another type, or its time zone has neither a key nor a fixed offset.
        """
        import pyarrow as pa

        for kind in {*map(type, values)} - {datetime, NoneType}:
            _reject_type(kind)
        clock = [v if v is None or v.tzinfo is None else v.replace(tzinfo=None) for v in values]
        local = pa.array(clock, pa.timestamp("us"))
        zone = pa.array([None if v is None or v.tzinfo is None else _name_of(v.tzinfo) for v in values], pa.string())
        fold = pa.array([None if v is None else v.fold == 1 for v in values], pa.bool_())
        return pa.StructArray.from_arrays([local, zone, fold], fields=list(self.arrow_type), mask=local.is_null())

    def from_arrow(self, array: Any) -> list[datetime | None]:
        """Return the values of an array."""
        clock, zones, folds = array.flatten()
        rows = zip(clock.to_numpy(zero_copy_only=False).tolist(), zones.to_pylist(), folds.to_pylist(), strict=True)
        return [
            local if local is None or (zone is None and not fold) else local.replace(tzinfo=_zone_of(zone), fold=fold)
            for local, zone, fold in rows
        ]

    def own(self, value: Any) -> datetime:
        """Return a ``datetime`` as a checkpoint restores it."""
        return value if type(value) is datetime and value.tzinfo in _SINGLETON_ZONES else super().own(value)

    def config(self) -> dict[str, Any]:
        """Return an empty configuration."""
        return {}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        return AS_IS


@lru_cache(maxsize=1024)
def _name_of(zone: tzinfo) -> str:
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    if type(zone) is timezone:
        return _offset_name(zone.utcoffset(None))
    kind = type(zone)
    raise UnsupportedStateError(
        f"Expected the time zone of a datetime to be a datetime.timezone or a zoneinfo.ZoneInfo with a key, found "
        f"{kind.__module__}.{kind.__qualname__}; convert it with astimezone()."
    )


def _offset_name(offset: timedelta) -> str:
    sign = "-" if offset < timedelta(0) else "+"
    minutes, rest = divmod(abs(offset), timedelta(minutes=1))
    seconds = f":{rest // timedelta(seconds=1):02}" if rest else ""
    fraction = f".{rest // _MICROSECOND % 1_000_000:06}" if rest % timedelta(seconds=1) else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}{seconds}{fraction}"


@lru_cache(maxsize=1024)
def _zone_of(name: str | None) -> tzinfo | None:
    if name is None or name == "+00:00":
        return None if name is None else UTC
    if name[0] not in "+-":
        return ZoneInfo(name)
    return datetime.strptime(name, "%z").tzinfo


def _reject_type(kind: type) -> None:
    raise UnsupportedStateError(
        f"Expected datetime.datetime, found {kind.__module__}.{kind.__qualname__}; convert it, or declare another type."
    )


class EnumNames(AbstractSerializer[Any]):
    """
    Serializer of enum members as their names, for readers without the enum class.

    :param names: All names, including aliases.
    """

    class_id = "enum"

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow type of strings."""
        import pyarrow as pa

        return pa.string()

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """
        Return an Arrow array of names, with null for ``None``.

        :raises UnsupportedStateError: if a value is not one of the names.
        """
        import pyarrow as pa

        for value in {*values} - {*self._names, None}:
            self._reject(value)
        return pa.array(values, self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the names of an array."""
        found: list[Any] = array.to_pylist()
        return found

    def config(self) -> dict[str, Any]:
        """Return the names."""
        return {"names": list(self._names)}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        missing = [name for name in config["names"] if name not in self._names]
        if not missing:
            return AS_IS
        return incompatible(
            f"has no {' and no '.join(missing)} any more; names may only be added, keep it as another name"
        )

    def _reject(self, value: Any) -> None:
        raise UnsupportedStateError(
            f"Expected one of {', '.join(self._names)}, found {type(value).__qualname__} {value!r:.100}."
        )


class EnumSerializer(EnumNames):
    """
    Serializer of enum members by name; their values and order may change between versions.

    :param enum: The enum class.
    :raises UnsupportedStateError: if the class is a ``Flag``, because combined members have no names.
    """

    def __init__(self, enum: type[Enum]) -> None:
        if issubclass(enum, Flag):
            raise UnsupportedStateError(
                f"Expected an enumeration without combined members, found the flags {enum.__qualname__}; declare int "
                f"and keep their values."
            )
        super().__init__(tuple(enum.__members__))
        self._enum = enum

    def to_arrow(self, values: Sequence[Enum | None]) -> Any:
        """
        Return an Arrow array of names, with null for ``None``.

        :raises UnsupportedStateError: if a value is not a member of the enum.
        """
        import pyarrow as pa

        for kind in {*map(type, values)} - {self._enum, NoneType}:
            self._reject(next(value for value in values if type(value) is kind))
        return pa.array([None if value is None else value._name_ for value in values], self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the members whose names are in an array."""
        members = self._enum.__members__
        return [None if name is None else members[name] for name in array.to_pylist()]

    @property
    def plain(self) -> Plain:
        """Return the cheap test: every member of the enum can be stored."""
        return Plain(self._enum)

    def own(self, value: Any) -> Any:
        """Return a member unchanged."""
        return value if type(value) is self._enum else super().own(value)

    @property
    def _identity(self) -> Any:
        return self._enum


class UuidSerializer(AbstractSerializer[UUID]):
    """Serializer of UUIDs as 16 bytes each."""

    class_id = "uuid"

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow type of 16 bytes."""
        import pyarrow as pa

        return pa.binary(16)

    def to_arrow(self, values: Sequence[UUID | None]) -> Any:
        """
        Return an Arrow array of values, with null for ``None``.

        :raises UnsupportedStateError: if a value has another type.
        """
        import pyarrow as pa

        for kind in {*map(type, values)} - {UUID, NoneType}:
            raise UnsupportedStateError(f"Expected uuid.UUID, found {kind.__module__}.{kind.__qualname__}; convert it.")
        return pa.array([None if value is None else value.bytes for value in values], self.arrow_type)

    def from_arrow(self, array: Any) -> list[UUID | None]:
        """Return the values of an array."""
        return [None if value is None else UUID(bytes=value) for value in array.to_pylist()]

    plain = Plain(UUID)

    def own(self, value: Any) -> UUID:
        """Return a UUID unchanged."""
        return value if type(value) is UUID else super().own(value)

    def config(self) -> dict[str, Any]:
        """Return an empty configuration."""
        return {}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        return AS_IS
