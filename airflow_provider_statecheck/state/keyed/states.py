"""Keyed states of user functions, except for map state, and batches of keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.state.descriptors import AggregateFunction, StateDescriptor, StateKind
from airflow_provider_statecheck.state.keyed.expiry import TimeToLive
from airflow_provider_statecheck.state.keyed.registered_state import (
    KeyContext,
    RegisteredState,
    StateTable,
    misfit,
    no_key,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.state.serializers.nested_columns import conformed, filled

T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")
Acc = TypeVar("Acc")


class State:
    """
    State of the current key. Each access raises ``CoordinatorError`` without a current key.

    Stored cells share no mutable objects with user code: modifying a value after a write or a read does not change the
    state. The methods of the table are bound once, because each element accesses them.

    :param state: Types of the state.
    :param descriptor: Descriptor with the default or the functions of the state.
    :param operator: Operator name for errors; empty if unknown.
    """

    __slots__ = (
        "_context",
        "_descriptor",
        "_freeze",
        "_get",
        "_namespace",
        "_operator",
        "_put",
        "_remove",
        "_state",
        "_table",
        "_thaw",
    )

    def __init__(
        self, table: Any, context: KeyContext, namespace: str, state: RegisteredState, descriptor: Any, operator: str
    ) -> None:
        self._context = context
        self._namespace = namespace
        self._state = state
        self._descriptor = descriptor
        self._operator = operator
        freezing = state.serializer.freezing()
        self._freeze = freezing.freeze
        # ``None`` saves the call for immutable values.
        self._thaw = freezing.thaw
        self._table = table
        self._get = table.get
        self._put = table.put
        self._remove = table.remove

    def clear(self) -> None:
        """Remove the state of the current key."""
        self._remove(*self._scope())

    def _scope(self) -> tuple[Any, int, str]:
        context = self._context
        if context.key_group < 0:
            raise no_key()
        return context.key, context.key_group, self._namespace

    def _thawed(self, cell: Any) -> Any:
        return cell if self._thaw is None or cell is None else self._thaw(cell)

    def _misfit(self, key: Any, error: UnsupportedStateError) -> UnsupportedStateError:
        return misfit(self._state.title, self._operator, error, key=key)


class CellState(State):
    """Access to the cell of the current key, the frozen form of a value."""

    __slots__ = ()

    def _value(self) -> Any:
        cell, thaw = self._cell(), self._thaw
        return cell if thaw is None or cell is None else thaw(cell)

    def _set_value(self, value: Any) -> None:
        self._set_cell(self._frozen(value))

    def _frozen(self, value: Any) -> Any:
        try:
            return self._freeze(value)
        except UnsupportedStateError as error:
            raise self._misfit(self._context.key, error) from error

    def _cell(self) -> Any:
        context = self._context
        if context.key_group < 0:
            raise no_key()
        return self._get(context.key, context.key_group, self._namespace)

    def _set_cell(self, cell: Any) -> None:
        context = self._context
        if context.key_group < 0:
            raise no_key()
        self._put(context.key, context.key_group, self._namespace, cell)


class ValueState(CellState, Generic[T]):
    """Keyed state with one value per key. Accesses without a current key raise ``CoordinatorError``."""

    __slots__ = ()

    # Both methods are called for each element, so they inline the methods of ``CellState``.

    def value(self) -> T | None:
        """Return the value; if the key has none, a copy of the default, or ``None`` without a default."""
        context = self._context
        if context.key_group < 0:
            raise no_key()
        value: T | None = self._get(context.key, context.key_group, self._namespace)
        thaw = self._thaw
        return value if thaw is None or value is None else thaw(value)

    def update(self, value: T | None) -> None:
        """
        Set the value; ``None`` clears it.

        :raises UnsupportedStateError: if the value does not fit the type of the state.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        if value is None:
            self._remove(context.key, context.key_group, self._namespace)
            return
        try:
            cell = self._freeze(value)
        except UnsupportedStateError as error:
            raise self._misfit(context.key, error) from error
        self._put(context.key, context.key_group, self._namespace, cell)


class DefaultedValueState(ValueState[T]):
    """Value state with a default."""

    __slots__ = ()

    def value(self) -> T | None:
        """Return the value, or a copy of the default if the key has none."""
        cell = self._cell()
        value: T | None = self._descriptor.default if cell is None else self._thawed(cell)
        return value


