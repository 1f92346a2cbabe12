"""Contract of a state serializer: columns, snapshots and compatibility."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SerializerSnapshot:
    """What a serializer was when state was written with it; plain values, so that it is read without any of its code."""

    class_id: str
    """Names the kind of serializer, such as ``record`` or ``arrow``; of a custom one, its own id."""
    version: int
    """Of the layout of ``config``."""
    config: Mapping[str, Any]
    """JSON."""


class Outcome(StrEnum):
    """What becomes of state that an earlier serializer wrote."""

    COMPATIBLE_AS_IS = "compatible as is"
    COMPATIBLE_WITH_RECONFIGURED_SERIALIZER = "compatible with a reconfigured serializer"
    COMPATIBLE_AFTER_MIGRATION = "compatible after migration"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """The verdict on one piece of state, and what it takes to read it."""

    outcome: Outcome
    reason: str = ""
    """For people: what differs."""
    serializer: Any = None
    """The one to use from now on, where it is a reconfigured one."""
    migrate: Callable[[Any], Any] | None = None
    """
    Gives, for an Arrow array as the old serializer wrote it, the one that the serializer which was asked would have written.

    After migration it has to be used; where there is a reconfigured serializer, in place of that.
    """
    merges: bool = False
    """Whether two values may become one by the migration, so that keys and elements of sets would be lost."""


class TypeSerializer(Protocol[T]):
    """Values of one type as an Arrow column and back; it can be pickled and is used by one thread at a time."""

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow type of the column."""
        ...

    def to_arrow(self, values: Sequence[T | None]) -> Any:
        """
        Return an Arrow array of values, with null for ``None``.

        :raises UnsupportedStateError: if a value has another type.
        """
        ...

    def from_arrow(self, array: Any) -> list[T | None]:
        """Return the values of an array as new objects."""
        ...

    def copy(self, value: T) -> T:
        """Return a copy of a value that shares no mutable object with it."""
        ...

    def snapshot(self) -> SerializerSnapshot:
        """Return the snapshot that later versions are compared with."""
        ...

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Say whether state that was written as ``old`` can go on with this serializer."""
        ...


def encode_snapshot(snapshot: SerializerSnapshot) -> dict[str, Any]:
    """Return a snapshot as JSON."""
    return {"class_id": snapshot.class_id, "version": snapshot.version, "config": dict(snapshot.config)}


def decode_snapshot(encoded: Mapping[str, Any]) -> SerializerSnapshot:
    """
    Return the snapshot that was encoded, also one of a class that nobody knows here.

    :raises CorruptStateError: for JSON that :func:`encode_snapshot` does not make.
    """
    try:
        class_id, version, config = encoded["class_id"], encoded["version"], encoded["config"]
    except (LookupError, TypeError) as error:
        raise CorruptStateError(f"Expected the snapshot of a serializer, found {encoded!r:.200}.") from error
    if not (isinstance(class_id, str) and isinstance(version, int) and isinstance(config, Mapping)):
        raise CorruptStateError(f"Expected the snapshot of a serializer, found {encoded!r:.200}.")
    return SerializerSnapshot(class_id=class_id, version=version, config=config)


_WORST_FIRST = (
    Outcome.INCOMPATIBLE,
    Outcome.COMPATIBLE_AFTER_MIGRATION,
    Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER,
)

AS_IS = Compatibility(outcome=Outcome.COMPATIBLE_AS_IS)


def incompatible(reason: str) -> Compatibility:
    """Return that state cannot go on."""
    return Compatibility(outcome=Outcome.INCOMPATIBLE, reason=reason)


def after_migration(reason: str, migrate: Callable[[Any], Any], *, merges: bool = False) -> Compatibility:
    """
    Return that state can go on once its columns were converted.

    :param merges: Whether two values may become one.
    """
    outcome = Outcome.COMPATIBLE_AFTER_MIGRATION
    return Compatibility(outcome=outcome, reason=reason, migrate=migrate, merges=merges)


def reconfigured(reason: str, serializer: Any, migrate: Callable[[Any], Any]) -> Compatibility:
    """
    Return that state can go on with another form of the serializer.

    :param migrate: For whoever converts the columns all the same, such as a whole of which another part has to be.
    """
    outcome = Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER
    return Compatibility(outcome=outcome, reason=reason, serializer=serializer, migrate=migrate)


def worst(parts: Iterable[Compatibility]) -> Outcome:
    """Return the outcome for a whole: that of the part which fares worst."""
    found = {part.outcome for part in parts}
    return next((outcome for outcome in _WORST_FIRST if outcome in found), Outcome.COMPATIBLE_AS_IS)


def reasons(parts: Iterable[tuple[str, Compatibility]]) -> str:
    """Return what differs, each part with its place."""
    return "; ".join(f"{place}: {part.reason}" if place else part.reason for place, part in parts if part.reason)


def whole(
    parts: Iterable[tuple[str, Compatibility]], rebuilt: Callable[[], Any], migrate: Callable[[Any], Any]
) -> Compatibility:
    """
    Return the verdict on a whole.

    :param parts: Each with its place, for people.
    :param rebuilt: Gives the serializer of the whole with the reconfigured ones of its parts.
    :param migrate: Converts the whole.
    """
    placed = list(parts)
    outcome, reason = worst(part for _, part in placed), reasons(placed)
    if outcome is Outcome.COMPATIBLE_AFTER_MIGRATION:
        return after_migration(reason, migrate, merges=any(part.merges for _, part in placed))
    if outcome is Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER:
        return reconfigured(reason, rebuilt(), migrate)
    return Compatibility(outcome=outcome, reason=reason)


def serializer_from_now_on(part: Compatibility, new: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the serializer to use: the reconfigured one where there is one."""
    found: TypeSerializer[Any] = new if part.serializer is None else part.serializer
    return found


