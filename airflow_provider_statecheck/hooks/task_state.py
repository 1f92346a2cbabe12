"""
Marker in Airflow's task state store that tells whether a clear kept the state of a task.

Airflow 3.4 discards the entries of a task instance that a user clears, unless the user keeps its task state. Airflow
3.3, and the clears in 3.4 that offer no choice, leave them. A missing marker therefore is a choice, and one that is
there is a choice only where Airflow discards by default.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from airflow_provider_statecheck.checkpoint.records import TaskState

log = logging.getLogger(__name__)

MARKER_KEY = "statecheck.cleared"
_FIRST_WITH_CHOICE = (3, 4)


def mark_task_state(context: Mapping[str, Any], clear_marker: str) -> TaskState:
    """
    Write the marker of a try into the state store of its task, and return how the store has kept earlier ones.

    :param clear_marker: Value that changes when the task is cleared. The marker contains it, so that a try that ended
        before its registration does not hide what a clear did.
    :return: ``TaskState.UNKNOWN`` without a store, or if Airflow clears the store after each success.
    """
    store = context.get("task_state_store")
    if store is None or _is_cleared_on_success():
        return TaskState.UNKNOWN
    try:
        return _mark(store, clear_marker)
    except Exception as error:
        log.warning("The task state store is not used to find out whether a clear kept the task state: %s", error)
        return TaskState.UNKNOWN


def _mark(store: Any, clear_marker: str) -> TaskState:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    state = _state_of(store.get(MARKER_KEY), clear_marker)
    store.set(MARKER_KEY, {"cleared": clear_marker, "state": state.value}, retention=NEVER_EXPIRE)
    return state


def _state_of(found: Any, clear_marker: str) -> TaskState:
    if not isinstance(found, Mapping):
        return TaskState.DISCARDED
    known = next((state for state in TaskState if state.value == found.get("state")), None)
    if found.get("cleared") == clear_marker and known is not None:
        return known
    return TaskState.KEPT if _is_discarded_by_default() else TaskState.PRESENT


def _is_discarded_by_default() -> bool:
    try:
        numbers = version("apache-airflow-core").split(".")[:2]
    except PackageNotFoundError:
        return False
    return tuple(map(int, numbers)) >= _FIRST_WITH_CHOICE


def _is_cleared_on_success() -> bool:
    from airflow.sdk.configuration import conf

    return bool(conf.getboolean("state_store", "clear_on_success", fallback=False))