class ListState(CellState, Generic[T]):
    """
    Keyed state with one list per key. An empty list is equal to no list.

    Accesses without a current key raise ``CoordinatorError``.
    """

    __slots__ = ()

    def get(self) -> Iterable[T]:
        """Return the elements in the order in which they were added."""
        return self._elements_of(self._cell() or ())

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the elements."""
        return iter(self.get())

    def add(self, element: T) -> None:
        """
        Append an element. After an error the list is unchanged.

        :raises InvalidConfigurationError: if the element is ``None``.
        :raises UnsupportedStateError: if the element does not fit the type of the state.
        """
        self._append([require_element(element)])

    def add_all(self, elements: Iterable[T]) -> None:
        """
        Append elements. After an error the list is unchanged.

        :raises InvalidConfigurationError: if ``elements`` or one of them is ``None``.
        :raises UnsupportedStateError: if an element does not fit the type of the state.
        """
        self._append(require_elements(elements))

    def update(self, elements: Iterable[T]) -> None:
        """
        Replace the list. After an error the list is unchanged.

        :raises InvalidConfigurationError: if ``elements`` or one of them is ``None``.
        :raises UnsupportedStateError: if an element does not fit the type of the state.
        """
        self._replace(self._stored(require_elements(elements)))

    def merge_from(self, source: ListState[T]) -> None:
        """Append the elements of another namespace, and clear the other."""
        elements = source._cell()
        if elements:
            self._set_cell([*(self._cell() or ()), *elements])
            source.clear()

    def _append(self, elements: list[T]) -> None:
        stored = self._cell() or []
        if elements:
            stored.extend(self._stored(elements))
            self._set_cell(stored)

    def _stored(self, elements: list[T]) -> list[Any]:
        return list(map(self._frozen, elements))

    def _elements_of(self, cells: Iterable[Any]) -> tuple[T, ...]:
        return tuple(cells if self._thaw is None else map(self._thaw, cells))

    def _replace(self, stored: list[Any]) -> None:
        if stored:
            self._set_cell(stored)
        else:
            self.clear()


def require_element(element: T | None) -> T:
    """
    Require an element of a list state.

    :raises InvalidConfigurationError: if it is ``None``.
    """
    if element is None:
        raise InvalidConfigurationError("Expected an element of a list state, found None; lists cannot store None.")
    return element


def require_elements(elements: Iterable[T | None] | None) -> list[T]:
    """
    Require elements of a list state.

    :raises InvalidConfigurationError: if they, or one of them, are ``None``.
    """
    if elements is None:
        raise InvalidConfigurationError(
            "Expected elements of a list state, found None; call clear() to remove all elements."
        )
    return [require_element(element) for element in elements]


class TtlListState(ListState[T]):
    """List state whose elements expire separately."""

    __slots__ = ("_ttl",)

    def __init__(self, *arguments: Any, time_to_live: TimeToLive) -> None:
        super().__init__(*arguments)
        self._ttl = time_to_live

    def get(self) -> Iterable[T]:
        """Return the visible elements, and remove expired ones."""
        cell = self._cell()
        if cell is None:
            return ()
        live = self._ttl.after_read(cell)
        if live is not cell:
            self._replace(live)
        return self._elements_of(element.value for element in (cell if self._ttl.shows_expired else live))

    def _stored(self, elements: list[T]) -> list[Any]:
        return [self._ttl.stamped(cell) for cell in super()._stored(elements)]


class AddingState(CellState, ABC, Generic[In, Out]):
    """Keyed state with one accumulator per key. Accesses without a current key raise ``CoordinatorError``."""

    __slots__ = ()

    def get(self) -> Out | None:
        """Return the result of the added values, or ``None`` if no value was added."""
        result: Out | None = self._value()
        return result

    def add(self, value: In | None) -> None:
        """
        Add a value to the accumulator; ``None`` clears the state.

        :raises UnsupportedStateError: if the new accumulator does not fit the type of the state.
        """
        if value is None:
            self.clear()
        else:
            self._set_value(self._added(self._value(), value))

    @abstractmethod
    def _added(self, accumulator: Any, value: In) -> Any:
        """
        Return an accumulator with a value.

        :param accumulator: Accumulator of the values so far, ``None`` if there are none.
        """


class ReducingState(AddingState[T, T], Generic[T]):
    """
    Reduction of the values added to a key. The first value is stored unchanged.

    A reduction to ``None`` clears the state.
    """

    __slots__ = ()

    def merge_from(self, source: ReducingState[T]) -> None:
        """Reduce the value of another namespace into this one, and clear the other."""
        value = source.get()
        if value is not None:
            source.clear()
            self.add(value)

    def _added(self, accumulator: Any, value: T) -> Any:
        return value if accumulator is None else self._descriptor.reduce_function(accumulator, value)

    def _set_value(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._set_cell(self._frozen(value))


class AggregatingState(AddingState[In, Out], Generic[In, Out]):
    """Aggregate of the values added to a key, whose result is that of the aggregate function."""

    __slots__ = ()

    def get(self) -> Out | None:
        accumulator = self._value()
        return None if accumulator is None else self._functions.get_result(accumulator)

    def merge_from(self, source: AggregatingState[In, Out]) -> None:
        """Merge the accumulator of another namespace into this one, and clear the other."""
        added = source._cell()
        if added is None:
            return
        source.clear()
        current = self._cell()
        if current is None:
            self._set_cell(added)
        else:
            self._set_value(self._functions.merge(self._thawed(current), self._thawed(added)))

    def _added(self, accumulator: Any, value: In) -> Any:
        functions = self._functions
        return functions.add(value, functions.create_accumulator() if accumulator is None else accumulator)

    @property
    def _functions(self) -> AggregateFunction[In, Any, Out]:
        functions: AggregateFunction[In, Any, Out] = self._descriptor.aggregate_function
        return functions


class FoldingState(AddingState[T, Acc], Generic[T, Acc]):
    """Fold of the values added to a key. New code should use an ``AggregatingState``."""

    __slots__ = ()

    def _added(self, accumulator: Any, value: T) -> Any:
        return self._descriptor.fold_function(self._descriptor.initial if accumulator is None else accumulator, value)


_BATCH_KINDS = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING)


class BatchState:
    """
    Value, reducing or aggregating state of many keys, as Arrow arrays.

    It shares its cells with the state of single keys.

    :param table: Table of the state, without expired cells.
    :param operator: Operator name for errors.
    :raises InvalidConfigurationError: for a list, map or folding state.
    """

    def __init__(
        self,
        descriptor: StateDescriptor[Any],
        state: RegisteredState,
        table: StateTable,
        key_group_range: KeyGroupRange,
        operator: str,
    ) -> None:
        if state.kind not in _BATCH_KINDS:
            raise InvalidConfigurationError(
                f"Expected a value, reducing or aggregating state, found the {state.kind} state {state.name}; access "
                "it key by key."
            )
        self._table = table
        self._state = state
        self._arrow_type = state.serializer.arrow_type
        self._key_group_range = key_group_range
        self._operator = operator
        default = getattr(descriptor, "default", None)
        self._default = None if default is None else state.serializer.to_arrow([default])

    def get(self, keys: KeyBatch) -> Any:
        """
        Return an Arrow array of the values of keys, in the order of the keys; null for a key without a value.

        :raises InvalidConfigurationError: for a key of another subtask.
        """
        self._require_owned(keys)
        values = self._table.get_batch(keys)
        return values if self._default is None else filled(values, self._default)

    def put(self, keys: KeyBatch, values: Any) -> None:
        """
        Set the values of keys from an Arrow array; null clears.

        :raises InvalidConfigurationError: for a key of another subtask, or if the numbers of keys and values differ.
        :raises UnsupportedStateError: if the type of the state cannot represent the values exactly.
        """
        self._require_pairs(keys, values)
        self._table.put_batch(keys, self._cast(values))

    def add(self, keys: KeyBatch, values: Any) -> None:
        """
        Combine the values of keys with those of an Arrow array, without a null. Nothing is read.

        :raises InvalidConfigurationError: as for :meth:`put`, and if the descriptor does not say how values combine.
        :raises UnsupportedStateError: if the type of the state cannot represent the values exactly.
        """
        if not self._state.combination:
            raise InvalidConfigurationError(
                f"Expected {self._state.title} to have values that combine, found others; use put."
            )
        self._require_pairs(keys, values)
        self._table.add_batch(keys, self._cast(values))

    def _cast(self, values: Any) -> Any:
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        try:
            found = conformed(whole, self._arrow_type, "each value")
            self._state.serializer.require_valid_or_null(found, "each value")
        except UnsupportedStateError as error:
            raise misfit(self._state.title, self._operator, error) from error
        return found

    def _require_pairs(self, keys: KeyBatch, values: Any) -> None:
        self._require_owned(keys)
        if len(values) != len(keys):
            raise InvalidConfigurationError(
                f"Expected one value for each of {len(keys)} keys, found {len(values)} values; pass equal numbers."
            )

    def _require_owned(self, keys: KeyBatch) -> None:
        _require_ordered(keys.key_groups)
        ends = (keys.key_groups[0].as_py(), keys.key_groups[-1].as_py()) if len(keys) else ()
        foreign = [key_group for key_group in ends if key_group not in self._key_group_range]
        if foreign:
            owned = self._key_group_range
            raise InvalidConfigurationError(
                f"Expected keys of the key groups {owned.start} to {owned.end}, found a key of key group {foreign[0]}; "
                f"partition the keys by key group."
            )


def _require_ordered(key_groups: Any) -> None:
    # Backends search key groups by bisection.
    is_descending = pc.less(key_groups.slice(1), key_groups.slice(0, max(len(key_groups) - 1, 0)))
    if pc.any(is_descending).as_py():
        raise InvalidConfigurationError(
            "Expected keys in the order of their key groups, found another order; sort them by key group."
        )
