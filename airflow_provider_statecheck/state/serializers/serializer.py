"""Contract of a state serializer: Arrow columns, snapshots and schema compatibility."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import NoneType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from airflow_provider_statecheck.checkpoint.codec import MalformedMessageError, decode
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    IncompatibleCheckpointError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.storage.stored_json import UNDECODABLE, decoding

T = TypeVar("T")
Own = Callable[[Any], Any]
"""
Validates a value and returns the object that state retains; raises ``UnsupportedStateError`` for a value of another
type.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SerializerSnapshot:
    """Description of the serializer that wrote state, in JSON values that are readable without its code."""

    class_id: str
    """Kind of serializer, such as ``record`` or ``arrow``, or the id of a user-defined one."""
    version: int
    """Version of the layout of ``config``."""
    config: Mapping[str, Any]
    """Parameters of the serializer as JSON values."""


class Outcome(StrEnum):
    """Result of comparing a serializer with the snapshot of an earlier one, the most severe one last."""

    COMPATIBLE_AS_IS = "compatible as is"
    COMPATIBLE_WITH_RECONFIGURED_SERIALIZER = "compatible with a reconfigured serializer"
    COMPATIBLE_AFTER_MIGRATION = "compatible after migration"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """Outcome of a compatibility check, with the conversion that reading requires."""

    outcome: Outcome
    reason: str = ""
    """Human-readable description of the difference."""
    serializer: Any = None
    """Reconfigured serializer that replaces the requested one."""
    migrate: Callable[[Any], Any] | None = None
    """
    Converts an Arrow array of the old serializer to the array that the requested serializer would have written.

    It is mandatory after migration, and an alternative to a reconfigured serializer.
    """
    merges: bool = False
    """Whether migration may make two values equal, which would lose map keys or set elements."""


class Plain(NamedTuple):
    """Cheap test for immutable values that a checkpoint restores unchanged."""

    kind: type
    """Exact class of the values; subclasses do not match."""
    fits: Callable[[Any], bool] | None = None
    """Further condition on a value; ``None`` if class and bounds are sufficient."""
    bounds: tuple[int, int] | None = None
    """Smallest and largest permitted value, both inclusive; ``None`` if unbounded."""

    def all_fit(self, values: Collection[Any]) -> bool:
        """Return whether all values pass the test."""
        if not {self.kind}.issuperset(map(type, values)):
            return False
        if self.bounds is not None and values:
            return bool(self.bounds[0] <= min(values) and max(values) <= self.bounds[1])
        return self.fits is None or all(map(self.fits, values))


class Freezing(NamedTuple):
    """Conversions between values, their frozen form in state, and Arrow."""

    freeze: Own
    """Returns the frozen form of a value; raises ``UnsupportedStateError`` for a value of another type."""
    thaw: Callable[[Any], Any] | None
    """Returns the value of a frozen form; ``None`` if the frozen form is the value itself."""
    read: Callable[[Any], list[Any]]
    """Returns the frozen forms of an Arrow array, with ``None`` for null."""
    write: Callable[[Sequence[Any]], Any]
    """Returns the Arrow array of frozen forms, with null for ``None``."""

    def thawed(self, frozen: Any) -> Any:
        """Return the value of a frozen form, ``None`` for ``None``."""
        return frozen if self.thaw is None or frozen is None else self.thaw(frozen)


