"""Whether restored keyed state fits the number of key groups of an operator."""

from __future__ import annotations

import logging

from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.checkpoint.states.restore_target import RestoreTarget
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError

log = logging.getLogger(__name__)


def restored_max_parallelism(state: OperatorState, target: RestoreTarget) -> int:
    """
    Return the number of key groups with which an operator goes on: that of its state.

    :raises IncompatibleCheckpointError: if it runs on more subtasks than its state has key groups, or was set to another
        number of them.
    """
    restored = state.max_parallelism
    if restored < target.parallelism:
        raise _incompatible(
            state, target, f"parallelism={target.parallelism}", f"set parallelism to at most {restored}"
        )
    if restored != target.max_parallelism and target.is_max_parallelism_configured:
        raise _incompatible(
            state, target, f"max_parallelism={target.max_parallelism}, which cannot be changed", f"set it to {restored}"
        )
    if restored != target.max_parallelism:
        log.info("Operator %r keeps max_parallelism=%s of its restored state", target.uid or target.name, restored)
    return restored


def _incompatible(state: OperatorState, target: RestoreTarget, asked: str, remedy: str) -> IncompatibleCheckpointError:
    return IncompatibleCheckpointError(
        f"The state of operator {target.uid or target.name or target.operator_id!r} was written with "
        f"max_parallelism={state.max_parallelism}, the job asks for {asked}; {remedy}.",
        operator_id=target.operator_id,
        max_parallelism=state.max_parallelism,
    )
