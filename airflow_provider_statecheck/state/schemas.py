"""What a checkpoint says about the types of an operator's state, so that the next release is compared before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.state.serializers.snapshot_json import decode_snapshot, encode_snapshot

VERSION = 1
"""Of the JSON that :func:`encode_schemas` makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """The types of one state."""

    name: str
    kind: StateKind
    key: SerializerSnapshot | None = None
    """Of the keys of a map."""
    value: SerializerSnapshot
    """Of a value, of an element of a list, or of a value of a map; without what its time to live adds."""
    ttl: bool = False
    """Whether each value has the time at which it was last used."""
    ttl_ms: int | None = None
    """How many milliseconds a value lives, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSchemas:
    """The types of all state of one operator."""

    key: SerializerSnapshot | None = None
    """Of the key of its keyed state."""
    keyed: tuple[StateSchema, ...] = ()
    operator: tuple[StateSchema, ...] = ()
    """Lists and broadcast maps that belong to no key."""


def encode_schemas(schemas: OperatorSchemas) -> dict[str, Any]:
    """Return schemas as JSON."""
    return {
        "version": VERSION,
        "key": None if schemas.key is None else encode_snapshot(schemas.key),
        "keyed": [_encode_state(state) for state in schemas.keyed],
        "operator": [_encode_state(state) for state in schemas.operator],
    }


def decode_schemas(encoded: Mapping[str, Any]) -> OperatorSchemas:
    """
    Return the schemas that were encoded; types that this version does not know are no error before they are used.

    :raises IncompatibleCheckpointError: if a newer version wrote them.
    :raises CorruptStateError: for JSON that :func:`encode_schemas` does not make.
    """
    try:
        _require_version(encoded["version"])
        return OperatorSchemas(
            key=_decode_optional(encoded["key"]),
            keyed=tuple(_decode_state(state) for state in encoded["keyed"]),
            operator=tuple(_decode_state(state) for state in encoded["operator"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptStateError(f"Expected the schemas of an operator's state, found {encoded!r:.200}.") from error


def _encode_state(state: StateSchema) -> dict[str, Any]:
    return {
        "name": state.name,
        "kind": state.kind.value,
        "key": None if state.key is None else encode_snapshot(state.key),
        "value": encode_snapshot(state.value),
        "ttl": state.ttl,
        "ttl_ms": state.ttl_ms,
    }


def _decode_state(encoded: Mapping[str, Any]) -> StateSchema:
    return StateSchema(
        name=encoded["name"],
        kind=StateKind(encoded["kind"]),
        key=_decode_optional(encoded["key"]),
        value=decode_snapshot(encoded["value"]),
        ttl=encoded["ttl"],
        ttl_ms=encoded.get("ttl_ms"),
    )


def _decode_optional(encoded: Mapping[str, Any] | None) -> SerializerSnapshot | None:
    return None if encoded is None else decode_snapshot(encoded)


def _require_version(version: Any) -> None:
    if version != VERSION:
        raise IncompatibleCheckpointError(
            f"Expected the schemas of state in version {VERSION}, found {version!r}; restore with the release that wrote "
            f"the checkpoint, or a newer one."
        )
