"""Who a task is to the coordinator: never its map index, its try number or its row's id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import TEST_NAMESPACE, is_test_job, job_name, uid_with_key
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


def run_key_of(context: Mapping[str, Any]) -> str:
    """Return what names the run: its logical date where it has one, else its run id."""
    dag_run = context["dag_run"]
    logical_date = getattr(dag_run, "logical_date", None)
    return logical_date.isoformat() if logical_date is not None else str(dag_run.run_id)


def job_name_of(context: Mapping[str, Any], job: str | None, *, is_test: bool) -> str:
    """
    Return the job's name.

    :param job: The user's own name; by default state lives with the run.
    :param is_test: Whether the task runs with Airflow's database open, where it must not touch the real job.
    :raises InvalidConfigurationError: for a real job whose name is one of the jobs of test runs.
    """
    name = job or f"{context['ti'].dag_id}/{run_key_of(context)}"
    if is_test_job(name) and not is_test:
        raise InvalidConfigurationError(
            f"Expected a job whose name does not begin with {TEST_NAMESPACE!r}, found {name!r}; such jobs are those of test "
            f"runs, which are removed without being named. Give the task another job=."
        )
    return job_name(name, is_test=is_test)


def uid_of(context: Mapping[str, Any], uid: str | None, map_key: str | None) -> str:
    """
    Return the operator's uid.

    :param uid: The user's own; by default the task id.
    :param map_key: What tells the instances of a mapped task apart whatever their order is.
    :raises InvalidConfigurationError: for a mapped task without a key.
    """
    ti = context["ti"]
    if getattr(ti, "map_index", -1) >= 0 and not map_key:
        raise InvalidConfigurationError(
            f"Expected map_key for the mapped task {ti.task_id!r}, found none; give each instance a key of its content, "
            f"for its index would be another item's after the list has changed."
        )
    return uid_with_key(uid or str(ti.task_id), map_key)


def owner_of(context: Mapping[str, Any], map_key: str | None) -> AttemptOwner:
    """Return who runs this try."""
    ti, dag_run = context["ti"], context["dag_run"]
    map_index = getattr(ti, "map_index", -1)
    return AttemptOwner(
        logical_task=f"{ti.dag_id}/{ti.task_id}" + (f"[{map_key}]" if map_key else ""),
        run_key=run_key_of(context),
        run_id=str(dag_run.run_id),
        # A clear raises max_tries or, for a running task, the run's clear_number; a retry changes neither.
        clear_marker=f"{getattr(ti, 'max_tries', 0)}/{getattr(dag_run, 'clear_number', 0)}",
        label=f"task {ti.dag_id}.{ti.task_id} of run {dag_run.run_id}, try {ti.try_number}",
        airflow=(
            ("dag_id", str(ti.dag_id)),
            ("run_id", str(dag_run.run_id)),
            ("task_id", str(ti.task_id)),
            ("map_index", str(map_index)),
        ),
    )
