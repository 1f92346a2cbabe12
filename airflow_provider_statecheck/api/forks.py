"""
Forks of jobs: runs of a Dag that start from a checkpoint.

A user chooses the checkpoint on its page, and the api-server starts a run of the Dag. The param that the task uses as
``from_checkpoint`` is set to the pointer of the checkpoint; the user may change the others. The run and the row of the
request are committed together, so a repeated request starts no second run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.configuration import conf
from airflow.exceptions import DagNotFound, DagRunAlreadyExists
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_provider_statecheck.api.airflow_access import PermittedDags
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.maintenance.action_previews import ActionPreview
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.actions import RequestedAction
from airflow_provider_statecheck.maintenance.rewind import ForkPoint, fork_point, require_fork_point
from airflow_provider_statecheck.metadata.unit_of_work import committing, executing

_PARAM = re.compile(r"""\bparams(?:\.get\(\s*['"](\w+)['"]|\[\s*['"](\w+)['"]\s*\]|\.(\w+)(?!\w|\())""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkingTask:
    """A task in the newest version of its Dag, as far as forks depend on it."""

    from_checkpoint: str
    """Template of the argument; empty without one."""
    fork: str
    """Template of the name of the fork; empty for one named after the run."""
    params: Mapping[str, Any]
    """Default values of the params of the Dag."""
    is_paused: bool = False
    has_import_errors: bool = False

    @property
    def param(self) -> str | None:
        """The param that names the checkpoint; ``None`` if the task takes it from no param, or from several."""
        return param_of(self.from_checkpoint, self.params)


def forking_task(dag_id: str, task_id: str) -> ForkingTask | None:
    """
    Return a task in the newest version of its Dag, also if the Dag has no such task.

    ``None`` if the Dag was removed.
    """
    with executing(), create_session(scoped=False) as session:
        model = session.get(DagModel, dag_id)
        dag = None if model is None else DBDagBag().get_latest_version_of_dag(dag_id, session=session)
        if model is None or model.is_stale or dag is None:
            return None
        task = dag.get_task(task_id) if dag.has_task(task_id) else None
        return ForkingTask(
            from_checkpoint=str(getattr(task, "from_checkpoint", None) or ""),
            fork=str(getattr(task, "fork", None) or ""),
            params=dict(dag.params.dump()),
            is_paused=model.is_paused,
            has_import_errors=bool(model.has_import_errors),
        )


def param_of(template: str, params: Collection[str]) -> str | None:
    """Return the only param that a template uses; ``None`` if it uses none or several, or the Dag does not have it."""
    names = {name for found in _PARAM.findall(template) for name in found if name}
    return names.pop() if len(names) == 1 and names <= {*params} else None


def require_forkable(view: JobView, wanted: UserAction, user: BaseUser) -> None:
    """
    Require a user who may read and create runs of the Dag of a fork.

    The preview, and not this check, refuses a checkpoint that no run can fork from.

    :raises AccessDeniedError: if the user may not.
    """
    checkpoint = view.checkpoint(wanted.checkpoint_id)
    point = None if checkpoint is None else fork_point(view, checkpoint)
    if point is not None:
        for runs in _permissions(user):
            runs.require(point.dag_id)


def may_fork(point: ForkPoint, user: BaseUser) -> bool:
    """Return whether a user may read and create runs of the Dag of a fork."""
    return all(runs.among((point.dag_id,)) for runs in _permissions(user))


def _permissions(user: BaseUser) -> tuple[PermittedDags, PermittedDags]:
    # The preview shows the params of an earlier run.
    return PermittedDags(user, "GET", DagAccessEntity.RUN), PermittedDags(user, "POST", DagAccessEntity.RUN)


def preview_fork(services: Services, wanted: UserAction) -> ActionPreview:
    """
    Return the effect of a fork without changing anything, with the params of its run.

    :raises InvalidConfigurationError: if the Dag was removed, the task takes the checkpoint from no param, or Airflow
        ignores params.
    :raises CheckpointNotFoundError: as ``JobActions.preview``.
    :raises NoRestorableCheckpointError: as ``JobActions.preview``.
    """
    shown = services.actions.preview(wanted)
    _, point = require_fork_point(services.coordinator.describe(wanted.job_id), wanted)
    task, param = _required(point)
    conf = conf_of_run(point)
    return replace(shown, params=_params(task, param, conf), notes=(*shown.notes, *_notes(point, task, conf)))


def request_fork(services: Services, wanted: UserAction, params: Mapping[str, Any] | None) -> RequestedAction:
    """
    Start the run of a fork; a repeated key returns the first request.

    :param params: Params of the run without the one that names the checkpoint, or ``None`` for those of the preview.
    :raises InvalidConfigurationError: if the Dag does not accept the params, or manual runs.
    """
    with executing(), create_session(scoped=False) as session:
        actions = services.actions_in(session.connection())
        accepted = actions.fork(wanted, lambda point: _start(session, point, wanted, params))
        with committing():
            session.commit()
    return accepted


def _required(point: ForkPoint) -> tuple[ForkingTask, str]:
    task = forking_task(point.dag_id, point.task_id)
    if task is None or task.param is None:
        found = "that the Dag was removed" if task is None else "none or several"
        raise InvalidConfigurationError(
            f"Expected task {point.task_id!r} of Dag {point.dag_id!r} to take from_checkpoint from one param, found "
            f"{found}; add a param to the Dag and from_checkpoint to the task, as the page of the checkpoint shows."
        )
    if task.has_import_errors:
        raise InvalidConfigurationError(
            f"Expected Dag {point.dag_id!r} without import errors, found some; correct its file first."
        )
    if not conf.getboolean("core", "dag_run_conf_overrides_params"):
        raise InvalidConfigurationError(
            "Expected [core] dag_run_conf_overrides_params to be on, found it off, so that the run would work on the "
            "job itself; turn it on."
        )
    return task, task.param


def conf_of_run(point: ForkPoint) -> dict[str, Any] | None:
    """Return the conf of the run that a fork starts from, ``None`` if the run is not known or was deleted."""
    if point.run_id is None:
        return None
    of_run = select(DagRun.conf).where(DagRun.dag_id == point.dag_id, DagRun.run_id == point.run_id)
    with executing(), create_session(scoped=False) as session:
        row = session.execute(of_run).one_or_none()
        return None if row is None else dict(row.conf or {})


def _params(task: ForkingTask, param: str, conf: Mapping[str, Any] | None) -> dict[str, Any]:
    merged = {**task.params, **(conf or {})}
    return {name: value for name, value in merged.items() if name != param}


def _notes(point: ForkPoint, task: ForkingTask, conf: Mapping[str, Any] | None) -> Iterator[str]:
    if task.is_paused:
        yield f"Dag {point.dag_id!r} is paused: the run stays queued until the Dag is unpaused."
    yield f"All tasks of Dag {point.dag_id!r} run, without a logical date."
    if task.fork:
        yield f"The fork is named {task.fork!r}. If a job of this name has checkpoints, the run resumes them instead."
    if conf is None:
        yield "The run that took the checkpoint is not known any more, so the params are the defaults of the Dag."


def _start(session: Session, point: ForkPoint, wanted: UserAction, params: Mapping[str, Any] | None) -> str:
    task, param = _required(point)
    if params is not None and param in params:
        raise InvalidConfigurationError(
            f"Expected params without {param!r}, which the fork sets to the pointer of the checkpoint, found it; leave "
            "it out."
        )
    others = _params(task, param, conf_of_run(point)) if params is None else params
    run_id = f"fork__{wanted.request_key}"
    try:
        trigger_dag(
            point.dag_id,
            run_id=run_id,
            conf={**others, param: point.checkpoint.location},
            triggered_by=DagRunTriggeredByType.UI,
            triggering_user_name=wanted.requested_by,
            session=session,
        )
    except (DagNotFound, DagRunAlreadyExists, ValueError) as error:
        raise _not_started(point, error) from error
    return run_id


def _not_started(point: ForkPoint, error: Exception) -> InvalidConfigurationError:
    # The validation of a param adds its whole schema after the first line.
    reason = str(error).partition("\n")[0]
    return InvalidConfigurationError(
        f"Expected Dag {point.dag_id!r} to accept a manual run with these params, found: {reason}; no run was started, "
        "correct this and confirm again."
    )
