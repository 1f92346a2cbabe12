"""How a user forks a job at a checkpoint: the param of the Dag that names the fork point."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from airflow.models.dagbag import DBDagBag
from airflow.utils.session import create_session

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.retention import is_named_after_run
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.metadata.database import executing

_PARAM = re.compile(r"""\bparams(?:\.get\(\s*['"](\w+)['"]|\[\s*['"](\w+)['"]\s*\]|\.(\w+)(?!\w|\())""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """A checkpoint that a run may fork from."""

    dag_id: str
    task_id: str
    param: str | None
    """Param of the Dag that names the checkpoint; ``None`` if the task takes it from no param, or from several."""


def fork_point(view: JobView, checkpoint: CheckpointRecord) -> ForkPoint | None:
    """Return how to fork a job at a checkpoint; ``None`` if no run can."""
    is_kept = checkpoint.status is CheckpointStatus.COMPLETED and checkpoint.unusable_reason is None
    attempts = [a for a in view.attempts if a.operator_id == checkpoint.operator_id]
    if not is_kept or not attempts or not attempts[-1].owner.airflow:
        return None
    owner = attempts[-1].owner
    # A job that is named after its run has no state from earlier runs to fork.
    if is_named_after_run(view.job.name, owner):
        return None
    task = dict(owner.airflow)
    dag_id, task_id = task.get("dag_id", ""), task.get("task_id", "")
    found = from_checkpoint_of(dag_id, task_id)
    return None if found is None else ForkPoint(dag_id=dag_id, task_id=task_id, param=param_of(*found))


def from_checkpoint_of(dag_id: str, task_id: str) -> tuple[str, frozenset[str]] | None:
    """
    Return the argument ``from_checkpoint`` of a task in the newest version of its Dag, and the params of the Dag.

    The argument is empty if the task has none.

    :return: ``None`` if the Dag was removed.
    """
    with executing(), create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
        if dag is None:
            return None
        task = dag.get_task(task_id) if dag.has_task(task_id) else None
        return str(getattr(task, "from_checkpoint", None) or ""), frozenset(dag.params)


def param_of(template: str, params: Collection[str]) -> str | None:
    """Return the only param that a template uses; ``None`` if it uses none or several, or the Dag does not have it."""
    names = {name for found in _PARAM.findall(template) for name in found if name}
    return names.pop() if len(names) == 1 and names <= {*params} else None
