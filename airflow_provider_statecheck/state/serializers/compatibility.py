"""Verdicts on parts of a type, and the one on the whole that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
)

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

    :raises IncompatibleCheckpointError: if a newer version wrote it.
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
