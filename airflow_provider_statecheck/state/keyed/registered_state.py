"""
Registered keyed states: types, cells, current key, and the table protocols of backends.

A table holds one keyed state in frozen form (:mod:`~airflow_provider_statecheck.state.serializers.nested_columns`).
Frozen values are immutable, except for the lists of a list state, which only that state modifies. A table has no
``None`` values: an empty value is an absent one, and reads create nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Protocol

from airflow_provider_statecheck.exceptions import CoordinatorError, UnsupportedStateError
from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.combining.records import Combination
from airflow_provider_statecheck.state.descriptors import (
    PartialResultsDescriptor,
    StateDescriptor,
    StateKind,
    StateTtlConfig,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.state.schema_evolution import StateSchema
from airflow_provider_statecheck.state.serializers.custom_serializer import TtlSerializer
from airflow_provider_statecheck.state.serializers.nested_columns import list_array, nulls_of, offsets_of
from airflow_provider_statecheck.state.serializers.serializer import Freezing, Own, TypeSerializer


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredState:
    """Name, kind, serializers and time to live of a state with a descriptor."""

    name: str
    kind: StateKind
    serializer: TypeSerializer[Any]
    """Serializer of a value, a list element or a map value, without the timestamp that a time to live adds."""
    key_serializer: TypeSerializer[Any] | None = None
    """Serializer of the user keys; ``None`` unless the state is a map."""
    ttl: StateTtlConfig | None = None
    queryable_name: str | None = field(default=None, compare=False)
    combination: Combination = field(default=(), compare=False)
    """How partial results in the values are combined; empty for a state without them."""

    @classmethod
    def of(cls, descriptor: StateDescriptor[Any]) -> RegisteredState:
        """Return the state of a descriptor."""
        return cls(
            name=descriptor.name,
            kind=descriptor.kind,
            serializer=descriptor.serializer,
            key_serializer=descriptor.key_serializer if descriptor.kind is StateKind.MAP else None,
            ttl=descriptor.ttl,
            queryable_name=descriptor.queryable_name,
            combination=descriptor.combination if isinstance(descriptor, PartialResultsDescriptor) else (),
        )

    @property
    def title(self) -> str:
        """The kind and the name for error messages."""
        return f"the {self.kind} state {self.name!r}"

    @property
    def is_map(self) -> bool:
        """Whether the table of the state is a ``MapTable``."""
        return self.kind is StateKind.MAP

    @property
    def element(self) -> TypeSerializer[Any]:
        """
        The serializer of a value, a list element or a map value.

        With a time to live, each is a ``TtlValue``.
        """
        return self.serializer if self.ttl is None else TtlSerializer(self.serializer)

    @property
    def cell_type(self) -> Any:
        """The Arrow type of the cells of a table, which are values, lists or map values."""
        element = self.element.arrow_type
        return pa.list_(element) if self.kind is StateKind.LIST else element

    @property
    def cells(self) -> Freezing:
        """
        The conversion between frozen cells and Arrow columns.

        The elements of a list are frozen one by one.
        """
        cells = self.element.freezing()
        if self.kind is not StateKind.LIST:
            return cells
        return cells._replace(read=partial(_read_lists, cells.read), write=partial(_write_lists, cells.write))

    def schema(self) -> StateSchema:
        """Return the schema, which later versions are compared with."""
        return StateSchema(
            name=self.name,
            kind=self.kind,
            key=None if self.key_serializer is None else self.key_serializer.snapshot(),
            value=self.serializer.snapshot(),
            ttl_ms=None if self.ttl is None else self.ttl.ttl_ms,
            queryable_name=self.queryable_name,
            combination=self.combination,
        )


NO_KEY_GROUP = -1


class KeyContext:
    """
    Current key, shared by a backend and its states.

    Each access reads it, so it has two plain attributes. Without a current key, the key group is negative.
    """

    __slots__ = ("key", "key_group")

    def __init__(self) -> None:
        self.key: Any = None
        self.key_group = NO_KEY_GROUP

    def require(self) -> None:
        """
        Require a current key.

        :raises CoordinatorError: if there is no current key.
        """
        if self.key_group < 0:
            raise no_key()


def _write_lists(write: Callable[[Sequence[Any]], Any], values: Sequence[list[Any] | None]) -> Any:
    elements = write(list(chain.from_iterable(value or () for value in values)))
    return list_array(offsets_of(values), elements, nulls_of(values))


def _read_lists(read: Callable[[Any], list[Any]], array: Any) -> list[list[Any] | None]:
    elements = read(array.flatten())
    values: list[list[Any] | None] = []
    start = 0
    for length in array.value_lengths().to_pylist():
        end = start + (length or 0)
        values.append(None if length is None else elements[start:end])
        start = end
    return values


def lists_with(lists: Any, elements: Any, kept: Any) -> Any:
    """
    Return lists with other elements, without some of them.

    :param lists: Arrow array of lists.
    :param elements: Arrow array of as many elements as the lists have.
    :param kept: Boolean Arrow array that marks the elements to keep.
    """
    owners = pc.list_parent_indices(lists).filter(kept)
    lengths = np.bincount(owners.to_numpy(zero_copy_only=False), minlength=len(lists))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype("int32")
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements.filter(kept))


def own_user_key_with(serializer: TypeSerializer[Any]) -> Own:
    """Return the function that checks a user key of a map and returns the object to store."""
    own = serializer.own
    hashable = own if serializer.is_immutable else lambda user_key: _hashable(own(user_key), user_key)
    if not contains(serializer.arrow_type, pa.types.is_floating):
        return hashable
    return lambda user_key: _without_nan(serializer, hashable(user_key))


def contains(arrow_type: Any, is_wanted: Callable[[Any], bool]) -> bool:
    """Return whether an Arrow type is, or contains, a wanted type."""
    fields = (arrow_type.field(number) for number in range(arrow_type.num_fields))
    return is_wanted(arrow_type) or any(contains(each.type, is_wanted) for each in fields)


def _without_nan(serializer: TypeSerializer[Any], user_key: Any) -> Any:
    # A tuple equals itself even with NaN, because Python compares identical objects as equal. A restored one is
    # another.
    another = user_key if isinstance(user_key, float) else serializer.from_arrow(serializer.to_arrow([user_key]))[0]
    return _equal(user_key, another)


def require_no_nan(serializer: TypeSerializer[Any], user_keys: Any) -> None:
    """
    Require that no user key of an Arrow array is or contains NaN.

    :raises UnsupportedStateError: if one does.
    """
    if not contains(serializer.arrow_type, pa.types.is_floating):
        return
    for user_key, another in zip(serializer.from_arrow(user_keys), serializer.from_arrow(user_keys), strict=True):
        _equal(user_key, another)


def _equal(user_key: Any, another: Any) -> Any:
    if user_key != another:
        raise UnsupportedStateError(
            f"Expected a key of a map that equals itself, found {user_key!r}; put another one for NaN, such as None, "
            "and let other objects be equal to their copies."
        )
    return user_key


def _hashable(user_key: Any, given: Any) -> Any:
    try:
        hash(user_key)
    except TypeError as error:
        raise UnsupportedStateError(
            f"Expected an immutable key of a map, found {user_key!r}; use a number, a string, a tuple or a frozen "
            "dataclass."
        ) from error
    return _equal(user_key, given)


def misfit(state: str, operator: str, error: Exception, **key: Any) -> UnsupportedStateError:
    """
    Return the error of a value that does not fit the type of its state.

    :param state: Kind and name of the state.
    :param operator: Operator name; empty if unknown.
    :param key: Key of the value, if known.
    """
    owner = f" of the operator {operator!r}" if operator else ""
    of_key = f" for the key {key['key']!r}" if key else ""
    return UnsupportedStateError(f"A value does not fit {state}{owner}{of_key}: {error}")


def no_key() -> CoordinatorError:
    """Return the error of an access to keyed state without a current key."""
    return CoordinatorError(
        "Expected a current key, found none; access keyed state only while an element of a keyed stream is processed, "
        "not in open() or close()."
    )


VOID_NAMESPACE = ""
"""Namespace of state without a namespace."""


class StateTable(Protocol):
    """Table with one value per key and namespace."""

    def get(self, key: Any, key_group: int, namespace: str) -> Any:
        """Return the value, or ``None`` if there is none."""

    def put(self, key: Any, key_group: int, namespace: str, value: Any) -> None:
        """Set the value, which must not be ``None``."""

    def remove(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove the value, if there is one."""

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the distinct keys that have a value; concurrent changes are allowed and not visible."""

    def get_batch(self, keys: KeyBatch) -> Any:
        """Return an Arrow array of the values of distinct keys without a namespace; null for a key without a value."""

    def put_batch(self, keys: KeyBatch, values: Any) -> None:
        """Set the values of distinct keys without a namespace from an Arrow array; null removes."""

    def add_batch(self, keys: KeyBatch, values: Any) -> None:
        """Combine the values of distinct keys without a namespace with those of an Arrow array, as the state says."""


class MapTable(Protocol):
    """Table with one map per key and namespace. Values may be ``None``, because the user key marks the entry."""

    def get(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``None`` if there is none."""

    def contains(self, key: Any, key_group: int, namespace: str, user_key: Any) -> bool:
        """Return whether there is an entry."""

    def put(self, key: Any, key_group: int, namespace: str, user_key: Any, value: Any) -> None:
        """Set an entry."""

    def remove(self, key: Any, key_group: int, namespace: str, user_key: Any) -> None:
        """Remove an entry, if there is one."""

    def entries(self, key: Any, key_group: int, namespace: str) -> Iterator[tuple[Any, Any]]:
        """Return the current entries; concurrent changes are allowed and not visible."""

    def is_empty(self, key: Any, key_group: int, namespace: str) -> bool:
        """Return whether the key has no entries."""

    def clear(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove all entries of the key."""

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the distinct keys that have an entry; concurrent changes are allowed and not visible."""
