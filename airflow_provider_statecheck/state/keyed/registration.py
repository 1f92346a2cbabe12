"""What happens when a descriptor names a state that is there already, or that was restored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateMigrationError
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.serializers.compatibility import kept_distinct, serializer_from_now_on
from airflow_provider_statecheck.state.serializers.description import describe
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
)

_SAME = (Outcome.COMPATIBLE_AS_IS, Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER)


def require_same_state(known: RegisteredState, wanted: RegisteredState) -> None:
    """
    Refuse a descriptor that means another state than the one of its name.

    :raises InvalidConfigurationError: for another kind, other types, or a time to live where there was none.
    """
    differs = _difference(known, wanted)
    if differs:
        raise InvalidConfigurationError(
            f"Expected the state {wanted.name} to be what it was at first, found {differs}; use another name for another state."
        )


def reconfigured(wanted: RegisteredState, restored: StateSchema) -> RegisteredState:
    """
    Return a state with the serializers that its restored data asks for.

    :raises StateMigrationError: for another kind, or if the restored data cannot go on with the serializers.
    """
    if restored.kind is not wanted.kind:
        raise StateMigrationError(
            f"Expected {wanted.name} to be the {restored.kind} state that was restored, found a {wanted.kind} state; use another "
            f"name for another state."
        )
    verdict = compatibility_of(wanted.name, wanted.serializer, restored.value)
    serializer = serializer_from_now_on(verdict, wanted.serializer)
    if wanted.key_serializer is None or restored.key is None:
        return replace(wanted, serializer=serializer)
    keys = compatibility_of_keys(wanted.name, wanted.key_serializer, restored.key)
    return replace(wanted, serializer=serializer, key_serializer=serializer_from_now_on(keys, wanted.key_serializer))


def compatibility_of(name: str, serializer: TypeSerializer[Any], old: SerializerSnapshot) -> Compatibility:
    """
    Return how restored data goes on with a serializer.

    :raises StateMigrationError: if it cannot.
    """
    return _possible(name, serializer.resolve_compatibility(old), serializer, old)


def compatibility_of_keys(name: str, serializer: TypeSerializer[Any], old: SerializerSnapshot) -> Compatibility:
    """
    Return how restored keys of a map go on with a serializer.

    :raises StateMigrationError: if they cannot, or if two of them could become one.
    """
    verdict = kept_distinct(serializer.resolve_compatibility(old), "keys of a map")
    return _possible(name, verdict, serializer, old)


def _possible(
    name: str, verdict: Compatibility, serializer: TypeSerializer[Any], old: SerializerSnapshot
) -> Compatibility:
    if verdict.outcome is Outcome.INCOMPATIBLE:
        raise StateMigrationError(
            f"Expected the state {name} to be of a type that can go on with {describe(old)}, found "
            f"{describe(serializer.snapshot())}: {verdict.reason or 'they do not fit'}; keep the type, or use another name for a "
            f"new state.",
            state=name,
        )
    return verdict


def _difference(known: RegisteredState, wanted: RegisteredState) -> str | None:
    if wanted.kind is not known.kind:
        return f"a {wanted.kind} state in place of a {known.kind} state"
    if not _goes_on(wanted.serializer, known.serializer):
        return f"{describe(wanted.serializer.snapshot())} in place of {describe(known.serializer.snapshot())}"
    if known.key_serializer and wanted.key_serializer and not _goes_on(wanted.key_serializer, known.key_serializer):
        return f"keys of {describe(wanted.key_serializer.snapshot())} in place of {describe(known.key_serializer.snapshot())}"
    return "another time to live" if wanted.ttl != known.ttl else None


def _goes_on(wanted: TypeSerializer[Any], known: TypeSerializer[Any]) -> bool:
    return wanted.resolve_compatibility(known.snapshot()).outcome in _SAME
