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
"""Prefix of the class ids of user-defined serializers in snapshots; it avoids collisions with built-in ids."""


@runtime_checkable
class CustomSerializer(Protocol[T]):
    """
    Serializer that a user defines to convert values to bytes and back.

    Two further methods are optional. ``config()`` returns JSON values. ``resolve_compatibility(old)`` receives the snapshot
    of an earlier version and returns a ``Compatibility``. Without it, any change of version or config is incompatible.
    """

    class_id: str
    """Identifier of the serializer in snapshots; a change makes stored state incompatible."""
    version: int
    """Version of the byte format."""

    def serialize(self, value: T) -> bytes:
        """Return a value as bytes."""
        ...

    def deserialize(self, data: bytes) -> T:
        """Return the value that the bytes encode."""
        ...


class OpaqueSerializer(AbstractSerializer[bytes]):
    """
    Serializer that passes through the bytes of a user-defined serializer whose code is not available.

    :param snapshot: The snapshot of the user-defined serializer.
    """

    def __init__(self, snapshot: SerializerSnapshot) -> None:
        self._snapshot = snapshot

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow type of bytes."""
        import pyarrow as pa

        return pa.binary()

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """Return an Arrow array of bytes, with null for ``None``."""
        import pyarrow as pa

        return pa.array(values, self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the bytes of an array."""
        found: list[Any] = array.to_pylist()
        return found

    def config(self) -> dict[str, Any]:
        """Return the config that the snapshot contains."""
        return dict(self._snapshot.config)

    def snapshot(self) -> SerializerSnapshot:
        """Return the snapshot of the user-defined serializer."""
        return self._snapshot

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Compare class ids; a change of version or config is accepted, since only the user's code can judge it."""
        current = self._snapshot
        if old.class_id != current.class_id:
            return self._resolve_other(old)
        if (old.version, old.config) == (current.version, current.config):
            return AS_IS
        reason = f"{name_of(current)} changes from version {old.version} to {current.version}; its own code decides"
        return Compatibility(outcome=AS_IS.outcome, reason=reason)

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        raise NotImplementedError


class SerializerAdapter(AbstractSerializer[Any]):
    """
    Adapter of a user-defined serializer to an Arrow column of bytes.

    :param custom: The user-defined serializer.
    :raises InvalidConfigurationError: if its ``class_id`` or ``version`` is missing or has another type.
    """

    def __init__(self, custom: CustomSerializer[Any]) -> None:
        class_id: Any = custom.class_id
        version: Any = custom.version
        if not isinstance(class_id, str) or not class_id or type(version) is not int:
            raise InvalidConfigurationError(
                f"Expected the serializer {type(custom).__qualname__} to have a string as class_id and an integer as "
                f"version, found {class_id!r} and {version!r}."
            )
        self.custom = custom

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow type of bytes."""
        import pyarrow as pa

        return pa.binary()

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """Return an Arrow array of serialized values, with null for ``None``."""
        import pyarrow as pa

        serialize = self.custom.serialize
        return pa.array([None if value is None else serialize(value) for value in values], self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the values of an array."""
        deserialize = self.custom.deserialize
        return [None if data is None else deserialize(data) for data in array.to_pylist()]

    @property
    def is_immutable(self) -> bool:
        """Return ``False``, since the values may be mutable."""
        return False

    def copy(self, value: Any) -> Any:
        """Return a copy of a value, made by serializing and deserializing it."""
        return None if value is None else self.custom.deserialize(self.custom.serialize(value))

    def freezing(self) -> Freezing:
        """Return the frozen form: the bytes of the value."""
        import pyarrow as pa

        def write(frozen: Sequence[Any]) -> Any:
            return pa.array(frozen, self.arrow_type)

        return Freezing(self.custom.serialize, self.custom.deserialize, pa.Array.to_pylist, write)

    def config(self) -> dict[str, Any]:
        """Return the config of the user-defined serializer, empty by default."""
        config = getattr(self.custom, "config", None)
        return dict(config()) if config else {}

    def snapshot(self) -> SerializerSnapshot:
        """Return the snapshot that later versions are compared with."""
        class_id, version = f"{PREFIX}{self.custom.class_id}", self.custom.version
        return SerializerSnapshot(class_id=class_id, version=version, config=self.config())

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Return the verdict of the user-defined serializer; by default, a change of version or config is incompatible."""
        current = self.snapshot()
        if old.class_id != current.class_id:
            return self._resolve_other(old)
        decide = getattr(self.custom, "resolve_compatibility", None)
        if decide is not None:
            return _adapted(decide(_without_prefix(old)))
        if (old.version, old.config) == (current.version, current.config):
            return AS_IS
        return incompatible(
            f"{name_of(current)} was of version {old.version} and config {dict(old.config)}, is now of version "
            f"{current.version} and config {dict(current.config)}; define its resolve_compatibility"
        )

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        raise NotImplementedError

    @property
    def _identity(self) -> Any:
        return self.custom


def migrate_each(convert: Callable[[bytes], bytes]) -> Callable[[Any], Any]:
    """Return a ``migrate`` function for ``Compatibility`` that converts the bytes of each value."""

    def migrate(array: Any) -> Any:
        import pyarrow as pa

        return pa.array([None if data is None else convert(data) for data in array.to_pylist()], pa.binary())

    return migrate


def name_of(snapshot: SerializerSnapshot) -> str:
    """Return the class id that the user chose, without the prefix."""
    return snapshot.class_id.removeprefix(PREFIX)


def is_custom(snapshot: SerializerSnapshot) -> bool:
    """Return whether a snapshot belongs to a user-defined serializer."""
    return snapshot.class_id.startswith(PREFIX)


def _without_prefix(old: SerializerSnapshot) -> SerializerSnapshot:
    return SerializerSnapshot(class_id=name_of(old), version=old.version, config=old.config)


def _adapted(verdict: Compatibility) -> Compatibility:
    if verdict.serializer is None:
        return verdict
    return replace(
        verdict, serializer=SerializerAdapter(verdict.serializer), migrate=verdict.migrate or (lambda array: array)
    )
