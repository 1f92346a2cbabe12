"""Keys of keyed state: normal form, Arrow columns, hashes and key groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.keys.key_groups import (
    SPARK_SEED,
    key_group_of_hash,
    key_groups_of_hashes,
)
from airflow_provider_statecheck.state.keys.key_types import (
    KeyType,
    hash_column,
    key_type_of,
)
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    SerializerSnapshot,
    key_compatibility,
)

_CLASS_ID = "key"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class KeyField:
    """
    Name and type of a key column.

    :param type: Arrow type of the column.
    :param aliases: Former names of the column.
    :raises UnsupportedStateError: if the type cannot be part of a key.
    """

    name: str
    type: Any
    aliases: tuple[str, ...] = field(default=(), compare=False)
    key_type: KeyType = field(init=False, repr=False, compare=False)
    """Normalization and hash of the values."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "key_type", key_type_of(self.type))
        except UnsupportedStateError as error:
            raise UnsupportedStateError(f"The column {self.name} cannot be part of a key. {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        # Key types contain closures, which cannot be pickled.
        return KeyField, (self.name, self.type, self.aliases)

    def normalized(self, value: Any) -> Any:
        """Return the normal form of a value."""
        try:
            return self.key_type.normalized(value)
        except (TypeError, ValueError, OverflowError) as error:
            detail = f": {error}" if str(error) else ""
            raise UnsupportedStateError(
                f"Expected a {self.key_type.name} as the part {self.name} of a key, found {value!r:.100}{detail}."
            ) from error

    def normalized_column(self, column: Any) -> Any:
        """Return the normal form of a column as Spark sends it."""
        kind = self.key_type.name
        if key_type_of(column.type).name != kind:
            raise UnsupportedStateError(f"Expected the key column {self.name} to be a {kind}, found {column.type}.")
        if column.null_count:
            raise InvalidConfigurationError(
                f"Expected a key in each row, found {counted(column.null_count, 'row')} without {self.name}; filter "
                "them out before key_by."
            )
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        try:
            cast = array.cast(self.key_type.arrow_type)
        except pa.ArrowInvalid as error:
            raise UnsupportedStateError(f"Expected the key column {self.name} to be a {kind}: {error}.") from error
        return _without_negative_zero(cast) if pa.types.is_floating(cast.type) else cast

    def values(self, column: Any) -> list[Any]:
        """Return the normalized values of a normalized column."""
        try:
            values: list[Any] = column.to_pylist()
        except UnicodeDecodeError as error:
            raise UnsupportedStateError(
                f"Expected texts in UTF-8 in the key column {self.name}, found others; use "
                f"make_valid_utf8({self.name}), or a binary key."
            ) from error
        except (ValueError, OverflowError) as error:
            raise UnsupportedStateError(
                f"Expected times of the years 1 to 9999 in the key column {self.name}: {error}."
            ) from error
        return values if self.key_type.is_exact else list(map(self.key_type.normalized, values))


def _without_negative_zero(column: Any) -> Any:
    nan = pa.scalar(float("nan"), type=column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, type=column.type)))