def migrated(part: Compatibility, array: Any) -> Any:
    """Return an array as the new serializer would have written it."""
    return array if part.migrate is None else part.migrate(array)


def never_migrated(verdict: Compatibility, what: str) -> Compatibility:
    """Return the verdict for what decides where state is, such as a key: it must stay what it is."""
    if verdict.outcome is not Outcome.COMPATIBLE_AFTER_MIGRATION:
        return verdict
    return incompatible(f"{what} can never be migrated, for its values would not be found again ({verdict.reason})")


def kept_distinct(verdict: Compatibility, what: str) -> Compatibility:
    """Return the verdict for what must not become equal, such as the keys of a map: of two, one would be lost."""
    if not verdict.merges:
        return verdict
    return incompatible(f"{what} cannot be migrated so that two could become one ({verdict.reason})")


def require_known_version(old: SerializerSnapshot, version: int) -> None:
    """
    Refuse a snapshot whose config this version cannot read.

    :raises IncompatibleCheckpointError: if a newer version wrote the snapshot.
    """
    if old.version > version:
        raise IncompatibleCheckpointError(
            f"Expected state of the type {old.class_id!r} in version {version} or an earlier one, found version "
            f"{old.version}; restore with the release that wrote the checkpoint, or a newer one."
        )


def other_key(old: SerializerSnapshot, new: SerializerSnapshot) -> Compatibility:
    """Return the verdict on keyed state of another key, which never migrates, and how to go on."""
    before, now = _key_fields(old), _key_fields(new)
    names = ", ".join(name for name, _ in before)
    advice = (
        "a key never changes its type, as every value would belong to another key group; use another uid for another key"
        if [kind for _, kind in before] != [kind for _, kind in now]
        else f"if only the names of its columns have changed, rename the columns back to {names} in front of key_by, such as "
        f"with .map(lambda row: tuple(row), output='...'); use another uid for another key"
    )
    return incompatible(f"the key was {_shown(old, before)}, now it is {_shown(new, now)}; {advice}")


def _key_fields(key: SerializerSnapshot) -> list[tuple[str, str]]:
    return [(field["name"], field["type"]) for field in key.config.get("fields", ())]


def _shown(key: SerializerSnapshot, fields: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in fields) or f"a {key.class_id}"


def describe(snapshot: SerializerSnapshot) -> str:
    """Return a type for people, such as ``record(id int64, tags list of string)``."""
    return _describe(snapshot.class_id, snapshot.config)


def _describe(class_id: str, config: Mapping[str, Any]) -> str:
    try:
        return _described(class_id, config)
    except (LookupError, TypeError):
        # A newer version may write another config.
        return class_id


def _described(class_id: str, config: Mapping[str, Any]) -> str:
    if class_id == "arrow":
        return str(config["type"])
    if class_id == "optional":
        return f"optional {_child(config['value'])}"
    if class_id == "collection":
        return f"{config['collection']} of {_child(config['element'])}"
    if class_id == "dict":
        return f"dict of {_child(config['key'])} to {_child(config['value'])}"
    if class_id in ("record", "key"):
        fields = ", ".join(f"{field['name']} {_child(field['type'])}" for field in config["fields"])
        return f"{class_id}({fields})"
    if class_id == "enum":
        return f"enum({', '.join(config['names'])})"
    return f"{_child(config['value'])} with a time to live" if class_id == "ttl" else class_id


def _child(encoded: Any) -> str:
    return encoded if isinstance(encoded, str) else _describe(encoded["class_id"], encoded["config"])
