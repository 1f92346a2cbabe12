"""Keyed state stores of user functions, and batch access to keyed state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import TimeToLive, TtlCells
from airflow_provider_statecheck.state.keyed.registered_state import StateTable, misfit

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange
    from airflow_provider_statecheck.state.descriptors import (
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueStateDescriptor,
    )
    from airflow_provider_statecheck.state.keyed.map_state import MapState
    from airflow_provider_statecheck.state.keyed.registered_state import MapTable, RegisteredState
    from airflow_provider_statecheck.state.keyed.states import (
        AggregatingState,
        FoldingState,
        ListState,
        ReducingState,
        State,
        ValueState,
    )
    from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch


T = TypeVar("T")
Acc = TypeVar("Acc")


class KeyedStateStore:
    """
    Registry of the keyed states of a function.

    The first call with a descriptor registers its state, and later calls return the same state. Each method raises
    ``InvalidConfigurationError`` for a descriptor of another kind or a name that belongs to another kind of state, and
    ``StateMigrationError`` if the descriptor is incompatible with restored state.

    :param state_of: Returns the state of a descriptor for the current key.
    """

    def __init__(self, state_of: Callable[[StateDescriptor[Any]], State]) -> None:
        self._state_of = state_of

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return a state with one value per key."""
        return cast("ValueState[T]", self._state(descriptor, StateKind.VALUE))

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a state with one list per key."""
        return cast("ListState[T]", self._state(descriptor, StateKind.LIST))

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return a state that reduces added values."""
        return cast("ReducingState[T]", self._state(descriptor, StateKind.REDUCING))

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Acc]) -> AggregatingState[Any, Any]:
        """Return a state that aggregates added values."""
        return cast("AggregatingState[Any, Any]", self._state(descriptor, StateKind.AGGREGATING))

    def get_folding_state(self, descriptor: FoldingStateDescriptor[Acc]) -> FoldingState[Any, Acc]:
        """Return a state that folds added values."""
        return cast("FoldingState[Any, Acc]", self._state(descriptor, StateKind.FOLDING))

    def get_map_state(self, descriptor: MapStateDescriptor[T]) -> MapState[Any, T]:
        """Return a state with one map per key."""
        return cast("MapState[Any, T]", self._state(descriptor, StateKind.MAP))

    def _state(self, descriptor: StateDescriptor[Any], kind: StateKind) -> State:
        if descriptor.kind is not kind:
            raise InvalidConfigurationError(
                f"Expected the descriptor of a {kind} state, found the {descriptor.kind} state {descriptor.name}; call the method "
                f"of its kind."
            )
        return self._state_of(descriptor)


_BATCH_KINDS = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING)


class BatchState:
    """
    Value, reducing or aggregating state of many keys, as Arrow arrays.

    It shares its cells with the state of single keys.

    :param descriptor: Descriptor of the state.
    :param state: Registered state of the descriptor.
    :param table: Table of the state.
    :param key_group_range: Key groups of the subtask.
    :param now_ms: Returns the time for expiry in milliseconds.
    :param operator: Operator name for errors.
    :raises InvalidConfigurationError: for a list, map or folding state.
    """

    def __init__(
        self,
        descriptor: StateDescriptor[Any],
        state: RegisteredState,
        table: StateTable | MapTable,
        key_group_range: KeyGroupRange,
        now_ms: Callable[[], int],
        operator: str,
    ) -> None:
        if state.kind not in _BATCH_KINDS:
            raise InvalidConfigurationError(
                f"Expected a value, reducing or aggregating state, found the {state.kind} state {state.name}; access it key by "
                f"key."
            )
        cells = cast("StateTable", table)
        self._table = cells if state.ttl is None else TtlCells(cells, TimeToLive(state.ttl, now_ms))
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
        return values if self._default is None else _with_default(values, self._default)

    def put(self, keys: KeyBatch, values: Any) -> None:
        """
        Set the values of keys from an Arrow array; null clears.

        :raises InvalidConfigurationError: for a key of another subtask, or if the numbers of keys and values differ.
        :raises UnsupportedStateError: if the type of the state cannot represent the values exactly.
        """
        self._require_owned(keys)
        if len(values) != len(keys):
            raise InvalidConfigurationError(
                f"Expected one value for each of {len(keys)} keys, found {len(values)} values; pass equal numbers."
            )
        self._table.put_batch(keys, self._cast(values))

    def _cast(self, values: Any) -> Any:
        import pyarrow as pa

        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        wanted = self._arrow_type
        try:
            return whole if whole.type == wanted else whole.cast(wanted)
        except pa.ArrowException as error:
            reason = UnsupportedStateError(f"Expected values of {wanted}, found {whole.type}: {error}; cast them.")
            raise misfit(self._state.title, self._operator, reason) from error

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
    import pyarrow.compute as pc

    # Backends search key groups by bisection.
    is_descending = pc.less(key_groups.slice(1), key_groups.slice(0, max(len(key_groups) - 1, 0)))
    if pc.any(is_descending).as_py():
        raise InvalidConfigurationError(
            "Expected keys in the order of their key groups, found another order; sort them by key group."
        )


def _with_default(values: Any, default: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not values.null_count:
        return values
    rows = pc.if_else(pc.is_null(values), len(values), pa.array(range(len(values)), pa.int64()))
    return pa.concat_arrays([values, default]).take(rows)
