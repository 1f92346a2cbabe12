"""
Uids that the checkpointed tasks of a Dag declare, and the lookup of other Dags' tasks.

A Dag is read where it is at hand: a task reads its own, and the coordinator asks for the others where Airflow's
database is open. A uid or a job that is known only when a task runs, such as a template, may be any uid or job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_statecheck.checkpoint.ids import TEST_NAMESPACE, is_given, uid_with_key, uids_before

IDENTITY_ARGUMENTS = ("job", "uid", "map_key", "renamed_uids")
"""
Arguments of a task that decide which operators it has; each is a template field, so that a serialized Dag contains it.
"""
OTHER_JOB_ARGUMENT = "checkpoint_job"
"""Argument with the name of the job, where ``job`` is an argument of the operator that was extended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DagTasks:
    """Current checkpointed tasks of a Dag in a job."""

    exists: bool
    """Whether the Dag still exists; a Dag that is no longer in its file does not."""
    is_paused: bool = False
    uids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Current and former uids by task id, as in a registration; an empty tuple means that the uid is a template."""


class DagDirectory(Protocol):
    """Lookup of the current tasks of Dags."""

    def tasks_of(self, dag_id: str, job_name: str) -> DagTasks | None:
        """
        Return the tasks of a Dag that may be in a job, or ``None`` if they cannot be known here.

        :raises CoordinatorUnavailableError: if the database does not respond.
        """


class UnknownDags:
    """Lookup outside Airflow, where the tasks of a Dag are unknown."""

    def tasks_of(self, dag_id: str, job_name: str) -> DagTasks | None:
        """Return ``None``."""
        return None


def declared_uids(task_id: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """
    Return the current and the former uids of a task without map keys; empty if they are known only when it runs.

    :param arguments: Arguments of the task before templates are rendered, from :func:`mapped_arguments` for a mapped
        task.
    """
    uid, renamed_uids = arguments.get("uid") or task_id, arguments.get("renamed_uids") or {}
    if _is_open(uid) or not isinstance(renamed_uids, Mapping):
        return ()
    return (uid, *former_uids(uid, renamed_uids))


def former_uids(uid: str, renamed_uids: Mapping[str, str], map_key: str | None = None) -> tuple[str, ...]:
    """
    Return the former uids of an operator.

    :param uid: Current uid without a map key.
    :param renamed_uids: New uids by old uids.
    """
    of_task = tuple(uid_with_key(old, map_key) for old in uids_before(uid, renamed_uids))
    of_instance = uids_before(uid_with_key(uid, map_key), renamed_uids) if map_key else ()
    return (*of_task, *of_instance)


def job_argument(template_fields: Iterable[str]) -> str:
    """
    Return the argument of a checkpointed task that has the name of its job.

    :param template_fields: Template fields of the task, which a serialized Dag has as well.
    """
    return OTHER_JOB_ARGUMENT if OTHER_JOB_ARGUMENT in template_fields else "job"


def mapped_arguments(partial: Mapping[str, Any], expanded: object, job: str = "job") -> Mapping[str, Any]:
    """
    Return the arguments of a mapped task; one that differs between instances is not a text.

    :param expanded: Lists of values by argument, or anything else for instances with a list of arguments each.
    :param job: Argument with the name of the job, ``job`` in the result.
    """
    differing = expanded if isinstance(expanded, Mapping) else dict.fromkeys((*IDENTITY_ARGUMENTS, job), expanded)
    arguments = {**differing, **partial}
    return {**arguments, "job": arguments.get(job)}


def may_be_in_job(job: object, dag_id: str, job_name: str) -> bool:
    """
    Return whether a task may be in a job.

    :param job: Argument of the task before templates are rendered; without one, each run of its Dag has its own job.
    :param job_name: Name of the job, or of a fork of it.
    """
    name = job_name.removeprefix(TEST_NAMESPACE)
    if job is None or (isinstance(job, str) and not is_given(job)):
        return name.startswith(f"{dag_id}/")
    return _is_open(job) or name == job or name.startswith(f"{job}@")


def _is_open(value: object) -> bool:
    return not isinstance(value, str) or "{{" in value or "{%" in value
