"""The store of keyed state that functions use, for single keys and for batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import TimeToLive, TtlCells
from airflow_provider_statecheck.state.keyed.registered_state import misfit
from airflow_provider_statecheck.state.keyed.tables import StateTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
    from airflow_provider_statecheck.state.descriptors import (
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueStateDescriptor,
    )
    from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
    from airflow_provider_statecheck.state.keyed.map_state import MapState
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.keyed.states import (
        AggregatingState,
        FoldingState,
        ListState,
        ReducingState,
        State,
        ValueState,
    )
    from airflow_provider_statecheck.state.keyed.tables import MapTable
    from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch


T = TypeVar("T")
Acc = TypeVar("Acc")


class KeyedStateStore(Protocol):
    """
    Gives the states of a function.

    Each method registers a state at the first time and gives the same one afterwards. It raises ``InvalidConfigurationError``
    for a descriptor of another kind and for a name that another kind of state has, and ``StateMigrationError`` if restored
    state cannot go on with the descriptor.
    """

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return a state of one value."""
        ...

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a state of a list."""
        ...

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return a state into which values are reduced."""
        ...

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Acc]) -> AggregatingState[Any, Any]:
        """Return a state into which values are aggregated."""
        ...

    def get_folding_state(self, descriptor: FoldingStateDescriptor[Acc]) -> FoldingState[Any, Acc]:
        """Return a state into which values are folded."""
        ...

    def get_map_state(self, descriptor: MapStateDescriptor[T]) -> MapState[Any, T]:
        """Return a state of a map."""
        ...


class DefaultKeyedStateStore:
    """
    Gives the states of a backend.

    :param backend: Where they are.
    """

    def __init__(self, backend: AbstractKeyedStateBackend) -> None:
        self._backend = backend

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return a state of one value."""
        return cast("ValueState[T]", self._state(descriptor, StateKind.VALUE))

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a state of a list."""
        return cast("ListState[T]", self._state(descriptor, StateKind.LIST))

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return a state into which values are reduced."""
        return cast("ReducingState[T]", self._state(descriptor, StateKind.REDUCING))

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Acc]) -> AggregatingState[Any, Any]:
        """Return a state into which values are aggregated."""
        return cast("AggregatingState[Any, Any]", self._state(descriptor, StateKind.AGGREGATING))

    def get_folding_state(self, descriptor: FoldingStateDescriptor[Acc]) -> FoldingState[Any, Acc]:
        """Return a state into which values are folded."""
        return cast("FoldingState[Any, Acc]", self._state(descriptor, StateKind.FOLDING))

    def get_map_state(self, descriptor: MapStateDescriptor[T]) -> MapState[Any, T]:
        """Return a state of a map."""
        return cast("MapState[Any, T]", self._state(descriptor, StateKind.MAP))

    def _state(self, descriptor: StateDescriptor[Any], kind: StateKind) -> State:
        if descriptor.kind is not kind:
            raise InvalidConfigurationError(
                f"Expected the descriptor of a {kind} state, found the {descriptor.kind} state {descriptor.name}."
            )
        return self._backend.get_partitioned_state(descriptor)


_KINDS = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING)


class BatchState:
    """
    Values, reductions or accumulators as Arrow arrays; the same state as the one that is used key by key.

    :param table: Where the state is.
    :param arrow_type: What the values are.
    :param key_group_range: The key groups of the subtask.
    :param refused: Makes the error of values that do not fit, naming the state.
    :param default: An Arrow array of the default, or ``None`` if there is none.
    """

    def __init__(
        self,
        table: StateTable,
        arrow_type: Any,
        key_group_range: KeyGroupRange,
        refused: Callable[[Exception], UnsupportedStateError],
        default: Any = None,
    ) -> None:
        self._table = table
        self._arrow_type = arrow_type
        self._key_group_range = key_group_range
        self._refused = refused
        self._default = default

    @classmethod
    def of(
        cls,
        descriptor: StateDescriptor[Any],
        state: RegisteredState,
        table: StateTable | MapTable,
        key_group_range: KeyGroupRange,
        now_ms: Callable[[], int],
        operator: str,
    ) -> BatchState:
        """
        Return the state of a descriptor.

        :param operator: What users call the operator, for errors.
        :raises InvalidConfigurationError: for lists, maps and folded values.
        """
        if state.kind not in _KINDS:
            raise InvalidConfigurationError(
                f"Expected a value, reducing or aggregating state, found the {state.kind} state {state.name}; use it key by key."
            )
        cells = cast("StateTable", table)
        cells = cells if state.ttl is None else TtlCells(cells, TimeToLive(state.ttl, now_ms))
        default = getattr(descriptor, "default", None)
        filling = None if default is None else state.serializer.to_arrow([default])
        refused = partial(misfit, state.title, operator)
        return cls(cells, state.serializer.arrow_type, key_group_range, refused, filling)

    def get(self, keys: KeyBatch) -> Any:
        """
        Return an Arrow array of what the keys have, null where that is nothing.

        :raises InvalidConfigurationError: for a key of another subtask.
        """
        self._require_owned(keys)
        values = self._table.get_batch(keys)
        return values if self._default is None else _filled(values, self._default)

    def put(self, keys: KeyBatch, values: Any) -> None:
        """
        Set what the keys have from an Arrow array; null clears.

        :raises InvalidConfigurationError: for a key of another subtask, or another number of values than keys.
        :raises UnsupportedStateError: for values that the type of the state does not hold exactly.
        """
        self._require_owned(keys)
        if len(values) != len(keys):
            raise InvalidConfigurationError(f"Expected one value for each of {len(keys)} keys, found {len(values)}.")
        self._table.put_batch(keys, self._of_type(values))

    def _of_type(self, values: Any) -> Any:
        import pyarrow as pa

        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        try:
            return whole if whole.type == self._arrow_type else whole.cast(self._arrow_type)
        except pa.ArrowException as error:
            raise self._refused(
                UnsupportedStateError(f"Expected values of {self._arrow_type}, found {whole.type}: {error}; cast them.")
            ) from error

    def _require_owned(self, keys: KeyBatch) -> None:
        _require_ordered(keys.key_groups)
        ends = (keys.key_groups[0].as_py(), keys.key_groups[-1].as_py()) if len(keys) else ()
        foreign = [key_group for key_group in ends if key_group not in self._key_group_range]
        if foreign:
            owned = self._key_group_range
            raise InvalidConfigurationError(
                f"Expected keys of the key groups {owned.start} to {owned.end}, found one of {foreign[0]}; keys must be "
                f"partitioned as the state is."
            )


def _require_ordered(key_groups: Any) -> None:
    import pyarrow.compute as pc

    # Backends look keys up by it, and would not find what is out of order.
    follows = pc.less(key_groups.slice(1), key_groups.slice(0, max(len(key_groups) - 1, 0)))
    if pc.any(follows).as_py():
        raise InvalidConfigurationError(
            "Expected keys in the order of their key groups, found another order; sort them by key group first."
        )


def _filled(values: Any, default: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not values.null_count:
        return values
    rows = pc.if_else(pc.is_null(values), len(values), pa.array(range(len(values)), pa.int64()))
    return pa.concat_arrays([values, default]).take(rows)
