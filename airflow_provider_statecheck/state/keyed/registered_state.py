"""A registered keyed state: key context, values and serializers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CoordinatorError, UnsupportedStateError
from airflow_provider_statecheck.state.descriptors import StateDescriptor, StateKind
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.serializers.base import Own, own_of
from airflow_provider_statecheck.state.serializers.nested_columns import Freezing, freezing_of, is_immutable
from airflow_provider_statecheck.state.serializers.serializer import Compatibility, SerializerSnapshot, TypeSerializer
from airflow_provider_statecheck.state.serializers.ttl_serializer import TtlSerializer

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import StateTtlConfig


class ListCellSerializer:
    """
    Lists of elements of one type; snapshots are those of the element, so that a list state evolves as its elements do.

    :param element: The serializer of an element.
    """

    def __init__(self, element: TypeSerializer[Any]) -> None:
        self.element = element

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow type of the column."""
        import pyarrow as pa

        return pa.list_(self.element.arrow_type)

    def to_arrow(self, values: Sequence[list[Any] | None]) -> Any:
        """
        Return an Arrow array of lists, null where there is ``None``.

        :raises UnsupportedStateError: for an element of another type.
        """
        return self._lists_of(values, self.element.to_arrow)

    def from_arrow(self, array: Any) -> list[list[Any] | None]:
        """Return the lists of an array; each is new and may be changed."""
        return _lists_from(array, self.element.from_arrow)

    def freezing(self) -> Freezing:
        """Return how lists are kept: as lists, which the state alone has, of elements that nobody can change."""
        element = freezing_of(self.element)
        return Freezing(
            lambda value: list(map(element.freeze, value)),
            lambda kept: list(map(element.thawed, kept)),
            lambda array: _lists_from(array, element.read),
            lambda kept: self._lists_of(kept, element.write),
        )

    def copy(self, value: list[Any]) -> list[Any]:
        """Return a list that shares nothing with another that could be changed."""
        return [self.element.copy(element) for element in value]

    def snapshot(self) -> SerializerSnapshot:
        """Return that of the element."""
        return self.element.snapshot()

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Say whether the elements can go on with this serializer; a migration is one of elements."""
        return self.element.resolve_compatibility(old)

    def _lists_of(self, values: Sequence[list[Any] | None], write: Callable[[list[Any]], Any]) -> Any:
        import pyarrow as pa

        flat = write(list(chain.from_iterable(value or () for value in values)))
        ends = list(accumulate(len(value or ()) for value in values))
        offsets = pa.array([0, *ends], pa.int32())
        mask = pa.array([value is None for value in values], pa.bool_()) if None in values else None
        return pa.ListArray.from_arrays(offsets, flat, type=self.arrow_type, mask=mask)


def _lists_from(array: Any, read: Callable[[Any], list[Any]]) -> list[list[Any] | None]:
    flat = read(array.flatten())
    values: list[list[Any] | None] = []
    start = 0
    for length in array.value_lengths().to_pylist():
        end = start + (length or 0)
        values.append(None if length is None else flat[start:end])
        start = end
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredState:
    """A keyed state that a descriptor asked for: all that is needed to make, read and write its table."""

    name: str
    kind: StateKind
    serializer: TypeSerializer[Any]
    """Of a value, of an element of a list, or of a value of a map; without what its time to live adds."""
    key_serializer: TypeSerializer[Any] | None = None
    """Of the keys of a map."""
    ttl: StateTtlConfig | None = None

    @classmethod
    def of(cls, descriptor: StateDescriptor[Any]) -> RegisteredState:
        """Return what a descriptor says."""
        return cls(
            name=descriptor.name,
            kind=descriptor.kind,
            serializer=descriptor.serializer,
            key_serializer=descriptor.key_serializer if descriptor.kind is StateKind.MAP else None,
            ttl=descriptor.ttl,
        )

    @property
    def title(self) -> str:
        """Return what it is called in errors."""
        return f"the {self.kind} state {self.name!r}"

    @property
    def is_map(self) -> bool:
        """Tell whether its table is a ``MapTable``."""
        return self.kind is StateKind.MAP

    @property
    def cell_serializer(self) -> TypeSerializer[Any]:
        """
        Return the serializer of what a table holds.

        That is a value, a list of elements or a map's value; with a time to live, values and elements are ``TtlValue``.
        """
        element = self.serializer if self.ttl is None else TtlSerializer(self.serializer)
        return ListCellSerializer(element) if self.kind is StateKind.LIST else element

    @property
    def cells(self) -> Freezing:
        """Return how the cells of a table become columns and come back; a table holds them as they are kept."""
        return freezing_of(self.cell_serializer)

    def schema(self) -> StateSchema:
        """Return what later versions are compared with."""
        return StateSchema(
            name=self.name,
            kind=self.kind,
            key=None if self.key_serializer is None else self.key_serializer.snapshot(),
            value=self.serializer.snapshot(),
            ttl=self.ttl is not None,
            ttl_ms=None if self.ttl is None else self.ttl.ttl_ms,
        )


def lists_of(elements: Any, parents: Any, length: int) -> Any:
    """
    Return lists of elements.

    :param parents: Arrow integers that tell for each element the index of its list, ascending.
    :param length: How many lists there are, empty ones included.
    """
    import numpy as np
    import pyarrow as pa

    lengths = np.bincount(parents.to_numpy(zero_copy_only=False), minlength=length)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype("int32")
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements)


class StateValues:
    """
    What a state does with its values, the same on every backend.

    A value that was put belongs to the state, and a value that was read belongs to the reader: to change one of them in place
    changes nothing but that object.

    :param state: The state.
    :param operator: What users call the operator, for errors.
    """

    __slots__ = ("_operator", "_state", "freeze", "own_user_key", "thaw")

    def __init__(self, state: RegisteredState, operator: str) -> None:
        self._state = state
        self._operator = operator
        # They are called for each element; a ``thaw`` of ``None`` spares the call.
        freezing = freezing_of(state.serializer)
        self.freeze = freezing.freeze
        self.thaw = freezing.thaw
        self.own_user_key = None if state.key_serializer is None else _own_user_key(state.key_serializer)

    def thawed(self, kept: Any) -> Any:
        """Return a value from what is kept of it, ``None`` from ``None``."""
        return kept if self.thaw is None or kept is None else self.thaw(kept)

    def misfit(self, key: Any, error: UnsupportedStateError) -> UnsupportedStateError:
        """
        Return the error of a value that is of another type than the state.

        :param key: On whose behalf it was put.
        :param error: What is wrong with it.
        """
        return misfit(self._state.title, self._operator, error, key=key)


def _own_user_key(serializer: TypeSerializer[Any]) -> Own:
    own = own_of(serializer)
    return own if is_immutable(serializer) else lambda user_key: _hashable(own(user_key))


def _hashable(user_key: Any) -> Any:
    try:
        hash(user_key)
    except TypeError as error:
        raise UnsupportedStateError(
            f"Expected a key of a map that cannot be changed, found {user_key!r}; use a number, a text, a tuple or a frozen "
            f"dataclass."
        ) from error
    return user_key


def misfit(state: str, operator: str, error: Exception, **key: Any) -> UnsupportedStateError:
    """
    Return the error of a value that does not fit the state into which it was put.

    :param state: Which state it is.
    :param operator: What users call the operator; empty where that is not known.
    :param error: What is wrong with the value.
    :param key: The key, where there is one.
    """
    owner = f" of the operator {operator!r}" if operator else ""
    place = f" for the key {key['key']!r}" if key else ""
    return UnsupportedStateError(f"A value was put into {state}{owner}{place} that does not fit: {error}")


NO_KEY_GROUP = -1


class KeyContext:
    """
    Shared by a backend and its states; read at each access, so it is two plain attributes.

    Without a key the group is below 0.
    """

    __slots__ = ("key", "key_group")

    def __init__(self) -> None:
        self.key: Any = None
        self.key_group = NO_KEY_GROUP

    def require(self) -> None:
        """
        Refuse access as long as there is no key.

        :raises CoordinatorError: if no key was set.
        """
        if self.key_group < 0:
            raise no_key()


def no_key() -> CoordinatorError:
    """Return the error of an access to keyed state without a key."""
    return CoordinatorError(
        "Expected a current key, found none; keyed state can be used only while an element of a keyed stream is processed, "
        "not in open() or close()."
    )
