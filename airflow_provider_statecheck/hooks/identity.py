"""Identity of a task for the coordinator: its run, its job, and the owner of its attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import (
    TEST_NAMESPACE,
    is_given,
    is_test_job,
    job_id_of,
    job_name,
    require_not_missing,
    run_key,
)
from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, TaskCoordinates, Transport
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks.transport import is_orm_open


def run_key_of(context: Mapping[str, Any]) -> str:
    """Return the key of the run: its logical date, else the key of its partition, else its run id."""
    dag_run = context["dag_run"]
    logical_date, partition_key = (getattr(dag_run, name, None) for name in ("logical_date", "partition_key"))
    return run_key(logical_date, partition_key, str(dag_run.run_id))


def run_job_of(context: Mapping[str, Any]) -> str:
    """Return the name of the job of a run, without the prefix of test runs."""
    return f"{context['ti'].dag_id}/{run_key_of(context)}"


def job_name_of(context: Mapping[str, Any], job: str | None, *, is_test: bool) -> str:
    """
    Return the name of the job.

    :param job: Explicit name; by default each run has its own job.
    :param is_test: Whether this is a test run, which uses a separate job.
    :raises InvalidConfigurationError: if the name is invalid, or that of a real job starts with the prefix of test
        jobs.
    """
    require_not_missing("job", job)
    name = job if is_given(job) else run_job_of(context)
    job_id_of(name)  # rejects other values than texts before the prefix of test runs is added
    if is_test_job(name) and not is_test:
        raise InvalidConfigurationError(
            f"Expected a job name without the prefix {TEST_NAMESPACE!r}, found {name!r}; jobs with this prefix belong "
            "to test runs and are pruned automatically. Use another job=."
        )
    return job_name(name, is_test=is_test)


def owner_of(context: Mapping[str, Any], map_key: str | None) -> AttemptOwner:
    """Return the owner of the attempt for this try."""
    ti, dag_run = context["ti"], context["dag_run"]
    map_index = getattr(ti, "map_index", -1)
    is_of_partition = getattr(dag_run, "logical_date", None) is None and bool(getattr(dag_run, "partition_key", None))
    partition_date = getattr(dag_run, "partition_date", None) if is_of_partition else None
    return AttemptOwner(
        logical_task=f"{ti.dag_id}/{ti.task_id}" + (f"[{map_key}]" if map_key else ""),
        run_key=run_key_of(context),
        run_id=str(dag_run.run_id),
        # A clear increments max_tries or, for a running task, clear_number of the run; a retry changes neither.
        clear_marker=f"{getattr(ti, 'max_tries', 0)}/{getattr(dag_run, 'clear_number', 0)}",
        label=masked(f"task {ti.dag_id}.{ti.task_id} of run {dag_run.run_id}, try {ti.try_number}"),
        airflow=TaskCoordinates(str(ti.dag_id), str(dag_run.run_id), str(ti.task_id), map_index).pairs,
        ti_id=str(getattr(ti, "id", None) or ""),
        is_of_partition=is_of_partition,
        partition_date="" if partition_date is None else partition_date.isoformat(),
        try_number=int(ti.try_number),
        transport=Transport.IN_PROCESS if is_orm_open() else Transport.HTTP,
    )
