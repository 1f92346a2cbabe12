"""Leaving out what is expired when a whole state is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.list_columns import lists_of

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState


def unexpired(state: RegisteredState, cells: Any, now_ms: int) -> tuple[Any, Any]:
    """
    Return the cells of a state with a time to live without their expired elements, and which of the cells are kept.

    :param cells: An Arrow array.
    :param now_ms: The time.
    :return: An Arrow array of the same length, and one of truth values.
    """
    import pyarrow.compute as pc

    assert state.ttl is not None  # noqa: S101 - for the type checker
    oldest = now_ms - state.ttl.ttl_ms
    if state.kind is not StateKind.LIST:
        return cells, pc.greater(pc.struct_field(cells, "last_access_ms"), oldest)
    elements = cells.flatten()
    live = pc.greater(pc.struct_field(elements, "last_access_ms"), oldest)
    parents = pc.list_parent_indices(cells)
    lists = lists_of(elements.filter(live), parents.filter(live), len(cells)).cast(cells.type)
    return lists, pc.greater(pc.list_value_length(lists), 0)
