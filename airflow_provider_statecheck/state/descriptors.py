"""State descriptors: name, kind, types and time to live."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, Generic, Protocol, TypedDict, TypeVar, Unpack, overload

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.combining.records import Combination
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer

_MILLISECOND = timedelta(milliseconds=1)
_IN_NO_URL = re.compile(r"\A\.\.?\Z|[\x00-\x1f\x7f\ud800-\udfff]")
In = TypeVar("In", contravariant=True)
Acc = TypeVar("Acc")
Out = TypeVar("Out", covariant=True)
T = TypeVar("T")


class UpdateType(StrEnum):
    """Accesses that renew the time to live of a value."""

    DISABLED = "disabled"
    """Values do not expire."""
    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class StateVisibility(StrEnum):
    """Visibility of expired values that were not removed yet."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """
    Time to live of a state. It applies to each value, list element and map entry separately.

    :param ttl: Lifetime of a value, measured in the time of the stage, by default the logical date of the Dag run.
    :param update_type: Accesses that renew a value.
    :param state_visibility: Whether reads may return expired values.
    :raises InvalidConfigurationError: if ``ttl`` is shorter than a millisecond.
    """

    ttl: timedelta
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    state_visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        ttl: Any = self.ttl
        if not isinstance(ttl, timedelta) or ttl < _MILLISECOND:
            raise InvalidConfigurationError(
                f"Expected a datetime.timedelta of at least one millisecond as the time to live, found {ttl!r}; leave "
                "ttl out for state that does not expire."
            )

    @property
    def is_enabled(self) -> bool:
        """Whether values expire."""
        return self.update_type is not UpdateType.DISABLED

    @property
    def ttl_ms(self) -> int:
        """The time to live in milliseconds."""
        return self.ttl // _MILLISECOND

    def is_expired(self, last_access_ms: int, now_ms: int) -> bool:
        """Return whether a value with the given last access has expired."""
        return self.is_enabled and last_access_ms + self.ttl_ms <= now_ms


class StateKind(StrEnum):
    """Kind of a state, fixed for its name."""

    VALUE = "value"
    LIST = "list"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    FOLDING = "folding"
    MAP = "map"


class AggregateFunction(Protocol[In, Acc, Out]):
    """Aggregation of values through an accumulator. One instance serves all keys."""

    def create_accumulator(self) -> Acc:
        """Return an empty accumulator."""

    def add(self, value: In, accumulator: Acc) -> Acc:
        """Return the accumulator with the value added; it may be modified in place."""

    def get_result(self, accumulator: Acc) -> Out:
        """Return the result of an accumulator."""

    def merge(self, a: Acc, b: Acc) -> Acc:
        """Return the union of two accumulators; either may be modified in place."""


class StateOptions(TypedDict, total=False):
    """Options of every descriptor."""

    ttl: StateTtlConfig | None
    queryable_name: str | None


class StateDescriptor(Generic[T]):
    """
    Name, types and options of a state. Within an operator, the same name refers to the same state.

    :param name: Name of the state, unique in the operator.
    :param type: Type of the values: a Python type, an Arrow type, a ``TypeSerializer`` or a custom serializer.
    :param ttl: Time to live, by default ``None``: values never expire.
    :param queryable_name: Name for queries from outside the stage, by default ``None``; a URL must be able to contain
        it.
    :raises InvalidConfigurationError: for an invalid name or time to live.
    """

    kind: ClassVar[StateKind]
    ttl: StateTtlConfig | None
    """Time to live; ``None`` if values never expire."""

    def __init__(
        self, name: str, type: Any, *, ttl: StateTtlConfig | None = None, queryable_name: str | None = None
    ) -> None:
        _require_name("name", name)
        self.name = name
        self.type = type
        self._serializer: TypeSerializer[T] | None = None
        self.ttl = None
        self.queryable_name: str | None = None
        if ttl is not None:
            self.enable_time_to_live(ttl)
        if queryable_name is not None:
            self.set_queryable(queryable_name)

    @property
    def serializer(self) -> TypeSerializer[T]:
        """
        The serializer of a value, a list element or a map value.

        :raises UnsupportedStateError: if the type cannot be stored in state.
        """
        self.initialize_serializer_unless_set()
        assert self._serializer is not None  # noqa: S101 - for the type checker
        return self._serializer

    @property
    def key_serializer(self) -> TypeSerializer[Any] | None:
        """The serializer of the user keys; ``None`` unless the state is a map."""
        return None

    def initialize_serializer_unless_set(self, serializer: Any = None) -> None:
        """
        Set the serializer unless it is set already.

        :param serializer: A ``TypeSerializer`` or a type; the type of the descriptor by default.
        :raises UnsupportedStateError: if the type cannot be stored in state.
        """
        if self._serializer is None:
            from airflow_provider_statecheck.state.serializers.nested_columns import without_optional
            from airflow_provider_statecheck.state.serializers.resolve import serializer_of

            self._serializer = without_optional(serializer_of(self.type if serializer is None else serializer))

    def enable_time_to_live(self, ttl: StateTtlConfig) -> None:
        """
        Set the time to live. A configuration with disabled updates removes it.

        :raises InvalidConfigurationError: if ``ttl`` is not a ``StateTtlConfig``.
        """
        if not isinstance(ttl, StateTtlConfig):
            raise InvalidConfigurationError(
                f"Expected a StateTtlConfig as the time to live of {self.name!r}, found {ttl!r}; wrap it in one."
            )
        self.ttl = ttl if ttl.is_enabled else None

    @property
    def is_queryable(self) -> bool:
        """Whether the state can be queried from outside the stage."""
        return self.queryable_name is not None

    def set_queryable(self, queryable_name: str) -> None:
        """
        Make the state queryable from outside the stage.

        :raises InvalidConfigurationError: if a URL cannot contain the name, or if the state has a queryable name
            already.
        """
        require_queryable_name(queryable_name)
        if self.queryable_name is not None:
            raise InvalidConfigurationError(
                f"Expected one queryable name for {self.name!r}, found {self.queryable_name!r} and {queryable_name!r}; "
                "set only one."
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
    Descriptor of one value per key.

    :param default: Value of keys without state; each read returns a copy.
    """

    kind = StateKind.VALUE

    @overload
    def __init__(
        self, name: str, type: builtins.type[T], default: T | None = None, **options: Unpack[StateOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: ValueStateDescriptor[Any], name: str, type: object, default: Any = None, **options: Unpack[StateOptions]
    ) -> None: ...
    def __init__(self, name: str, type: Any, default: T | None = None, **options: Unpack[StateOptions]) -> None:
        super().__init__(name, type, **options)
        self._default = default

    @property
    def default(self) -> T | None:
        """A copy of the default, or ``None``."""
        return None if self._default is None else self.serializer.copy(self._default)


class PartialResultsDescriptor(ValueStateDescriptor[Any]):
    """
    Descriptor of one record per key with a partial result in each field, which is combined with others of the key.

    :param combination: How the values of each field are combined.
    """

    def __init__(self, name: str, type: Any, combination: Combination) -> None:
        super().__init__(name, type)
        self.combination = combination


class ListStateDescriptor(StateDescriptor[T]):
    """
    Descriptor of one list per key.

    :param element_type: Type of an element.
    """

    kind = StateKind.LIST

    @overload
    def __init__(self, name: str, element_type: builtins.type[T], **options: Unpack[StateOptions]) -> None: ...
    @overload
    def __init__(
        self: ListStateDescriptor[Any], name: str, element_type: object, **options: Unpack[StateOptions]
    ) -> None: ...
    def __init__(self, name: str, element_type: Any, **options: Unpack[StateOptions]) -> None:
        super().__init__(name, element_type, **options)


class ReducingStateDescriptor(StateDescriptor[T]):
    """
    Descriptor of one value per key that is the reduction of all added values.

    :param reduce_function: Combines two values into one.
    :raises InvalidConfigurationError: if ``reduce_function`` is not callable.
    """

    kind = StateKind.REDUCING

    def __init__(
        self, name: str, reduce_function: Callable[[T, T], T], type: Any, **options: Unpack[StateOptions]
    ) -> None:
        super().__init__(name, type, **options)
        self.reduce_function = _require_callable(name, "reduce_function", reduce_function)


class AggregatingStateDescriptor(StateDescriptor[Acc]):
    """
    Descriptor of one accumulator per key, read as its result.

    :param aggregate_function: An :class:`AggregateFunction`.
    :param accumulator_type: Type of the accumulator, which is the stored value.
    :raises InvalidConfigurationError: if a method of the function is missing.
    """

    kind = StateKind.AGGREGATING

    def __init__(
        self,
        name: str,
        aggregate_function: AggregateFunction[Any, Acc, Any],
        accumulator_type: Any,
        **options: Unpack[StateOptions],
    ) -> None:
        super().__init__(name, accumulator_type, **options)
        for method in ("create_accumulator", "add", "get_result", "merge"):
            _require_callable(name, f"aggregate_function.{method}", getattr(aggregate_function, method, None))
        self.aggregate_function = aggregate_function


class FoldingStateDescriptor(StateDescriptor[Acc]):
    """
    Descriptor of one accumulator per key into which values are folded.

    :param initial: Initial accumulator; each key starts with a copy.
    :param fold_function: Returns the accumulator with one more value.
    :raises InvalidConfigurationError: if ``fold_function`` is not callable, or ``initial`` is ``None``.
    """

    kind = StateKind.FOLDING

    def __init__(
        self,
        name: str,
        initial: Acc,
        fold_function: Callable[[Acc, Any], Acc],
        type: Any,
        **options: Unpack[StateOptions],
    ) -> None:
        super().__init__(name, type, **options)
        if initial is None:
            raise InvalidConfigurationError(
                f"Expected an initial accumulator for {name!r}, found None; pass an accumulator."
            )
        self._initial = initial
        self.fold_function = _require_callable(name, "fold_function", fold_function)

    @property
    def initial(self) -> Acc:
        """A copy of the initial accumulator."""
        return self.serializer.copy(self._initial)


class MapStateDescriptor(StateDescriptor[T]):
    """
    Descriptor of one map per key.

    :param key_type: Type of the user keys.
    :param value_type: Type of the values.
    """

    kind = StateKind.MAP

    @overload
    def __init__(
        self, name: str, key_type: Any, value_type: builtins.type[T], **options: Unpack[StateOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: MapStateDescriptor[Any], name: str, key_type: Any, value_type: object, **options: Unpack[StateOptions]
    ) -> None: ...
    def __init__(self, name: str, key_type: Any, value_type: Any, **options: Unpack[StateOptions]) -> None:
        super().__init__(name, value_type, **options)
        self.key_type = key_type
        self._key_serializer: TypeSerializer[Any] | None = None

    @property
    def key_serializer(self) -> TypeSerializer[Any]:
        """
        The serializer of the user keys.

        :raises UnsupportedStateError: if the type cannot be stored in state.
        """
        from airflow_provider_statecheck.state.serializers.resolve import serializer_of

        if self._key_serializer is None:
            self._key_serializer = serializer_of(self.key_type)
        return self._key_serializer


def _require_name(parameter: str, name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidConfigurationError(
            f"Expected a non-empty string as {parameter} of a state, found {name!r}; pass a name."
        )


def require_queryable_name(name: Any) -> None:
    """
    Require a name that can be part of a URL.

    :raises InvalidConfigurationError: if the name is empty, ``.`` or ``..``, or has a control character or a lone
        surrogate.
    """
    _require_name("queryable_name", name)
    if _IN_NO_URL.search(name):
        raise InvalidConfigurationError(
            f"Expected a queryable_name that can be part of a URL, found {name!r:.100}; choose one other than . and .. "
            "and without control characters."
        )


def _require_callable(name: str, parameter: str, function: Any) -> Any:
    if not callable(function):
        raise InvalidConfigurationError(
            f"Expected a callable as {parameter} of the state {name!r}, found {function!r}; pass a function."
        )
    return function
