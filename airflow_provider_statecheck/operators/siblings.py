"""The other checkpointed tasks of a Dag, which must not share an operator and whose operators are in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider_statecheck.checkpoint.ids import uid_with_key, uids_before
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


def uids_by_task(tasks: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """
    Return which uids the checkpointed tasks of a Dag have and had, by task id and without map keys.

    A task whose uid is known only when it runs has none here.

    :param tasks: All tasks of the Dag.
    """
    return {task.task_id: _uids(task.task_id, _arguments(task)) for task in tasks if _is_checkpointed(task)}


def former_uids(uid: str, renamed_uids: Mapping[str, str], map_key: str | None = None) -> tuple[str, ...]:
    """
    Return the uids that an operator had before.

    :param uid: The operator's uid without a map key.
    :param renamed_uids: New uids by old ones.
    :param map_key: What tells the instances of a mapped task apart.
    """
    of_task = tuple(uid_with_key(old, map_key) for old in uids_before(uid, renamed_uids))
    of_instance = uids_before(uid_with_key(uid, map_key), renamed_uids) if map_key else ()
    return (*of_task, *of_instance)


def _is_checkpointed(task: Any) -> bool:
    from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator

    kind = task.operator_class if isinstance(task, MappedOperator) else type(task)
    return issubclass(kind, CheckpointedOperator)


def _arguments(task: Any) -> Mapping[str, Any]:
    if not isinstance(task, MappedOperator):
        return {"uid": task.declared_uid, "renamed_uids": task.renamed_uids}
    expanded = task.expand_input.value
    # Each instance gets what it is expanded with; a list of keyword arguments may name anything.
    own = {"uid": None} if isinstance(expanded, Mapping) and "uid" not in expanded else {"uid": expanded}
    return {**own, **task.partial_kwargs}


def _uids(task_id: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    uid = arguments["uid"] or task_id
    if not isinstance(uid, str) or "{{" in uid or "{%" in uid:
        return ()
    return (uid, *former_uids(uid, arguments.get("renamed_uids") or {}))


def _identity(task: Any) -> tuple[str | None, str, str | None]:
    return task.job, task.uid or task.task_id, task.map_key
