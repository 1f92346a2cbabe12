"""User-defined serializers that store values as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.serializers.base import AbstractSerializer
from airflow_provider_statecheck.state.serializers.nested_columns import Freezing
from airflow_provider_statecheck.state.serializers.serializer import (
    AS_IS,
    Compatibility,
    SerializerSnapshot,
    incompatible,
)

T = TypeVar("T")

PREFIX = "custom:"
"""Begins the class of every snapshot of a user's serializer, so that none can be taken for one of this package."""


@runtime_checkable
class CustomSerializer(Protocol[T]):
    """
    Makes values to bytes and back.

    It may also have ``config()``, which returns JSON, and ``resolve_compatibility(old)``, which gets the snapshot that an
    earlier version of it made and returns a ``Compatibility``; without, another version or config is incompatible.
    """

    class_id: str
    """Stays the same for as long as there is state."""
    version: int

    def serialize(self, value: T) -> bytes:
        """Return a value as bytes."""
        ...

    def deserialize(self, data: bytes) -> T:
        """Return the value of bytes."""
        ...


class OpaqueSerializer(AbstractSerializer[bytes]):
    """
    The bytes that a serializer made which is not at hand.

    :param snapshot: Its snapshot.
    """

    def __init__(self, snapshot: SerializerSnapshot) -> None:
        self._snapshot = snapshot

    @property
    def arrow_type(self) -> Any:
        """Return the type of bytes."""
        import pyarrow as pa

        return pa.binary()

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """Return an Arrow array of bytes, null where there is ``None``."""
        import pyarrow as pa

        return pa.array(values, self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the bytes of an array."""
        found: list[Any] = array.to_pylist()
        return found

    def config(self) -> dict[str, Any]:
        """Return what the serializer said of itself."""
        return dict(self._snapshot.config)

    def snapshot(self) -> SerializerSnapshot:
        """Return the snapshot of the serializer."""
        return self._snapshot

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Say whether state can go on, as far as that can be told without the serializer's own code."""
        mine = self._snapshot
        if old.class_id != mine.class_id:
            return self._resolve_other(old)
        if (old.version, old.config) == (mine.version, mine.config):
            return AS_IS
        reason = f"{name_of(mine)} of version {old.version} becomes {mine.version}, on which its own code decides"
        return Compatibility(outcome=AS_IS.outcome, reason=reason)

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        raise NotImplementedError


class SerializerAdapter(AbstractSerializer[Any]):
    """
    A column of the bytes that a serializer of the user's own makes.

    :param custom: The serializer.
    :raises InvalidConfigurationError: for one without an id or a version.
    """

    def __init__(self, custom: CustomSerializer[Any]) -> None:
        class_id: Any = custom.class_id
        version: Any = custom.version
        if not isinstance(class_id, str) or not class_id or type(version) is not int:
            raise InvalidConfigurationError(
                f"Expected the serializer {type(custom).__qualname__} to have a text as class_id and a whole number as "
                f"version, found {class_id!r} and {version!r}."
            )
        self.custom = custom

    @property
    def arrow_type(self) -> Any:
        """Return the type of bytes."""
        import pyarrow as pa

        return pa.binary()

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """Return an Arrow array of the bytes of values, null where there is ``None``."""
        import pyarrow as pa

        serialize = self.custom.serialize
        return pa.array([None if value is None else serialize(value) for value in values], self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the values of an array."""
        deserialize = self.custom.deserialize
        return [None if data is None else deserialize(data) for data in array.to_pylist()]

    @property
    def is_immutable(self) -> bool:
        """Tell that nothing is known of the values."""
        return False

    def copy(self, value: Any) -> Any:
        """Return the value that comes back from its bytes."""
        return None if value is None else self.custom.deserialize(self.custom.serialize(value))

    def freezing(self) -> Freezing:
        """Return how values are kept: as their bytes."""
        import pyarrow as pa

        def write(kept: Sequence[Any]) -> Any:
            return pa.array(kept, self.arrow_type)

        return Freezing(self.custom.serialize, self.custom.deserialize, pa.Array.to_pylist, write)

    def config(self) -> dict[str, Any]:
        """Return what the serializer says of itself."""
        config = getattr(self.custom, "config", None)
        return dict(config()) if config else {}

    def snapshot(self) -> SerializerSnapshot:
        """Return the snapshot that later versions are compared with."""
        class_id, version = f"{PREFIX}{self.custom.class_id}", self.custom.version
        return SerializerSnapshot(class_id=class_id, version=version, config=self.config())

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Say what the serializer says, or that another version or config is incompatible."""
        mine = self.snapshot()
        if old.class_id != mine.class_id:
            return self._resolve_other(old)
        decide = getattr(self.custom, "resolve_compatibility", None)
        if decide is not None:
            return _adapted(decide(_own(old)))
        if (old.version, old.config) == (mine.version, mine.config):
            return AS_IS
        return incompatible(
            f"{name_of(mine)} was of version {old.version} and config {dict(old.config)}, is now of version "
            f"{mine.version} and config {dict(mine.config)}; give it a resolve_compatibility"
        )

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        raise NotImplementedError

    @property
    def _identity(self) -> Any:
        return self.custom


def migrate_each(convert: Callable[[bytes], bytes]) -> Callable[[Any], Any]:
    """Return the ``migrate`` of a ``Compatibility`` that converts the bytes of one value after the other."""

    def migrate(array: Any) -> Any:
        import pyarrow as pa

        return pa.array([None if data is None else convert(data) for data in array.to_pylist()], pa.binary())

    return migrate


def name_of(snapshot: SerializerSnapshot) -> str:
    """Return the id that the user gave."""
    return snapshot.class_id.removeprefix(PREFIX)


def is_custom(snapshot: SerializerSnapshot) -> bool:
    """Tell whether a serializer of the user's own made it."""
    return snapshot.class_id.startswith(PREFIX)


def _own(old: SerializerSnapshot) -> SerializerSnapshot:
    return SerializerSnapshot(class_id=name_of(old), version=old.version, config=old.config)


def _adapted(verdict: Compatibility) -> Compatibility:
    if verdict.serializer is None:
        return verdict
    return replace(
        verdict, serializer=SerializerAdapter(verdict.serializer), migrate=verdict.migrate or (lambda array: array)
    )
