"""Keyed states as user functions see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.keyed.expiry import TimeToLive
from airflow_provider_statecheck.state.keyed.registered_state import KeyContext, StateValues, no_key
from airflow_provider_statecheck.state.keyed.tables import StateTable

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import AggregateFunction


class State(Protocol):
    """State of the current key."""

    def clear(self) -> None:
        """
        Remove what the current key has; other keys keep theirs.

        :raises CoordinatorError: if there is no current key.
        """
        ...


class MergeableState(State, Protocol):
    """State that two namespaces can be merged into."""

    def merge_from(self, source: State) -> None:
        """Add what another state of the same kind has, and clear that one."""
        ...


class CellState:
    """
    Reads and writes the cell of the current key.

    A cell holds the frozen form of a value.

    The methods of the table are kept, because looking them up at each access would cost as much as the access.

    :param table: Where the state is.
    :param context: The current key.
    :param namespace: In which this state is.
    :param values: How values become cells and come back.
    """

    __slots__ = ("_context", "_freeze", "_get", "_namespace", "_put", "_remove", "_thaw", "_values")

    def __init__(self, table: StateTable, context: KeyContext, namespace: str, values: StateValues) -> None:
        self._context = context
        self._namespace = namespace
        self._values = values
        self._freeze = values.freeze
        self._thaw = values.thaw
        self._get = table.get
        self._put = table.put
        self._remove = table.remove

    def clear(self) -> None:
        """
        Remove what the current key has; other keys keep theirs.

        :raises CoordinatorError: if there is no current key.
        """
        self._context.require()
        self._remove(self._context.key, self._context.key_group, self._namespace)

    def _value(self) -> Any:
        return self._values.thawed(self._cell())

    def _set_value(self, value: Any) -> None:
        self._set_cell(self._frozen(value))

    def _frozen(self, value: Any) -> Any:
        try:
            return self._freeze(value)
        except UnsupportedStateError as error:
            raise self._values.misfit(self._context.key, error) from error

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


T = TypeVar("T")


class ValueState(CellState, Generic[T]):
    """One value for each key, which can be read and replaced."""

    __slots__ = ()

    # Both methods are called for each element, so they repeat what ``CellState`` does rather than call it.

    def value(self) -> T | None:
        """
        Return the value, else a copy of the default, else ``None``; to change it in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        value: T | None = self._get(context.key, context.key_group, self._namespace)
        thaw = self._thaw
        return value if thaw is None or value is None else thaw(value)

    def update(self, value: T | None) -> None:
        """
        Set the value as it is now; ``None`` clears it, so that the default is seen again.

        :raises UnsupportedStateError: for a value of another type than the state's.
        :raises CoordinatorError: if there is no current key.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        if value is None:
            self._remove(context.key, context.key_group, self._namespace)
            return
        try:
            kept = self._freeze(value)
        except UnsupportedStateError as error:
            raise self._values.misfit(context.key, error) from error
        self._put(context.key, context.key_group, self._namespace, kept)


class DefaultedValueState(ValueState[T]):
    """
    A value with a default.

    :param default: Makes a new default at each call.
    """

    __slots__ = ("_default",)

    def __init__(
        self,
        table: StateTable,
        context: KeyContext,
        namespace: str,
        values: StateValues,
        default: Callable[[], T],
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._default = default

    def value(self) -> T | None:
        """
        Return the value, else a copy of the default; to change it in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        cell = self._cell()
        return self._default() if cell is None else self._values.thawed(cell)


class ListState(CellState, Generic[T]):
    """Elements in the order in which they were added; an empty list is the same as none."""

    __slots__ = ()

    def get(self) -> Iterable[T]:
        """
        Return the elements, none if there is nothing; to change one in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        return self._given(self._cell() or ())

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the elements."""
        return iter(self.get())

    def add(self, element: T) -> None:
        """
        Add an element at the end, as it is now.

        :raises InvalidConfigurationError: for ``None``; the list is unchanged then.
        :raises UnsupportedStateError: for an element of another type than the state's; the list is unchanged then.
        :raises CoordinatorError: if there is no current key.
        """
        self._append([_required(element)])

    def add_all(self, elements: Iterable[T]) -> None:
        """
        Add elements at the end, as they are now.

        :raises InvalidConfigurationError: for ``None``, alone or among the elements; the list is unchanged then.
        :raises UnsupportedStateError: for an element of another type than the state's; the list is unchanged then.
        :raises CoordinatorError: if there is no current key.
        """
        self._append(_all_required(elements))

    def update(self, elements: Iterable[T]) -> None:
        """
        Replace the list; no elements clear it.

        :raises InvalidConfigurationError: for ``None``, alone or among the elements; the list is unchanged then.
        :raises UnsupportedStateError: for an element of another type than the state's; the list is unchanged then.
        :raises CoordinatorError: if there is no current key.
        """
        self._replace(self._stored(_all_required(elements)))

    def merge_from(self, source: ListState[T]) -> None:
        """Add the elements of another namespace, and clear that one."""
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

    def _given(self, kept: Iterable[Any]) -> tuple[T, ...]:
        return tuple(kept if self._thaw is None else map(self._thaw, kept))

    def _replace(self, stored: list[Any]) -> None:
        if stored:
            self._set_cell(stored)
        else:
            self.clear()