class TypeSerializer(ABC, Generic[T]):
    """
    Converter between values of one type and an Arrow column; picklable, used by one thread at a time.

    State freezes mutable values on every write and copies them on every read. An in-place change by user code therefore
    never reaches the state. Immutable values are shared.
    """

    class_id: ClassVar[str]
    """Kind of serializer in snapshots."""
    version: ClassVar[int] = 1
    """Version of the layout of ``config``."""

    @property
    @abstractmethod
    def arrow_type(self) -> Any:
        """The Arrow type of the column."""

    @abstractmethod
    def to_arrow(self, values: Sequence[T | None]) -> Any:
        """
        Return an Arrow array of values, with null for ``None``.

        :raises UnsupportedStateError: if a value has another type, or the column would not restore an equal value.
        """

    def from_arrow(self, array: Any) -> list[T | None]:
        """Return the values of an array as new objects; by default those of Arrow."""
        found: list[T | None] = array.to_pylist()
        return found

    def config(self) -> dict[str, Any]:
        """Return the parameters of the serializer as JSON values; none by default."""
        return {}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        """Compare with the ``config`` of the same class in a supported version."""
        return AS_IS

    @property
    def is_immutable(self) -> bool:
        """Whether values are immutable and can be shared."""
        return True

    @property
    def plain(self) -> Plain | None:
        """The cheap test of values, or ``None`` if there is none."""
        return None

    def copy(self, value: T) -> T:
        """Return a copy of a value, which is not ``None``, that shares no mutable object with it."""
        return value

    def own(self, value: Any) -> Any:
        """
        Return a value as a checkpoint restores it, without any mutable object of the given one.

        :raises UnsupportedStateError: if the value is ``None`` or has another type.
        """
        array = self.to_arrow([value])
        if array.null_count:
            raise UnsupportedStateError(
                f"Expected {describe(self.snapshot())}, found None; declare the type as optional, or leave the value "
                "out."
            )
        return self.from_arrow(array)[0]

    def require_valid(self, array: Any, place: str) -> None:
        """
        Require that an Arrow array of this type, which another writer made, has no null and only valid values.

        :param place: Name of the column or field, for error messages.
        :raises UnsupportedStateError: if a required value is null, or a value is invalid.
        """
        if array.null_count:
            raise UnsupportedStateError(
                f"Expected {place} to have a value, found {counted(array.null_count, 'null')}; remove these rows, or "
                "declare an optional type."
            )
        self.require_valid_or_null(array, place)

    def require_valid_or_null(self, array: Any, place: str) -> None:
        """Require that the values other than null are valid, as all values of an Arrow type are by default."""

    def freezing(self) -> Freezing:
        """Return the conversions of the frozen form; by default, immutable values are shared and others copied."""
        return Freezing(self.own, None if self.is_immutable else self.copy, self.from_arrow, self.to_arrow)

    def snapshot(self) -> SerializerSnapshot:
        """Return the snapshot that later versions are compared with."""
        return SerializerSnapshot(class_id=self.class_id, version=self.version, config=self.config())

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """
        Return whether this serializer can restore state that was written with ``old``.

        :raises IncompatibleCheckpointError: if a newer version of this class wrote the snapshot.
        """
        if old.class_id != self.class_id:
            return self._resolve_other(old)
        require_known_version(old, self.version)
        with decoding(f"the config of {old.class_id!r}"):
            return self._resolve(old.config)

    def _resolve_other(self, old: SerializerSnapshot) -> Compatibility:
        return incompatible(f"was {describe(old)}, is now {describe(self.snapshot())}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({describe(self.snapshot())})"

    def __getstate__(self) -> dict[str, Any]:
        # Cached functions cannot be pickled.
        cls = type(self)
        return {n: each for n, each in vars(self).items() if not isinstance(getattr(cls, n, None), cached_property)}


def require_class(values: Iterable[Any], kind: type, name: str) -> bool:
    """
    Require values of one class, or ``None``, and return whether some are ``None``.

    :param kind: The class; subclasses are rejected too.
    :param name: Name of the class for the error message.
    :raises UnsupportedStateError: if a value has another class.
    """
    kinds = {*map(type, values)}
    for found in kinds - {kind, NoneType}:
        raise UnsupportedStateError(
            f"Expected {name}, found {found.__module__}.{found.__qualname__}; convert it, or declare another type."
        )
    return NoneType in kinds


def decode_snapshot(encoded: Any) -> SerializerSnapshot:
    """
    Return the snapshot of its JSON values; unknown class ids are accepted.

    :raises CorruptStateError: if the JSON values are malformed.
    """
    try:
        return decode(SerializerSnapshot, encoded)
    except MalformedMessageError as error:
        raise CorruptStateError(f"Expected the snapshot of a serializer, found {encoded!r:.200}.") from error


_SEVERITIES = tuple(Outcome)
AS_IS = Compatibility(outcome=Outcome.COMPATIBLE_AS_IS)


def incompatible(reason: str) -> Compatibility:
    """Return the verdict that state cannot be restored."""
    return Compatibility(outcome=Outcome.INCOMPATIBLE, reason=reason)


def after_migration(reason: str, migrate: Callable[[Any], Any], *, merges: bool = False) -> Compatibility:
    """
    Return the verdict that state can be restored after conversion of its columns.

    :param merges: Whether the conversion may make two values equal. Default ``False``.
    """
    outcome = Outcome.COMPATIBLE_AFTER_MIGRATION
    return Compatibility(outcome=outcome, reason=reason, migrate=migrate, merges=merges)


def reconfigured(reason: str, serializer: Any, migrate: Callable[[Any], Any]) -> Compatibility:
    """
    Return the verdict that state can be restored with a reconfigured serializer.

    :param migrate: The equivalent conversion, for an enclosing value that another part forces to migrate.
    """
    outcome = Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER
    return Compatibility(outcome=outcome, reason=reason, serializer=serializer, migrate=migrate)


def worst(parts: Iterable[Compatibility]) -> Outcome:
    """Return the most severe outcome of the parts."""
    return max((part.outcome for part in parts), key=_SEVERITIES.index, default=Outcome.COMPATIBLE_AS_IS)


def reasons(parts: Iterable[tuple[str, Compatibility]]) -> str:
    """Return the reasons of all parts, each with its place."""
    return "; ".join(f"{place}: {part.reason}" if place else part.reason for place, part in parts if part.reason)


def whole(
    parts: Iterable[tuple[str, Compatibility]], rebuilt: Callable[[], Any], migrate: Callable[[Any], Any]
) -> Compatibility:
    """
    Combine the verdicts on the parts of a composite value.

    :param parts: Pairs of the place of a part, for messages, and its verdict.
    :param rebuilt: A function that returns the composite serializer with the reconfigured serializers of its parts.
    """
    placed = list(parts)
    outcome, reason = worst(part for _, part in placed), reasons(placed)
    if outcome is Outcome.COMPATIBLE_AFTER_MIGRATION:
        return after_migration(reason, migrate, merges=any(part.merges for _, part in placed))
    if outcome is Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER:
        return reconfigured(reason, rebuilt(), migrate)
    return Compatibility(outcome=outcome, reason=reason)


def serializer_from_now_on(part: Compatibility, new: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the reconfigured serializer of a verdict, or ``new`` if it has none."""
    found: TypeSerializer[Any] = new if part.serializer is None else part.serializer
    return found


def migrated(part: Compatibility, array: Any) -> Any:
    """Return an array converted to the form of the new serializer."""
    return array if part.migrate is None else part.migrate(array)


def never_migrated(verdict: Compatibility, what: str) -> Compatibility:
    """Reject the migration of values that determine the location of state, such as keys."""
    if verdict.outcome is not Outcome.COMPATIBLE_AFTER_MIGRATION:
        return verdict
    return incompatible(f"{what} can never be migrated, because its values would not be found again ({verdict.reason})")


def kept_distinct(verdict: Compatibility, what: str) -> Compatibility:
    """Reject a migration that could merge values that must stay distinct, such as the keys of a map."""
    if not verdict.merges:
        return verdict
    return incompatible(f"{what} cannot be migrated so that two could become one ({verdict.reason})")


def require_known_version(old: SerializerSnapshot, version: int) -> None:
    """
    Reject a snapshot that a newer release wrote.

    :param version: The newest version that this release reads.
    :raises IncompatibleCheckpointError: if a newer version wrote the snapshot.
    """
    if old.version > version:
        raise IncompatibleCheckpointError(
            f"Expected state of the type {old.class_id!r} in version {version} or an earlier one, found version "
            f"{old.version}; restore with the release that wrote the checkpoint, or a newer one."
        )


class _KeyColumn(NamedTuple):
    name: str
    kind: str
    aliases: tuple[str, ...]

    def continues(self, old: _KeyColumn) -> bool:
        return old.name in (self.name, *self.aliases)


def key_compatibility(old: SerializerSnapshot, new: SerializerSnapshot) -> Compatibility:
    """
    Return the verdict on the keys of restored state.

    A column may have another name that names the old one as its alias. Types never change, as every value would belong
    to another key group.
    """
    before, now = _key_columns(old), _key_columns(new)
    has_same_types = [each.kind for each in before] == [each.kind for each in now]
    is_key = "key" == old.class_id == new.class_id and old.version <= new.version
    if old == new or (is_key and has_same_types and all(map(_KeyColumn.continues, now, before))):
        return AS_IS
    advice = (
        "if only the names of its columns have changed, name the old ones, as in key_by(..., "
        f"aliases={_aliases(before, now)}); use another uid for another key"
        if has_same_types
        else "a key never changes its type, as every value would belong to another key group; use another uid for "
        "another key"
    )
    return incompatible(f"the key was {_key_text(old, before)}, now it is {_key_text(new, now)}; {advice}")


def _key_columns(key: SerializerSnapshot) -> list[_KeyColumn]:
    with decoding("the columns of a key"):
        return [
            _KeyColumn(str(each["name"]), str(each["type"]), tuple(map(str, each.get("aliases", ()))))
            for each in key.config.get("fields", ())
        ]


def _aliases(before: list[_KeyColumn], now: list[_KeyColumn]) -> dict[str, str]:
    return {new.name: old.name for old, new in zip(before, now, strict=True) if not new.continues(old)}


def _key_text(key: SerializerSnapshot, columns: list[_KeyColumn]) -> str:
    return ", ".join(f"{each.name} {each.kind}" for each in columns) or f"a {key.class_id}"


def describe(snapshot: SerializerSnapshot) -> str:
    """Return the type of a snapshot for messages, such as ``record(id int64, tags list of string)``."""
    return _describe(snapshot.class_id, snapshot.config)


def _describe(class_id: str, config: Mapping[str, Any]) -> str:
    try:
        return _described(class_id, config)
    except UNDECODABLE:
        # A newer release may write another config.
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
    return class_id


def _child(encoded: Any) -> str:
    return encoded if isinstance(encoded, str) else _describe(encoded["class_id"], encoded["config"])
