"""The keyed state store of a subtask, or a clear word where there are no keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_statecheck.exceptions import CoordinatorError

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.keyed_state_store import KeyedStateStore


def require_keyed(store: KeyedStateStore | None) -> KeyedStateStore:
    """
    Return the keyed state store.

    :raises CoordinatorError: for an operator that has no keys.
    """
    if store is None:
        raise CoordinatorError(
            "Expected an operator with keys, found one without; put key_by before it, or use operator state."
        )
    return store
