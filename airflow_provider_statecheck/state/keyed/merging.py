"""Which states can be merged."""

from __future__ import annotations

from typing import cast

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.keyed.states.aggregating_state import AggregatingState
from airflow_provider_statecheck.state.keyed.states.list_state import ListState
from airflow_provider_statecheck.state.keyed.states.reducing_state import ReducingState
from airflow_provider_statecheck.state.keyed.states.state import MergeableState, State


def require_mergeable(state: State) -> MergeableState:
    """
    Return a state whose namespaces can be merged.

    :raises InvalidConfigurationError: for one of another kind.
    """
    if not isinstance(state, ListState | ReducingState | AggregatingState):
        raise InvalidConfigurationError(
            f"Expected a list, reducing or aggregating state, found {type(state).__name__}; others cannot be merged."
        )
    return cast("MergeableState", state)
