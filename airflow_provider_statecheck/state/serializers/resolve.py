"""Selection of the serializer for a declared type or for a snapshot."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from types import NoneType
from typing import Any
from uuid import UUID

from airflow_provider_statecheck.exceptions import CorruptStateError, StateMigrationError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.serializers.arrow_serializer import (
    ArrowSerializer,
    decode_type,
    serializer_of_arrow_type,
)
from airflow_provider_statecheck.state.serializers.custom_serializer import (
    CustomSerializer,
    OpaqueSerializer,
    SerializerAdapter,
    is_custom,
)
from airflow_provider_statecheck.state.serializers.nested_columns import OptionalSerializer
from airflow_provider_statecheck.state.serializers.record_serializer import (
    Aliases,
    RecordField,
    RecordSerializer,
)
from airflow_provider_statecheck.state.serializers.record_shapes import (
    DataclassShape,
    DictShape,
    HashableDictShape,
    NamedTupleShape,
    RecordShape,
    TupleShape,
)
from airflow_provider_statecheck.state.serializers.scalar_serializers import (
    COLLECTIONS,
    CollectionSerializer,
    DatetimeSerializer,
    DictSerializer,
    EnumNames,
    EnumSerializer,
    UuidSerializer,
)
from airflow_provider_statecheck.state.serializers.serializer import (
    SerializerSnapshot,
    TypeSerializer,
    decode_snapshot,
    require_known_version,
)
from airflow_provider_statecheck.storage.stored_json import UNDECODABLE

DECIMAL_PRECISION, DECIMAL_SCALE = 38, 18
"""
Arrow precision and scale of ``Decimal``: 20 integer and 18 fractional digits. Declare ``pyarrow.decimal128`` for
others.
"""

_Outer = tuple[type, ...]
"""Enclosing record classes, to detect recursive types."""


def serializer_of(type_or_serializer: Any) -> TypeSerializer[Any]:
    """
    Return the serializer of a type.

    :param type_or_serializer: A Python type, an Arrow type, a ``TypeSerializer`` or a ``CustomSerializer``.
    :raises UnsupportedStateError: if a checkpoint cannot restore equal values of the type.
    """
    return _resolved(type_or_serializer, ())


def _resolved(declared: Any, outer: _Outer) -> TypeSerializer[Any]:
    scalar = _scalar(declared)
    if scalar is not None:
        return scalar
    if isinstance(declared, type) and declared in outer:
        raise _unsupported(f"{declared.__qualname__} within itself", "A column cannot hold a recursive type.")
    generic = _generic(declared, outer)
    if generic is not None:
        return generic
    return _record(declared, outer) if isinstance(declared, type) else _serializer_object(declared)


def _scalar(declared: Any) -> TypeSerializer[Any] | None:
    if isinstance(declared, pa.DataType):
        return serializer_of_arrow_type(declared)
    if not isinstance(declared, type):
        return None
    if issubclass(declared, Enum):
        return EnumSerializer(declared)
    if declared is datetime:
        return DatetimeSerializer()
    if declared is UUID:
        return UuidSerializer()
    arrow_types = {
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        str: pa.string(),
        bytes: pa.binary(),
        Decimal: pa.decimal128(DECIMAL_PRECISION, DECIMAL_SCALE),
        date: pa.date32(),
        time: pa.time64("us"),
        timedelta: pa.duration("us"),
    }
    return ArrowSerializer(arrow_types[declared]) if declared in arrow_types else None


def _generic(declared: Any, outer: _Outer) -> TypeSerializer[Any] | None:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated:
        return _resolved(arguments[0], outer)
    if origin in (typing.Union, types.UnionType):
        return _optional(declared, arguments, outer)
    if origin is dict and len(arguments) == 2:
        return DictSerializer(_resolved(arguments[0], outer), _resolved(arguments[1], outer))
    if origin is tuple and arguments[-1:] != (...,):
        return _tuple(arguments, outer)
    if origin in COLLECTIONS.values() and arguments:
        return CollectionSerializer(origin, _resolved(arguments[0], outer))
    return None


def _optional(declared: Any, arguments: tuple[Any, ...], outer: _Outer) -> TypeSerializer[Any]:
    others = [argument for argument in arguments if argument is not NoneType]
    if len(others) != 1 or len(others) == len(arguments):
        raise _unsupported(
            str(declared), "A column holds values of one type; use a record with an optional field for each."
        )
    return OptionalSerializer(_resolved(others[0], outer))


def _tuple(arguments: tuple[Any, ...], outer: _Outer) -> TypeSerializer[Any]:
    shape = TupleShape(len(arguments))
    items = zip(shape.names, arguments, strict=True)
    return RecordSerializer(shape, [RecordField(name=name, serializer=_resolved(item, outer)) for name, item in items])


def _record(cls: type, outer: _Outer) -> TypeSerializer[Any]:
    if dataclasses.is_dataclass(cls):
        return RecordSerializer(DataclassShape(cls), _fields_of_dataclass(cls, (*outer, cls)))
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return RecordSerializer(NamedTupleShape(cls), _fields_of_named_tuple(cls, (*outer, cls)))
    raise _unsupported(cls.__qualname__, _advice(cls))


def _fields_of_dataclass(cls: Any, outer: _Outer) -> list[RecordField]:
    hints = _type_hints(cls)
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        raise UnsupportedStateError(
            f"Expected {cls.__qualname__} to be constructed from its fields only, found an InitVar; make it a field."
        )
    return [
        _field(field.name, hints[field.name], outer, _default(field), field.metadata.get("aliases", ()))
        for field in dataclasses.fields(cls)
    ]


def _fields_of_named_tuple(cls: Any, outer: _Outer) -> list[RecordField]:
    hints = _type_hints(cls)
    for name in {*cls._fields} - {*hints}:
        raise UnsupportedStateError(
            f"Expected a type for the field {name} of {cls.__qualname__}; use typing.NamedTuple."
        )
    defaults = {name: partial(_same, value) for name, value in cls._field_defaults.items()}
    return [_field(name, hints[name], outer, defaults.get(name)) for name in cls._fields]


def _type_hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError) as error:
        raise UnsupportedStateError(
            f"Expected the types of the fields of {cls.__qualname__} at the top of its module, found {error}; move "
            "them there."
        ) from error


def _field(
    name: str, hint: Any, outer: _Outer, default: Callable[[], Any] | None, aliases: Sequence[str] = ()
) -> RecordField:
    if typing.get_origin(hint) is typing.Annotated:
        hint, *extras = typing.get_args(hint)
        aliases = [*aliases, *(alias for extra in extras if isinstance(extra, Aliases) for alias in extra.names)]
    try:
        serializer = _resolved(hint, outer)
    except UnsupportedStateError as error:
        raise UnsupportedStateError(f"In the field {name} of {outer[-1].__qualname__}: {error}") from error
    return RecordField(name=name, serializer=serializer, aliases=tuple(aliases), default=default)


def _default(field: Any) -> Callable[[], Any] | None:
    if field.default_factory is not dataclasses.MISSING:
        factory: Callable[[], Any] = field.default_factory
        return factory
    return None if field.default is dataclasses.MISSING else partial(_same, field.default)


def _same(value: Any) -> Any:
    return value


def _serializer_object(declared: Any) -> TypeSerializer[Any]:
    if isinstance(declared, TypeSerializer):
        return declared
    if isinstance(declared, CustomSerializer):
        return SerializerAdapter(declared)
    raise _unsupported(repr(declared), "Pass an object with serialize, deserialize, class_id and version.")


def _advice(cls: type) -> str:
    if cls in (list, tuple, set, frozenset, dict):
        return f"Declare the type of its elements, as in {cls.__name__}[{'str, int' if cls is dict else 'str'}]."
    return "Use a dataclass, or pass an object with serialize, deserialize, class_id and version."


def _unsupported(found: str, advice: str) -> UnsupportedStateError:
    return UnsupportedStateError(
        "Expected the type of state to be bool, int, float, str, bytes, Decimal, date, datetime, time, timedelta, "
        f"UUID, an enumeration, a dataclass, a named tuple, an Arrow type, or a collection of these; found {found}. "
        f"{advice}"
    )


_Config = Mapping[str, Any]
_Shape = Callable[[list[str]], RecordShape]
"""Returns the shape of records with the given field names."""


def restored_serializer(snapshot: SerializerSnapshot) -> TypeSerializer[Any]:
    """
    Return a serializer that reads the state of a snapshot without the user's classes.

    Records are read as dictionaries, enum members as their names, and values of user-defined serializers as bytes.

    :raises UnsupportedStateError: if the class id is unknown.
    :raises IncompatibleCheckpointError: if a newer version wrote the snapshot.
    :raises CorruptStateError: if the config of the snapshot is malformed.
    """
    return _restored(snapshot, DictShape)


def restored_user_keys(snapshot: SerializerSnapshot) -> TypeSerializer[Any]:
    """Return the serializer of the keys of a map, whose values are hashable; raises as :func:`restored_serializer`."""
    return _restored(snapshot, HashableDictShape)


def _restored(snapshot: SerializerSnapshot, shape: _Shape) -> TypeSerializer[Any]:
    if is_custom(snapshot):
        return OpaqueSerializer(snapshot)
    make = _CLASSES.get(snapshot.class_id)
    if make is None:
        raise UnsupportedStateError(
            f"Expected a type of state that this release knows, found {snapshot.class_id!r} in version "
            f"{snapshot.version}; restore with the release that wrote the checkpoint, or a newer one."
        )
    require_known_version(snapshot, TypeSerializer.version)
    try:
        return make(snapshot.config, shape)
    except UNDECODABLE as error:
        raise CorruptStateError(
            f"Expected the config of {snapshot.class_id!r}, found {snapshot.config!r:.200}."
        ) from error


def _collection(config: _Config, shape: _Shape) -> TypeSerializer[Any]:
    collection = COLLECTIONS[config["collection"]]
    hashed = collection in (set, frozenset)
    return CollectionSerializer(collection, _restored_part(config["element"], HashableDictShape if hashed else shape))


def _dict(config: _Config, shape: _Shape) -> TypeSerializer[Any]:
    return DictSerializer(_restored_part(config["key"], HashableDictShape), _restored_part(config["value"], shape))


def _restored_record(config: _Config, shape: _Shape) -> TypeSerializer[Any]:
    fields = [_restored_field(field, shape) for field in config["fields"]]
    return RecordSerializer(shape([field.name for field in fields]), fields)


def _restored_field(config: _Config, shape: _Shape) -> RecordField:
    return RecordField(
        name=config["name"],
        serializer=_restored_part(config["type"], shape),
        aliases=tuple(config.get("aliases", ())),
        default=_unknown_default if config.get("default") else None,
    )


def _restored_part(encoded: _Config, shape: _Shape) -> TypeSerializer[Any]:
    return _restored(decode_snapshot(encoded), shape)


def _unknown_default() -> Any:
    raise StateMigrationError(
        "Expected the class of a record to migrate its state, found only its snapshot; migrate with the class."
    )


_CLASSES: dict[str, Callable[[_Config, _Shape], TypeSerializer[Any]]] = {
    "arrow": lambda config, _: ArrowSerializer(decode_type(config["type"])),
    "collection": _collection,
    "datetime": lambda *_: DatetimeSerializer(),
    "dict": _dict,
    "enum": lambda config, _: EnumNames(config["names"], config.get("aliases")),
    "optional": lambda config, shape: OptionalSerializer(_restored_part(config["value"], shape)),
    "record": _restored_record,
    "uuid": lambda *_: UuidSerializer(),
}
