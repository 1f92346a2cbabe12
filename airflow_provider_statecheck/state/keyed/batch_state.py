"""A state of single values for many keys at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.state_values import misfit
from airflow_provider_statecheck.state.keyed.tables import StateTable
from airflow_provider_statecheck.state.keyed.time_to_live import TimeToLive
from airflow_provider_statecheck.state.keyed.ttl_cells import TtlCells

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
    from airflow_provider_statecheck.state.descriptors import StateDescriptor
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.keyed.tables import MapTable
    from airflow_provider_statecheck.state.keys.key_batch import KeyBatch

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
