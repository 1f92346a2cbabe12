"""Two tasks of one Dag that would take each other's state are refused before either starts."""

from __future__ import annotations

from typing import Any, Protocol

from airflow_provider_statecheck.exceptions import InvalidConfigurationError


class CheckpointedTask(Protocol):
    """What of a task decides whose state it has, before templates are rendered."""

    task_id: str
    job: str | None
    uid: str | None
    map_key: str | None


def refuse_shared_uid(task: CheckpointedTask, tasks: list[Any], kind: type[Any]) -> None:
    """
    Compare a task with the others of its Dag.

    :param task: The task as the Dag has it.
    :param tasks: All tasks of the Dag.
    :param kind: The class of tasks that keep state.
    :raises InvalidConfigurationError: if another one has the same job, uid and map key.
    """
    for other in tasks:
        if isinstance(other, kind) and other.task_id != task.task_id and _identity(other) == _identity(task):
            job = task.job or "of the run"
            raise InvalidConfigurationError(
                f"Expected every task of a job to have a uid of its own, found {_identity(task)[1]!r} at both "
                f"{task.task_id!r} and {other.task_id!r} in the job {job!r}; give one of them another uid."
            )


def _identity(task: Any) -> tuple[str | None, str, str | None]:
    return task.job, task.uid or task.task_id, task.map_key
