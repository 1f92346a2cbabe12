"""
State schemas in checkpoint metadata, and their compatibility with the current types.

Compatibility is decided from the schemas alone. No state is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.masking import Lines, printable
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    StateCheckError,
    StateMigrationError,
    UnknownVersionError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.aggregates import AggregateSchema
from airflow_provider_statecheck.state.combining.records import Combination
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.serializers.custom_serializer import PREFIX
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer
from airflow_provider_statecheck.state.serializers.serializer import (
    AS_IS,
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
    describe,
    incompatible,
    kept_distinct,
    key_compatibility,
    migrated,
    never_migrated,
    reasons,
    serializer_from_now_on,
    worst,
)
from airflow_provider_statecheck.storage.stored_json import UNDECODABLE

VERSION = 1
"""Format version of the JSON written by :func:`encode_schemas`."""
KEY = "key"
"""Name under which the key type of keyed state is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """Types of one state."""

    name: str
    kind: StateKind
    key: SerializerSnapshot | None = None
    """Type of the user keys; ``None`` unless the state is a map."""
    value: SerializerSnapshot
    """Type of a value, a list element or a map value, without the timestamp that a time to live adds."""
    ttl_ms: int | None = None
    """Time to live in milliseconds; ``None`` if values never expire and do not carry the time of their last use."""
    queryable_name: str | None = field(default=None, compare=False)
    """Name for queries from outside the stage; a schema with another one describes the same state."""
    combination: Combination = field(default=(), compare=False)
    """How partial results in the values are combined; empty for a state that has never had any."""

    @property
    def expires(self) -> bool:
        """Whether values have a time to live."""
        return self.ttl_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSchemas:
    """Types of all state of one operator."""

    key: SerializerSnapshot | None = None
    """Type of the keys of its keyed state."""
    keyed: tuple[StateSchema, ...] = ()
    operator: tuple[StateSchema, ...] = ()
    """Operator state: lists and broadcast maps without a key."""
    aggregates: tuple[AggregateSchema, ...] = ()
    """Declared aggregates of its keyed state; empty for a function of the user."""


class Fate(StrEnum):
    """Handling of a state on restore."""

    AS_IS = "as is"
    RECONFIGURED = "reconfigured"
    """The state keeps its restored format, and new values are written in that format."""
    MIGRATED = "migrated"
    NEW = "new"
    RETAINED = "retained, unused"
    """No descriptor uses the state; it is copied to every checkpoint."""
    INCOMPATIBLE = "incompatible"