def _required(element: T | None) -> T:
    if element is None:
        raise InvalidConfigurationError("Expected an element of a list state, found None; a list has no empty places.")
    return element


def _all_required(elements: Iterable[T]) -> list[T]:
    if elements is None:
        raise InvalidConfigurationError("Expected elements of a list state, found None; use clear() for no elements.")
    return [_required(element) for element in elements]


class TtlListState(ListState[T]):
    """
    A list whose elements each have their own time.

    :param time_to_live: What expires when.
    """

    __slots__ = ("_ttl",)

    def __init__(
        self, table: StateTable, context: KeyContext, namespace: str, values: StateValues, time_to_live: TimeToLive
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._ttl = time_to_live

    def get(self) -> Iterable[T]:
        """
        Return the elements that can be seen; what is expired is removed.

        :raises CoordinatorError: if there is no current key.
        """
        cell = self._cell()
        if cell is None:
            return ()
        kept = self._ttl.after_read(cell)
        if kept is not cell:
            self._replace(kept)
        return self._given(element.value for element in (cell if self._ttl.shows_expired else kept))

    def _stored(self, elements: list[T]) -> list[Any]:
        return [self._ttl.stamped(kept) for kept in super()._stored(elements)]


class ReducingState(CellState, Generic[T]):
    """
    The reduction of all values that were added.

    :param reduce: Gives one value for two.
    """

    __slots__ = ("_reduce",)

    def __init__(
        self,
        table: StateTable,
        context: KeyContext,
        namespace: str,
        values: StateValues,
        reduce: Callable[[T, T], T | None],
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._reduce = reduce

    def get(self) -> T | None:
        """
        Return the reduction, ``None`` if nothing was added; to change it in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        value: T | None = self._value()
        return value

    def add(self, value: T | None) -> None:
        """
        Reduce a value into the state; the first is taken as it is, and ``None`` clears the state.

        :raises UnsupportedStateError: if the new value is of another type than the state's.
        :raises CoordinatorError: if there is no current key.
        """
        if value is None:
            self.clear()
            return
        old = self._value()
        self._set_or_clear(value if old is None else self._reduce(old, value))

    def merge_from(self, source: ReducingState[T]) -> None:
        """Reduce what another namespace has into this one, and clear that one."""
        value = source.get()
        if value is not None:
            source.clear()
            self.add(value)

    def _set_or_clear(self, value: T | None) -> None:
        if value is None:
            self.clear()
        else:
            self._set_value(value)


In = TypeVar("In")
Out = TypeVar("Out")


class AggregatingState(CellState, Generic[In, Out]):
    """
    The aggregate of all values that were added.

    :param aggregate: How values go into an accumulator, and what it means.
    """

    __slots__ = ("_aggregate",)

    def __init__(
        self,
        table: StateTable,
        context: KeyContext,
        namespace: str,
        values: StateValues,
        aggregate: AggregateFunction[In, Any, Out],
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._aggregate = aggregate

    def get(self) -> Out | None:
        """
        Return the result, ``None`` if nothing was added.

        :raises CoordinatorError: if there is no current key.
        """
        accumulator = self._value()
        return None if accumulator is None else self._aggregate.get_result(accumulator)

    def add(self, value: In | None) -> None:
        """
        Add a value to the accumulator; ``None`` clears the state.

        :raises UnsupportedStateError: if the new accumulator is of another type than the state's.
        :raises CoordinatorError: if there is no current key.
        """
        if value is None:
            self.clear()
            return
        accumulator = self._value()
        if accumulator is None:
            accumulator = self._aggregate.create_accumulator()
        self._set_value(self._aggregate.add(value, accumulator))

    def merge_from(self, source: AggregatingState[In, Out]) -> None:
        """Merge the accumulator of another namespace into this one, and clear that one."""
        other = source._cell()
        if other is None:
            return
        source.clear()
        own = self._cell()
        if own is None:
            self._set_cell(other)
        else:
            self._set_value(self._aggregate.merge(self._values.thawed(own), self._values.thawed(other)))


Acc = TypeVar("Acc")


class FoldingState(CellState, Generic[T, Acc]):
    """
    The fold of all values that were added; new code uses an ``AggregatingState``.

    :param initial: Makes a new accumulator for a key.
    :param fold: Gives the accumulator after a value.
    """

    __slots__ = ("_fold", "_initial")

    def __init__(
        self,
        table: StateTable,
        context: KeyContext,
        namespace: str,
        values: StateValues,
        initial: Callable[[], Acc],
        fold: Callable[[Acc, T], Acc],
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._initial = initial
        self._fold = fold

    def get(self) -> Acc | None:
        """
        Return the accumulator, ``None`` if nothing was added; to change it in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        value: Acc | None = self._value()
        return value

    def add(self, value: T | None) -> None:
        """
        Fold a value into the accumulator; ``None`` clears the state.

        :raises UnsupportedStateError: if the new accumulator is of another type than the state's.
        :raises CoordinatorError: if there is no current key.
        """
        if value is None:
            self.clear()
            return
        accumulator = self._value()
        if accumulator is None:
            accumulator = self._initial()
        self._set_value(self._fold(accumulator, value))
