"""Types of state as a checkpoint records them, and whether restored state fits today's types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    IncompatibleCheckpointError,
    StateCheckError,
    StateMigrationError,
)
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer
from airflow_provider_statecheck.state.serializers.serializer import (
    AS_IS,
    Compatibility,
    Outcome,
    SerializerSnapshot,
    decode_snapshot,
    describe,
    encode_snapshot,
    incompatible,
    kept_distinct,
    never_migrated,
    other_key,
    reasons,
    worst,
)

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


KEY = "key"
"""The name under which the key of keyed state is reported."""


class Fate(StrEnum):
    """What becomes of a state."""

    AS_IS = "as is"
    RECONFIGURED = "reconfigured"
    """It keeps the form that it has; new values are written in it too."""
    MIGRATED = "migrated"
    NEW = "new"
    KEPT_UNREAD = "kept unread"
    """Nobody asks for it now; it stays in every checkpoint."""
    INCOMPATIBLE = "incompatible"


_FATES = {
    Outcome.COMPATIBLE_AS_IS: Fate.AS_IS,
    Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER: Fate.RECONFIGURED,
    Outcome.COMPATIBLE_AFTER_MIGRATION: Fate.MIGRATED,
    Outcome.INCOMPATIBLE: Fate.INCOMPATIBLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of one state."""

    name: str
    scope: str
    """Whether it is keyed or operator state, or the key."""
    fate: Fate
    reason: str = ""
    old: str = ""
    """Its types in the checkpoint; empty for a new state."""
    new: str = ""
    """Its types today; empty where nobody asks for it."""

    @property
    def line(self) -> str:
        """Return the verdict as a line of a log."""
        types = " -> ".join(dict.fromkeys(filter(None, (self.old, self.new))))
        reason = f": {self.reason}" if self.reason else ""
        name = self.name if self.scope == KEY else f"{self.scope} state {self.name!r}"
        return f"{name}: {self.fate}{reason} [{types}]"


def verdicts(old: OperatorSchemas, new: OperatorSchemas) -> tuple[Verdict, ...]:
    """
    Return what becomes of each state of an operator; nothing of the state itself is read.

    :param old: What the checkpoint says.
    :param new: What the functions ask for today.
    """
    key = [] if old.key is None or new.key is None else [_of_key(old.key, new.key)]
    return (*key, *_of_scope("keyed", old.keyed, new.keyed), *_of_scope("operator", old.operator, new.operator))


def report(found: Iterable[Verdict]) -> str:
    """Return verdicts as lines of a log, those first that need a look."""
    order = [Fate.INCOMPATIBLE, Fate.MIGRATED, Fate.RECONFIGURED, Fate.KEPT_UNREAD, Fate.NEW, Fate.AS_IS]
    return "\n".join(verdict.line for verdict in sorted(found, key=lambda verdict: order.index(verdict.fate)))


def require_compatible(old: OperatorSchemas, new: OperatorSchemas, operator: str = "") -> tuple[Verdict, ...]:
    """
    Return what becomes of each state of an operator.

    :param operator: What to call it in the message.
    :raises StateMigrationError: naming each state that cannot go on, with its types before and now.
    """
    found = verdicts(old, new)
    refused = [verdict for verdict in found if verdict.fate is Fate.INCOMPATIBLE]
    if refused:
        raise _refusal(refused, operator)
    return found


def _refusal(refused: Sequence[Verdict], operator: str) -> StateMigrationError:
    of_operator = f" of the operator {operator!r}" if operator else ""
    lines = "; ".join(verdict.line for verdict in refused)
    return StateMigrationError(
        f"Expected state{of_operator} that can go on with the types of today, found {lines}. Undo the change, give the "
        f"state another name to begin anew, or restore with the release that wrote the checkpoint.",
        state=refused[0].name,
    )


def _of_key(old: SerializerSnapshot, new: SerializerSnapshot) -> Verdict:
    verdict = AS_IS if old == new else never_migrated(_resolved_key(old, new), "a key")
    return Verdict(
        name=KEY,
        scope=KEY,
        fate=_FATES[verdict.outcome],
        reason=verdict.reason,
        old=describe(old),
        new=describe(new),
    )


def _resolved_key(old: SerializerSnapshot, new: SerializerSnapshot) -> Compatibility:
    if "key" in (old.class_id, new.class_id):
        return other_key(old, new)
    return _resolved(old, new)


def _of_scope(scope: str, old: Iterable[StateSchema], new: Iterable[StateSchema]) -> list[Verdict]:
    before: Mapping[str, StateSchema] = {state.name: state for state in old}
    today: Mapping[str, StateSchema] = {state.name: state for state in new}
    return [_of_state(scope, name, before.get(name), today.get(name)) for name in dict.fromkeys((*before, *today))]


def _of_state(scope: str, name: str, old: StateSchema | None, new: StateSchema | None) -> Verdict:
    verdict = None if old is None or new is None else _compared(old, new)
    lone = Fate.NEW if old is None else Fate.KEPT_UNREAD
    return Verdict(
        name=name,
        scope=scope,
        fate=lone if verdict is None else _FATES[verdict.outcome],
        reason="" if verdict is None else verdict.reason,
        old="" if old is None else _shown(old),
        new="" if new is None else _shown(new),
    )


def _compared(old: StateSchema, new: StateSchema) -> Compatibility:
    if old.kind is not new.kind:
        return incompatible(f"was a {old.kind} state, is now a {new.kind} state")
    parts = [("", _resolved(old.value, new.value)), ("", _resolved_ttl(old, new))]
    if old.key is not None and new.key is not None:
        parts.append((KEY, kept_distinct(_resolved(old.key, new.key), "keys of a map")))
    return Compatibility(outcome=worst(part for _, part in parts), reason=reasons(parts))


def _resolved(old: SerializerSnapshot, new: SerializerSnapshot) -> Compatibility:
    try:
        return restored_serializer(new).resolve_compatibility(old)
    except StateCheckError as error:
        # Other states may well be restored, so it is said of this one alone.
        return incompatible(str(error))


def _resolved_ttl(old: StateSchema, new: StateSchema) -> Compatibility:
    if old.ttl == new.ttl:
        return AS_IS
    reason = (
        "a time to live begins at the restore" if new.ttl else "the time to live ends, what has expired is left out"
    )
    return Compatibility(outcome=Outcome.COMPATIBLE_AFTER_MIGRATION, reason=reason)


def _shown(state: StateSchema) -> str:
    value = describe(state.value)
    types = f"{describe(state.key)} to {value}" if state.kind is StateKind.MAP and state.key else value
    return f"{state.kind} of {types}{' with a time to live' if state.ttl else ''}"
