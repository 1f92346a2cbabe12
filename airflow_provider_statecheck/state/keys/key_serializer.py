"""Keys of keyed state as Arrow columns, and the key group of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.keys.key_columns import key_groups, normalized_column
from airflow_provider_statecheck.state.keys.key_types import SPARK_SEED, KeyType, key_group_of_hash, key_type_of
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    other_key,
)

_CLASS_ID = "key"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class KeyField:
    """One column of a key."""

    name: str
    type: Any
    """An Arrow type."""


@dataclass(frozen=True)
class KeySerializer:
    """
    Keys of one or several columns; a key is a scalar of one column, a tuple of several.

    :param fields: The columns, in the order in which they are hashed.
    :raises InvalidConfigurationError: for no column, or two of the same name.
    :raises UnsupportedStateError: for a column whose type cannot be part of a key.
    """

    fields: tuple[KeyField, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if not names or len(set(names)) < len(names):
            raise InvalidConfigurationError(f"Expected a key of columns with different names, found {names}.")
        for field in self.fields:
            _key_type(field)

    @cached_property
    def _types(self) -> tuple[KeyType, ...]:
        return tuple(_key_type(field) for field in self.fields)

    def __getstate__(self) -> dict[str, Any]:
        # The rules hold closures; they follow from the fields.
        return {"fields": self.fields}

    @property
    def arrow_types(self) -> tuple[Any, ...]:
        """Return the Arrow type of each column that :meth:`to_columns` gives."""
        return tuple(key_type.arrow_type for key_type in self._types)

    def require(self, key: Any) -> None:
        """
        Refuse a key that has no key group.

        :raises InvalidConfigurationError: for ``None``, a part that is ``None``, or another number of parts.
        """
        if key is None or (len(self.fields) > 1 and (len(self._parts(key)) != len(self.fields) or None in key)):
            raise InvalidConfigurationError(
                f"Expected a key with a value for each of {self._shown}, found {key!r}; filter rows without a key out."
            )

    def normalized(self, key: Any) -> Any:
        """
        Return a key in the one form in which it is stored, compared and hashed.

        :raises InvalidConfigurationError: for a key or a part that is null.
        :raises UnsupportedStateError: for a part of another type than its column.
        """
        self.require(key)
        parts = zip(self.fields, self._types, self._parts(key), strict=True)
        normal = tuple(_normalized(field, key_type, part) for field, key_type, part in parts)
        return normal[0] if len(normal) == 1 else normal

    def key_group_of(self, key: Any, max_parallelism: int) -> int:
        """
        Return the key group of a key, which is the one that Spark computes.

        :raises InvalidConfigurationError: for a key or a part that is null.
        :raises UnsupportedStateError: for a part of another type than its column.
        """
        hashed = SPARK_SEED
        for key_type, part in zip(self._types, self._parts(self.normalized(key)), strict=True):
            hashed = key_type.hashed(part, hashed)
        return key_group_of_hash(hashed, max_parallelism)

    def to_columns(self, keys: Sequence[Any]) -> tuple[Any, ...]:
        """
        Return keys as Arrow columns.

        :raises InvalidConfigurationError: for a key or a part that is null.
        :raises UnsupportedStateError: for a part of another type than its column.
        """
        import pyarrow as pa

        normal = [self._parts(self.normalized(key)) for key in keys]
        columns = zip(*normal, strict=True) if normal else ((),) * len(self.fields)
        return tuple(pa.array(column, type=wanted) for column, wanted in zip(columns, self.arrow_types, strict=True))

    def normalized_columns(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        """
        Return columns as Spark sends them in the one form in which keys are stored, compared and hashed.

        :raises InvalidConfigurationError: for a null, or another number of columns.
        :raises UnsupportedStateError: for a column of another type.
        """
        if len(columns) != len(self.fields):
            raise InvalidConfigurationError(
                f"Expected a column for each of {self._shown}, found {len(columns)} columns."
            )
        return tuple(
            normalized_column(field.name, field.type, column)
            for field, column in zip(self.fields, columns, strict=True)
        )

    def from_columns(self, columns: Sequence[Any]) -> list[Any]:
        """
        Return the keys of Arrow columns as Spark sends them.

        :raises InvalidConfigurationError: for a null, or another number of columns.
        :raises UnsupportedStateError: for a column of another type, or a time that Python has not.
        """
        normal = self.normalized_columns(columns)
        values = [
            _values(field, kind, column) for field, kind, column in zip(self.fields, self._types, normal, strict=True)
        ]
        return values[0] if len(values) == 1 else list(zip(*values, strict=True))

    def key_groups_of(self, columns: Sequence[Any], max_parallelism: int) -> Any:
        """
        Return the key groups of the keys of Arrow columns, as a numpy array of int32.

        :raises InvalidConfigurationError: for a null, or another number of columns.
        :raises UnsupportedStateError: for a column of another type.
        """
        return key_groups(self.normalized_columns(columns), max_parallelism)

    def snapshot(self) -> SerializerSnapshot:
        """Return what a later version is compared with."""
        fields = [{"name": field.name, "type": kind.name} for field, kind in zip(self.fields, self._types, strict=True)]
        return SerializerSnapshot(class_id=_CLASS_ID, version=_VERSION, config={"fields": fields})

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Say whether keys that were written as ``old`` can go on; a key never migrates, because its group would change."""
        if old == self.snapshot():
            return Compatibility(outcome=Outcome.COMPATIBLE_AS_IS)
        return other_key(old, self.snapshot())

    def _parts(self, key: Any) -> tuple[Any, ...]:
        if len(self.fields) == 1:
            return (key,)
        return key if isinstance(key, tuple) else ()

    @property
    def _shown(self) -> str:
        return ", ".join(field.name for field in self.fields)


def _key_type(field: KeyField) -> KeyType:
    try:
        return key_type_of(field.type)
    except UnsupportedStateError as error:
        raise UnsupportedStateError(f"The column {field.name} cannot be part of a key. {error}") from error


def _normalized(field: KeyField, key_type: KeyType, value: Any) -> Any:
    try:
        return key_type.normalized(value)
    except (TypeError, ValueError) as error:
        detail = f": {error}" if str(error) else ""
        raise UnsupportedStateError(
            f"Expected a {key_type.name} as the part {field.name} of a key, found {value!r}{detail}."
        ) from error


def _values(field: KeyField, key_type: KeyType, column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise UnsupportedStateError(
            f"Expected times of the years 1 to 9999 in the key column {field.name}: {error}."
        ) from error
    return values if key_type.is_exact else [key_type.normalized(value) for value in values]


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """
    Distinct keys with the key groups that they belong to.

    They are ordered by key group; within one, in no particular order.
    """

    key_groups: Any
    """An Arrow array of int32, ascending."""
    columns: tuple[Any, ...]
    """One Arrow array for each column of the key, as long as ``key_groups``."""

    def __len__(self) -> int:
        return len(self.key_groups)
