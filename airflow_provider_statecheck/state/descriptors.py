"""State descriptors: name, kind, types and time to live."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer

_MILLISECOND = timedelta(milliseconds=1)


class UpdateType(StrEnum):
    """What makes a value live longer."""

    DISABLED = "disabled"
    """Nothing; values do not expire."""
    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class StateVisibility(StrEnum):
    """Whether a value that has expired can still be read."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """
    The time to live of a state; a value of its own for each value, element of a list and entry of a map.

    :param ttl: How long a value lives; time is the stage's, which is the logical date of the run unless it says otherwise.
    :raises InvalidConfigurationError: for less than a millisecond.
    """

    ttl: timedelta
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    state_visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        _require_positive(self.ttl)

    @property
    def is_enabled(self) -> bool:
        """Tell whether values expire at all."""
        return self.update_type is not UpdateType.DISABLED

    @property
    def ttl_ms(self) -> int:
        """Return how many milliseconds a value lives."""
        return self.ttl // _MILLISECOND

    def is_expired(self, last_access_ms: int, now_ms: int) -> bool:
        """Tell whether a value has expired that was last used at a time."""
        return self.is_enabled and last_access_ms + self.ttl_ms <= now_ms


def _require_positive(ttl: Any) -> None:
    if not isinstance(ttl, timedelta) or ttl < _MILLISECOND:
        raise InvalidConfigurationError(
            f"Expected a time to live of at least one millisecond as a datetime.timedelta, found {ttl!r}; leave ttl out "
            f"for state that does not expire."
        )


In = TypeVar("In", contravariant=True)
Acc = TypeVar("Acc")
Out = TypeVar("Out", covariant=True)
T = TypeVar("T")


class StateKind(StrEnum):
    """The kinds of state; one name has one of them for good."""

    VALUE = "value"
    LIST = "list"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    FOLDING = "folding"
    MAP = "map"


class AggregateFunction(Protocol[In, Acc, Out]):
    """How values become one result by way of an accumulator; it may be called for many keys in turn."""

    def create_accumulator(self) -> Acc:
        """Return an accumulator of no value."""
        ...

    def add(self, value: In, accumulator: Acc) -> Acc:
        """Return the accumulator with one more value; it may change and return the one that it was given."""
        ...

    def get_result(self, accumulator: Acc) -> Out:
        """Return the result of an accumulator."""
        ...

    def merge(self, a: Acc, b: Acc) -> Acc:
        """Return one accumulator for two; it may change and return either."""
        ...


class StateDescriptor(Generic[T]):
    """
    Names a state and says what it holds; the same name in the same operator is the same state.

    :param name: Unique in the operator.
    :param type: What a value is: a Python type, an Arrow type, a ``TypeSerializer`` or a serializer of the user's own.
    :param ttl: How long values live; ``None`` for ever.
    :param queryable_name: Under which others may read the state, or ``None``.
    :raises InvalidConfigurationError: for an empty name, or a time to live that is none.
    """

    kind: ClassVar[StateKind]

    def __init__(
        self, name: str, type: Any, *, ttl: StateTtlConfig | None = None, queryable_name: str | None = None
    ) -> None:
        _require_name("name", name)
        self.name = name
        self.type = type
        self._serializer: TypeSerializer[T] | None = None
        self._ttl: StateTtlConfig | None = None
        self.queryable_name: str | None = None
        if ttl is not None:
            self.enable_time_to_live(ttl)
        if queryable_name is not None:
            self.set_queryable(queryable_name)

    @property
    def serializer(self) -> TypeSerializer[T]:
        """
        Return what makes values to bytes: of a value, of an element of a list, or of the values of a map.

        :raises UnsupportedStateError: for a type that cannot be state.
        """
        self.initialize_serializer_unless_set()
        assert self._serializer is not None  # noqa: S101 - for the type checker
        return self._serializer

    @property
    def key_serializer(self) -> TypeSerializer[Any] | None:
        """Return what makes the keys of a map to bytes; ``None`` for what is no map."""
        return None

    @property
    def is_serializer_initialized(self) -> bool:
        """Tell whether the serializer is set."""
        return self._serializer is not None

    def initialize_serializer_unless_set(self, serializer: Any = None) -> None:
        """
        Set the serializer, of the type unless one is given; where one is set already nothing happens.

        :param serializer: A ``TypeSerializer``, or what ``serializer_of`` makes one of.
        :raises UnsupportedStateError: for a type that cannot be state.
        """
        if self._serializer is None:
            self._serializer = _cell_serializer(self.type if serializer is None else serializer)

    @property
    def ttl(self) -> StateTtlConfig | None:
        """Return how long values live; ``None`` for ever."""
        return self._ttl

    def enable_time_to_live(self, ttl: StateTtlConfig) -> None:
        """
        Let values expire; one with updates disabled means for ever.

        :raises InvalidConfigurationError: for another type.
        """
        if not isinstance(ttl, StateTtlConfig):
            raise InvalidConfigurationError(
                f"Expected a StateTtlConfig as the time to live of {self.name!r}, found {ttl!r}."
            )
        self._ttl = ttl if ttl.is_enabled else None

    @property
    def is_queryable(self) -> bool:
        """Tell whether others may read the state."""
        return self.queryable_name is not None

    def set_queryable(self, queryable_name: str) -> None:
        """
        Let others read the state under a name.

        :raises InvalidConfigurationError: for an empty name, or if there is one already.
        """
        _require_name("queryable_name", queryable_name)
        if self.queryable_name is not None:
            raise InvalidConfigurationError(
                f"Expected one queryable name for {self.name!r}, found {self.queryable_name!r} and {queryable_name!r}."
            )
        self.queryable_name = queryable_name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and type(other) is type(self) and self.name == other.name

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ValueStateDescriptor(StateDescriptor[T]):
    """
    A single value for each key.

    :param default: What is read where there is none; each read gets a copy.
    """

    kind = StateKind.VALUE

    @overload
    def __init__(
        self,
        name: str,
        type: builtins.type[T],
        default: T | None = None,
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: ValueStateDescriptor[Any],
        name: str,
        type: object,
        default: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        type: Any,
        default: T | None = None,
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None:
        super().__init__(name, type, ttl=ttl, queryable_name=queryable_name)
        self._default = default

    @property
    def default(self) -> T | None:
        """Return a copy of the default, or ``None``."""
        return None if self._default is None else self.serializer.copy(self._default)


class ListStateDescriptor(StateDescriptor[T]):
    """
    A list of elements.

    :param element_type: What an element is.
    """

    kind = StateKind.LIST

    @overload
    def __init__(
        self,
        name: str,
        element_type: builtins.type[T],
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: ListStateDescriptor[Any],
        name: str,
        element_type: object,
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None: ...
    def __init__(
        self, name: str, element_type: Any, *, ttl: StateTtlConfig | None = None, queryable_name: str | None = None
    ) -> None:
        super().__init__(name, element_type, ttl=ttl, queryable_name=queryable_name)


class ReducingStateDescriptor(StateDescriptor[T]):
    """
    The values of a key, made to one of the same type.

    :param reduce_function: Gives one value for two.
    :raises InvalidConfigurationError: for no function.
    """

    kind = StateKind.REDUCING

    def __init__(
        self,
        name: str,
        reduce_function: Callable[[T, T], T],
        type: Any,
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None:
        super().__init__(name, type, ttl=ttl, queryable_name=queryable_name)
        self.reduce_function = _require_callable(name, "reduce_function", reduce_function)


class AggregatingStateDescriptor(StateDescriptor[Acc]):
    """
    The values of a key, made to an accumulator and read as its result.

    :param aggregate_function: An :class:`AggregateFunction`.
    :param accumulator_type: What an accumulator is; it alone is kept.
    :raises InvalidConfigurationError: for a function without one of the methods.
    """

    kind = StateKind.AGGREGATING

    def __init__(
        self,
        name: str,
        aggregate_function: AggregateFunction[Any, Acc, Any],
        accumulator_type: Any,
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None:
        super().__init__(name, accumulator_type, ttl=ttl, queryable_name=queryable_name)
        for method in ("create_accumulator", "add", "get_result", "merge"):
            _require_callable(name, f"aggregate_function.{method}", getattr(aggregate_function, method, None))
        self.aggregate_function = aggregate_function


class FoldingStateDescriptor(StateDescriptor[Acc]):
    """
    The values of a key, folded into an accumulator one by one.

    :param initial: The accumulator of no value; each key gets a copy.
    :param fold_function: Gives the accumulator with one more value.
    :raises InvalidConfigurationError: for no function, or no accumulator.
    """

    kind = StateKind.FOLDING

    def __init__(
        self,
        name: str,
        initial: Acc,
        fold_function: Callable[[Acc, Any], Acc],
        type: Any,
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None:
        super().__init__(name, type, ttl=ttl, queryable_name=queryable_name)
        if initial is None:
            raise InvalidConfigurationError(f"Expected an initial accumulator for {name!r}, found None.")
        self._initial = initial
        self.fold_function = _require_callable(name, "fold_function", fold_function)

    @property
    def initial(self) -> Acc:
        """Return a copy of the accumulator of no value."""
        return self.serializer.copy(self._initial)


class MapStateDescriptor(StateDescriptor[T]):
    """
    A map for each key.

    :param key_type: What a key of the map is.
    :param value_type: What a value of the map is.
    """

    kind = StateKind.MAP

    @overload
    def __init__(
        self,
        name: str,
        key_type: Any,
        value_type: builtins.type[T],
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: MapStateDescriptor[Any],
        name: str,
        key_type: Any,
        value_type: object,
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        key_type: Any,
        value_type: Any,
        *,
        ttl: StateTtlConfig | None = None,
        queryable_name: str | None = None,
    ) -> None:
        super().__init__(name, value_type, ttl=ttl, queryable_name=queryable_name)
        self.key_type = key_type
        self._key_serializer: TypeSerializer[Any] | None = None

    @property
    def key_serializer(self) -> TypeSerializer[Any]:
        """
        Return what makes keys of the map to bytes.

        :raises UnsupportedStateError: for a type that cannot be state.
        """
        from airflow_provider_statecheck.state.serializers.resolve import serializer_of

        if self._key_serializer is None:
            self._key_serializer = serializer_of(self.key_type)
        return self._key_serializer


def _cell_serializer(type: Any) -> TypeSerializer[Any]:
    from airflow_provider_statecheck.state.serializers.nested_columns import without_optional
    from airflow_provider_statecheck.state.serializers.resolve import serializer_of

    return without_optional(serializer_of(type))


def _require_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidConfigurationError(f"Expected a text that is not empty as {what} of a state, found {name!r}.")


def _require_callable(name: str, what: str, function: Any) -> Any:
    if not callable(function):
        raise InvalidConfigurationError(f"Expected a callable as {what} of the state {name!r}, found {function!r}.")
    return function
