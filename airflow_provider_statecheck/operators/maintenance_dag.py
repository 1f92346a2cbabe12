"""
Maintenance Dag for the checkpoints of all jobs.

To add it, create a file in the Dags folder::

    from airflow_provider_statecheck.operators.maintenance_dag import statecheck_maintenance

    statecheck_maintenance()
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

_SUNDAY = 6
_DOC = """
Maintain the checkpoints of all jobs.

* `collect` deletes the files of ended checkpoints every day.
* `prune` deletes rows, jobs of test runs and jobs of ended runs that are older than a month, every day.
* `verify` reads the retained checkpoints of all jobs on Sundays, and fails if one of them cannot be restored.

The tasks run one after the other, independent of each other's result. They call the coordinator over HTTP, which accepts
maintenance calls from the Dags in `[statecheck] maintenance_dags`.
"""


@dag(
    dag_id="statecheck_maintenance",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    max_active_tasks=1,
    is_paused_upon_creation=True,
    doc_md=_DOC,
    tags=["statecheck"],
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
)
def statecheck_maintenance() -> None:
    """Collect and prune every day, verify on Sundays."""

    @task
    def collect() -> int:
        from airflow_provider_statecheck.operators.maintenance_tasks import collect_all

        return collect_all()

    @task
    def prune() -> int:
        from airflow_provider_statecheck.operators.maintenance_tasks import prune_all

        return prune_all()

    @task
    def verify() -> int:
        from airflow_provider_statecheck.operators.maintenance_tasks import verify_all

        if get_current_context()["dag_run"].run_after.weekday() != _SUNDAY:
            raise AirflowSkipException("Checkpoints are verified on Sundays.")
        return verify_all()

    # Without dependencies, a failed task does not stop the others, and the run still fails.
    collect()
    prune()
    verify()