@dataclass(frozen=True)
class KeySerializer:
    """
    Serializer of keys of one or several columns.

    A key of one column is a scalar, a key of several columns is a tuple. Its key group equals the one that Spark
    computes.

    Methods that take keys raise ``InvalidConfigurationError`` if a key or a part of it is ``None``, and
    ``UnsupportedStateError`` if the type of a part differs from its column. Methods that take columns as Spark sends
    them raise ``InvalidConfigurationError`` if a column contains a null or the number of columns differs, and
    ``UnsupportedStateError`` if a column has another type.

    :param fields: The key columns in the order in which they are hashed.
    :raises InvalidConfigurationError: if there is no column, or two columns have the same name.
    """

    fields: tuple[KeyField, ...]

    def __post_init__(self) -> None:
        names = [each.name for each in self.fields]
        if not names or len(set(names)) < len(names):
            raise InvalidConfigurationError(f"Expected a key of columns with different names, found {names}.")

    @property
    def arrow_types(self) -> tuple[Any, ...]:
        """The Arrow types of the normalized columns."""
        return tuple(each.key_type.arrow_type for each in self.fields)

    def require(self, key: Any) -> None:
        """Require a value for each key column, in a key with the right number of parts."""
        if key is None or (len(self.fields) > 1 and (len(self._parts(key)) != len(self.fields) or None in key)):
            raise InvalidConfigurationError(
                f"Expected a key with a value for each of {self._column_names}, found {key!r:.100}; filter rows "
                "without a key out."
            )

    def normalized(self, key: Any) -> Any:
        """Return the normal form of a key, in which it is stored, compared and hashed."""
        self.require(key)
        if len(self.fields) == 1:
            return self.fields[0].normalized(key)
        return tuple(each.normalized(part) for each, part in zip(self.fields, key, strict=True))

    def key_group_of(self, key: Any, max_parallelism: int) -> int:
        """Return the key group of a key."""
        return self.key_group_of_normalized(self.normalized(key), max_parallelism)

    def key_group_of_normalized(self, key: Any, max_parallelism: int) -> int:
        """Return the key group of a key in normal form."""
        hashed = SPARK_SEED
        for each, part in zip(self.fields, self._parts(key), strict=True):
            hashed = each.key_type.hashed(part, hashed)
        return key_group_of_hash(hashed, max_parallelism)

    def to_columns(self, keys: Sequence[Any]) -> tuple[Any, ...]:
        """Return keys as normalized Arrow columns."""
        return self.to_columns_of_normalized([self.normalized(key) for key in keys])

    def to_columns_of_normalized(self, keys: Sequence[Any]) -> tuple[Any, ...]:
        """Return keys in normal form as Arrow columns."""
        types = self.arrow_types
        if len(types) == 1:
            return (pa.array(keys, type=types[0]),)
        columns = zip(*keys, strict=True) if keys else ((),) * len(types)
        return tuple(pa.array(column, type=wanted) for column, wanted in zip(columns, types, strict=True))

    def normalized_columns(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        """Return the normal form of key columns as Spark sends them."""
        if len(columns) != len(self.fields):
            raise InvalidConfigurationError(
                f"Expected a column for each of {self._column_names}, found {counted(len(columns), 'column')}."
            )
        return tuple(map(KeyField.normalized_column, self.fields, columns))

    def from_columns(self, columns: Sequence[Any]) -> list[Any]:
        """
        Return the keys of Arrow columns as Spark sends them, in normal form.

        :raises UnsupportedStateError: if a time is outside the years 1 to 9999, or a text is not in UTF-8, too.
        """
        values = list(map(KeyField.values, self.fields, self.normalized_columns(columns)))
        return values[0] if len(values) == 1 else list(zip(*values, strict=True))

    def key_groups_of(self, columns: Sequence[Any], max_parallelism: int) -> Any:
        """Return the key groups of Arrow columns as Spark sends them, as a numpy array of int32."""
        hashed = np.full(len(columns[0]), SPARK_SEED, dtype=np.uint64)
        for each, column in zip(self.fields, self.normalized_columns(columns), strict=True):
            hashed = hash_column(each.key_type, column, hashed)
        return key_groups_of_hashes(hashed, max_parallelism)

    def snapshot(self) -> SerializerSnapshot:
        """Return the names and types of the columns, which the next release compares with its own."""
        fields = [
            {"name": each.name, "type": each.key_type.name} | ({"aliases": list(each.aliases)} if each.aliases else {})
            for each in self.fields
        ]
        return SerializerSnapshot(class_id=_CLASS_ID, version=_VERSION, config={"fields": fields})

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """
        Return whether keys with the snapshot ``old`` are compatible with this serializer.

        Columns may have other names. Values are never migrated, because their key groups would change.
        """
        return key_compatibility(old, self.snapshot())

    def _parts(self, key: Any) -> tuple[Any, ...]:
        if len(self.fields) == 1:
            return (key,)
        return key if isinstance(key, tuple) else ()

    @property
    def _column_names(self) -> str:
        return ", ".join(each.name for each in self.fields)


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """
    Distinct keys and their key groups.

    The keys are ordered by key group; the order within a key group is undefined.
    """

    key_groups: Any
    """Ascending Arrow array of int32."""
    columns: tuple[Any, ...]
    """One Arrow array per key column, of the same length as ``key_groups``."""

    def __len__(self) -> int:
        return len(self.key_groups)

    def take(self, rows: Any) -> KeyBatch:
        """Return the keys at ascending row numbers, an Arrow array."""
        return KeyBatch(self.key_groups.take(rows), tuple(column.take(rows) for column in self.columns))
