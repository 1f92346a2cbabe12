"""Serializers from their snapshots alone, for state whose types are not at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, StateMigrationError, UnsupportedStateError
from airflow_provider_statecheck.state.serializers.arrow_serializer import ArrowSerializer
from airflow_provider_statecheck.state.serializers.arrow_types import decode_type
from airflow_provider_statecheck.state.serializers.base import AbstractSerializer
from airflow_provider_statecheck.state.serializers.collection_serializer import COLLECTIONS, CollectionSerializer
from airflow_provider_statecheck.state.serializers.compatibility import require_known_version
from airflow_provider_statecheck.state.serializers.custom_serializer import OpaqueSerializer, is_custom
from airflow_provider_statecheck.state.serializers.datetime_serializer import DatetimeSerializer
from airflow_provider_statecheck.state.serializers.dict_serializer import DictSerializer
from airflow_provider_statecheck.state.serializers.enum_serializer import EnumNames
from airflow_provider_statecheck.state.serializers.optional import OptionalSerializer
from airflow_provider_statecheck.state.serializers.record_serializer import RecordField, RecordSerializer
from airflow_provider_statecheck.state.serializers.record_shapes import DictShape
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot, TypeSerializer
from airflow_provider_statecheck.state.serializers.snapshot_json import decode_snapshot
from airflow_provider_statecheck.state.serializers.ttl_serializer import TtlSerializer
from airflow_provider_statecheck.state.serializers.uuid_serializer import UuidSerializer

_Config = Mapping[str, Any]


def restored_serializer(snapshot: SerializerSnapshot) -> TypeSerializer[Any]:
    """
    Return a serializer that reads what the one of a snapshot wrote.

    Records come as dictionaries, members of enumerations as their names, and what a serializer of the user's own made as
    bytes.

    :raises UnsupportedStateError: for a class that nobody knows here.
    :raises IncompatibleCheckpointError: if a newer version wrote it.
    :raises CorruptStateError: for a config that its class does not make.
    """
    if is_custom(snapshot):
        return OpaqueSerializer(snapshot)
    make = _CLASSES.get(snapshot.class_id)
    if make is None:
        raise UnsupportedStateError(
            f"Expected a type of state that this release knows, found {snapshot.class_id!r} in version {snapshot.version}; "
            f"restore with the release that wrote the checkpoint, or a newer one."
        )
    require_known_version(snapshot, AbstractSerializer.version)
    try:
        return make(snapshot.config)
    except (LookupError, TypeError, AttributeError) as error:
        raise CorruptStateError(
            f"Expected the config of {snapshot.class_id!r}, found {snapshot.config!r:.200}."
        ) from error


def _collection(config: _Config) -> TypeSerializer[Any]:
    return CollectionSerializer(COLLECTIONS[config["collection"]], _part(config["element"]))


def _record(config: _Config) -> TypeSerializer[Any]:
    fields = [_field(field) for field in config["fields"]]
    return RecordSerializer(DictShape([field.name for field in fields]), fields)


def _field(config: _Config) -> RecordField:
    return RecordField(
        name=config["name"],
        serializer=_part(config["type"]),
        aliases=tuple(config.get("aliases", ())),
        default=_unknown_default if config.get("default") else None,
    )


def _part(encoded: _Config) -> TypeSerializer[Any]:
    return restored_serializer(decode_snapshot(encoded))


def _unknown_default() -> Any:
    raise StateMigrationError("Expected the class of a record to migrate its state to it, found its snapshot alone.")


_CLASSES: dict[str, Callable[[_Config], TypeSerializer[Any]]] = {
    "arrow": lambda config: ArrowSerializer(decode_type(config["type"])),
    "collection": _collection,
    "datetime": lambda _: DatetimeSerializer(),
    "dict": lambda config: DictSerializer(_part(config["key"]), _part(config["value"])),
    "enum": lambda config: EnumNames(config["names"]),
    "optional": lambda config: OptionalSerializer(_part(config["value"])),
    "record": _record,
    "ttl": lambda config: TtlSerializer(_part(config["value"])),
    "uuid": lambda _: UuidSerializer(),
}
