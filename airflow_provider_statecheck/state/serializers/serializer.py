"""What a type of state needs: a column for many values, and a description that a later version can be compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

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
        Return an Arrow array of values, null where there is ``None``.

        :raises UnsupportedStateError: for a value of another type, naming it.
        """
        ...

    def from_arrow(self, array: Any) -> list[T | None]:
        """Return the values of an array; each is new and may be changed."""
        ...

    def copy(self, value: T) -> T:
        """Return a value that shares nothing with another that could be changed."""
        ...

    def snapshot(self) -> SerializerSnapshot:
        """Return what a later version is compared with."""
        ...

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Say whether state that was written as ``old`` can go on with this serializer."""
        ...
