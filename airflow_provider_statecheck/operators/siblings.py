"""Two tasks of one Dag that would take each other's state are refused before either starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError


def refuse_shared_uid(task_id: str, tasks: Sequence[Any]) -> None:
    """
    Compare a task with the others of its Dag, by their arguments before templates are rendered.

    :param task_id: The task that starts.
    :param tasks: All tasks of the Dag.
    :raises InvalidConfigurationError: if another one has the same job, uid and map key.
    """
    from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator

    identities = {task.task_id: _identity(task) for task in tasks if isinstance(task, CheckpointedOperator)}
    mine = identities.get(task_id)
    for other_id, identity in identities.items():
        if mine is not None and other_id != task_id and identity == mine:
            raise InvalidConfigurationError(
                f"Expected every task of a job to have a uid of its own, found {mine[1]!r} at both {task_id!r} and "
                f"{other_id!r} in the job {mine[0] or 'of the run'!r}; give one of them another uid."
            )


def _identity(task: Any) -> tuple[str | None, str, str | None]:
    return task.job, task.uid or task.task_id, task.map_key
