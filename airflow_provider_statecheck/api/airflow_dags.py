"""
Current tasks of Dags in Airflow's database.

The coordinator asks for the tasks of another Dag to find out whether it still has an operator of the job. The answer is
read from the rows of the Dag and from its newest serialized version; no Dag file is parsed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.declared_uids import (
    IDENTITY_ARGUMENTS,
    DagTasks,
    declared_uids,
    job_argument,
    mapped_arguments,
    may_be_in_job,
)
from airflow_provider_statecheck.metadata.unit_of_work import executing

if TYPE_CHECKING:
    from airflow.models.dag import DagModel
    from airflow.models.serialized_dag import SerializedDagModel
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

# Airflow records the Dags of a file one after the other, each in much less than this time.
_TIME_PER_DAG = timedelta(seconds=1)


class AirflowDags:
    """
    Current tasks of Dags by their rows in Airflow's database; needs access to the ORM.

    :param has_files: Whether this process has the Dag files. Where ``dag.test()`` runs, no Dag processor marks Dags
        whose file was deleted.
    """

    def __init__(self, *, has_files: bool = False) -> None:
        self._has_files = has_files

    def tasks_of(self, dag_id: str, job_name: str) -> DagTasks | None:
        """Return the tasks of the newest version of a Dag that may be in a job."""
        from airflow.models.dag import DagModel
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.utils.session import create_session

        with executing(), create_session() as session:
            model = session.get(DagModel, dag_id)
            if model is None or model.is_stale or _is_left_out(session, model):
                return DagTasks(exists=False)
            row = SerializedDagModel.get(dag_id, session=session)
            if row is None or (self._has_files and _is_file_gone(model.fileloc or "", model.relative_fileloc or "")):
                return DagTasks(exists=False)
            return _tasks_in(row, job_name, is_paused=bool(model.is_paused))


def _is_left_out(session: Session, model: DagModel) -> bool:
    """
    Return whether the file of a Dag was parsed without the Dag.

    Airflow marks it as stale only about a minute later.
    """
    from airflow.models.dag import DagModel
    from sqlalchemy import func, select

    if model.last_parsed_time is None or model.relative_fileloc is None:
        return False
    in_file = (
        DagModel.bundle_name == model.bundle_name,
        DagModel.relative_fileloc == model.relative_fileloc,
        ~DagModel.is_stale,
    )
    newest, count = session.execute(select(func.max(DagModel.last_parsed_time), func.count()).where(*in_file)).one()
    return newest is not None and newest - model.last_parsed_time > count * _TIME_PER_DAG


def _is_file_gone(path: str, relative: str) -> bool:
    if not relative or not path.endswith(relative):
        return False
    root, file = Path(path.removesuffix(relative)), Path(path)
    # A Dag in an archive is below a file. Without its folder, this machine does not have the bundle.
    return root.is_dir() and not any(each.is_file() for each in (file, *file.parents))


def _tasks_in(row: SerializedDagModel, job_name: str, *, is_paused: bool) -> DagTasks | None:
    try:
        tasks = row.dag.tasks
    except Exception as error:
        # Plugins that the Dag needs may be missing here.
        log.warning("Could not read the tasks of Dag %s: %s", row.dag_id, error)
        return None
    declared = ((task.task_id, _arguments(task)) for task in tasks if _is_checkpointed(task))
    in_job = ((task, a) for task, a in declared if may_be_in_job(a.get("job"), row.dag_id, job_name))
    return DagTasks(exists=True, is_paused=is_paused, uids={task: declared_uids(task, a) for task, a in in_job})


def _is_checkpointed(task: Any) -> bool:
    # A serialized task does not name the classes of its operator. No other operator has these template fields.
    return set(IDENTITY_ARGUMENTS) <= set(task.template_fields)


def _arguments(task: Any) -> Mapping[str, Any]:
    job = job_argument(task.template_fields)
    if not task.is_mapped:
        return {name: getattr(task, job if name == "job" else name, None) for name in IDENTITY_ARGUMENTS}
    expanded = getattr(task, "expand_input", None)
    return mapped_arguments(task.partial_kwargs, {} if expanded is None else expanded.value, job)