_FATES = {
    Outcome.COMPATIBLE_AS_IS: Fate.AS_IS,
    Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER: Fate.RECONFIGURED,
    Outcome.COMPATIBLE_AFTER_MIGRATION: Fate.MIGRATED,
    Outcome.INCOMPATIBLE: Fate.INCOMPATIBLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Handling of one state on restore, with the reason."""

    name: str
    scope: str
    """``keyed``, ``operator`` or ``key``."""
    fate: Fate
    reason: str = ""
    old: str = ""
    """Types in the checkpoint; empty for a new state."""
    new: str = ""
    """Current types; empty for a state without a descriptor."""

    @property
    def line(self) -> str:
        """The verdict as one log line."""
        types = " -> ".join(dict.fromkeys(filter(None, (self.old, self.new))))
        reason = f": {self.reason}" if self.reason else ""
        name = self.name if self.scope == KEY else f"{self.scope} state {self.name!r}"
        return f"{name}: {self.fate}{reason} [{types}]"


def encode_schemas(schemas: OperatorSchemas) -> dict[str, Any]:
    """Encode schemas as JSON."""
    return {"version": VERSION, **encode(schemas)}


def decode_schemas(encoded: Mapping[str, Any]) -> OperatorSchemas:
    """
    Decode schemas. Unknown types are accepted and fail only when they are used.

    :raises UnknownVersionError: if a newer version wrote the schemas.
    :raises CorruptStateError: if the JSON was not written by :func:`encode_schemas`.
    """
    try:
        if encoded["version"] != VERSION:
            raise UnknownVersionError(
                f"Expected state schemas of version {VERSION}, found {encoded['version']!r}; restore with the release "
                "that wrote the checkpoint, or a newer one."
            )
        return decode(OperatorSchemas, encoded)
    except UNDECODABLE as error:
        raise CorruptStateError(
            f"Expected the state schemas of an operator, found {encoded!r:.200}; restore from another checkpoint."
        ) from error


def verdicts(old: OperatorSchemas, new: OperatorSchemas) -> tuple[Verdict, ...]:
    """
    Compare the types of a checkpoint with the current types, state by state.

    :param old: Schemas in the checkpoint.
    :param new: Schemas of the current descriptors.
    """
    key = [] if old.key is None or new.key is None else [_key_verdict(old.key, new.key)]
    return (
        *key,
        *_scope_verdicts("keyed", old.keyed, new.keyed),
        *_scope_verdicts("operator", old.operator, new.operator),
    )


def report(found: Iterable[Verdict]) -> str:
    """Format verdicts as log lines, the most severe first."""
    order = [Fate.INCOMPATIBLE, Fate.MIGRATED, Fate.RECONFIGURED, Fate.RETAINED, Fate.NEW, Fate.AS_IS]
    lines = (verdict.line for verdict in sorted(found, key=lambda verdict: order.index(verdict.fate)))
    return Lines("\n".join(map(printable, lines)))


def require_compatible(old: OperatorSchemas, new: OperatorSchemas, operator: str = "") -> tuple[Verdict, ...]:
    """
    Return the verdict on each state, or raise if a state is incompatible.

    :param operator: Operator name for the error message.
    :raises StateMigrationError: if a state is incompatible; names each such state with its old and new types.
    """
    found = verdicts(old, new)
    incompatible_states = [verdict for verdict in found if verdict.fate is Fate.INCOMPATIBLE]
    if incompatible_states:
        of_operator = f" of the operator {operator!r}" if operator else ""
        lines = "; ".join(verdict.line for verdict in incompatible_states)
        raise StateMigrationError(
            f"Expected state{of_operator} that is compatible with the current types, found {lines}. Undo the change, "
            "give the state another name to start it empty, or restore with the release that wrote the checkpoint.",
            state=incompatible_states[0].name,
        )
    return found


def as_written(old: Iterable[StateSchema], new: Iterable[StateSchema]) -> tuple[StateSchema, ...]:
    """
    Return the schemas in which compatible keyed states are written.

    A reconfigured serializer keeps the restored format, which is then the format of all subtasks, also of those without
    restored state.
    """
    restored = {state.name: state for state in old}
    return tuple(_as_written(restored.get(state.name), state) for state in new)


def _as_written(old: StateSchema | None, new: StateSchema) -> StateSchema:
    if old is None:
        return new
    key = new.key if old.key is None or new.key is None else _snapshot_from_now_on(old.key, new.key)
    return replace(new, key=key, value=_snapshot_from_now_on(old.value, new.value))


def schema_of_all(found: Sequence[StateSchema]) -> StateSchema:
    """
    Return the schema of one state in which all rows can be read without loss, the first one if there is none.

    A subtask migrates a state when it requests the state, so that others may still have rows of an earlier release.

    :param found: Schemas of the state in the files of all subtasks.
    """
    # Schemas of one release may differ in nothing but that.
    found = sorted(found, key=lambda each: not each.combination)
    distinct = [each for number, each in enumerate(found) if each not in found[:number]]
    return next((each for each in distinct if all(is_exact(other, each) for other in distinct)), found[0])


def is_exact(old: StateSchema, new: StateSchema) -> bool:
    """Return whether rows of a schema lose nothing, and gain no times, when they are read in another one."""
    return old == new or (old.expires == new.expires and loses_nothing(old, new))


def loses_nothing(old: StateSchema, new: StateSchema) -> bool:
    """
    Return whether rows of a schema have all of their fields and times when they are read in another one.

    Without the class of a record, they cannot be read in one that has a further field with a default.
    """
    verdict = _compatibility(old, new)
    is_whole = verdict.outcome is not Outcome.INCOMPATIBLE and not verdict.merges and old.expires <= new.expires
    return is_whole and _is_readable(old.value, new.value) and _is_readable(old.key, new.key)


def custom_types(state: StateSchema) -> frozenset[str]:
    """Return the snapshots of the user-defined serializers that the types of a state are, or contain, as JSON."""
    found: list[str] = []

    def keep_custom(encoded: dict[str, Any]) -> dict[str, Any]:
        if str(encoded.get("class_id")).startswith(PREFIX):
            found.append(json.dumps(encoded, sort_keys=True))
        return encoded

    for each in filter(None, (state.key, state.value)):
        json.loads(json.dumps(encode(each)), object_hook=keep_custom)
    return frozenset(found)


def are_comparable(a: StateSchema, b: StateSchema) -> bool:
    """
    Return whether equal values of a state are equal in the columns of both schemas, so that neither needs a migration.
    """
    if a.kind is not b.kind:
        return False
    if (a.key, a.value) == (b.key, b.value):
        return True
    # Only the code of a user-defined serializer knows whether two versions write equal bytes.
    return not custom_types(b) and (_is_unchanged(a, b) or _is_unchanged(b, a))


def _is_unchanged(old: StateSchema, new: StateSchema) -> bool:
    pairs = [(old.value, new.value)] + ([(old.key, new.key)] if old.key and new.key else [])
    return worst(_type_compatibility(*each) for each in pairs) is Outcome.COMPATIBLE_AS_IS


def _is_readable(old: SerializerSnapshot | None, new: SerializerSnapshot | None) -> bool:
    if old is None or new is None:
        return True
    try:
        migrated(restored_serializer(new).resolve_compatibility(old), pa.array([], restored_serializer(old).arrow_type))
    except StateMigrationError:
        return False
    return True


def _snapshot_from_now_on(old: SerializerSnapshot, new: SerializerSnapshot) -> SerializerSnapshot:
    serializer = restored_serializer(new)
    return serializer_from_now_on(serializer.resolve_compatibility(old), serializer).snapshot()


def _key_verdict(old: SerializerSnapshot, new: SerializerSnapshot) -> Verdict:
    compatibility = key_compatibility if "key" in (old.class_id, new.class_id) else _type_compatibility
    verdict = AS_IS if old == new else never_migrated(compatibility(old, new), "a key")
    types = {"old": describe(old), "new": describe(new)}
    return Verdict(name=KEY, scope=KEY, fate=_FATES[verdict.outcome], reason=verdict.reason, **types)


def _scope_verdicts(scope: str, old: Iterable[StateSchema], new: Iterable[StateSchema]) -> list[Verdict]:
    restored: Mapping[str, StateSchema] = {state.name: state for state in old}
    current: Mapping[str, StateSchema] = {state.name: state for state in new}
    names = dict.fromkeys((*restored, *current))
    return [_state_verdict(scope, name, restored.get(name), current.get(name)) for name in names]


def _state_verdict(scope: str, name: str, old: StateSchema | None, new: StateSchema | None) -> Verdict:
    verdict = None if old is None or new is None else _compatibility(old, new)
    unmatched = Fate.NEW if old is None else Fate.RETAINED
    return Verdict(
        name=name,
        scope=scope,
        fate=unmatched if verdict is None else _FATES[verdict.outcome],
        reason="" if verdict is None else verdict.reason,
        old="" if old is None else _describe_state(old),
        new="" if new is None else _describe_state(new),
    )


def _compatibility(old: StateSchema, new: StateSchema) -> Compatibility:
    if old.kind is not new.kind:
        return incompatible(f"was a {old.kind} state, is now a {new.kind} state")
    parts = [("", _type_compatibility(old.value, new.value)), ("", _ttl_compatibility(old, new))]
    if old.key is not None and new.key is not None:
        parts.append((KEY, kept_distinct(_type_compatibility(old.key, new.key), "keys of a map")))
    merges = any(part.merges for _, part in parts)
    return Compatibility(outcome=worst(part for _, part in parts), reason=reasons(parts), merges=merges)


def _type_compatibility(old: SerializerSnapshot, new: SerializerSnapshot) -> Compatibility:
    try:
        return restored_serializer(new).resolve_compatibility(old)
    except StateCheckError as error:
        # One unreadable type must not hide the verdicts on the other states.
        return incompatible(str(error))


def _ttl_compatibility(old: StateSchema, new: StateSchema) -> Compatibility:
    if old.expires == new.expires:
        return AS_IS
    added, removed = "time to live added, starts at the restore", "time to live removed, expired values are dropped"
    reason = added if new.expires else removed
    return Compatibility(outcome=Outcome.COMPATIBLE_AFTER_MIGRATION, reason=reason)


def _describe_state(state: StateSchema) -> str:
    value = describe(state.value)
    types = f"{describe(state.key)} to {value}" if state.kind is StateKind.MAP and state.key else value
    return f"{state.kind} of {types}{' with a time to live' if state.expires else ''}"


def compatibility_of(
    name: str,
    serializer: TypeSerializer[Any],
    old: SerializerSnapshot,
    *,
    are_keys: bool = False,
    advice: str = "keep the type, or use another name for a new state",
) -> Compatibility:
    """
    Return the compatibility of restored data of a state with a serializer.

    :param are_keys: Whether the data are the user keys of a map; a migration must not make two of them equal.
    :param advice: What to do about incompatible types, for the error.
    :raises StateMigrationError: if they are incompatible.
    """
    verdict = serializer.resolve_compatibility(old)
    verdict = kept_distinct(verdict, "keys of a map") if are_keys else verdict
    if verdict.outcome is Outcome.INCOMPATIBLE:
        raise StateMigrationError(
            f"Expected a type of state {name} that is compatible with {describe(old)}, found "
            f"{describe(serializer.snapshot())}: {verdict.reason or 'they do not fit'}; {advice}.",
            state=name,
        )
    return verdict
