"""
The Dag that keeps the checkpoints of all jobs in order, ready to be put among one's own.

A file in the Dags folder gives it to Airflow::

    from airflow_provider_statecheck.operators.maintenance_dag import statecheck_maintenance

    statecheck_maintenance()
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

_SUNDAY = 6
_DOC = """
Keep the checkpoints of all jobs in order.

Once a day `collect` deletes the bytes of ended checkpoints that their drivers left, and `prune` forgets what ended a month
ago: rows, jobs of test runs, and jobs that were named after a run which is over.
On Sundays `verify` reads the retained checkpoints of all jobs and fails if one of them could not be restored.

The three run one after the other, and one that fails stops none of the others. They reach the coordinator over HTTP,
as all tasks do; it lets those of the Dags do so that `[statecheck] maintenance_dags` names.
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
    """Collect and prune once a day, verify on Sundays."""

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

    # No chain: each does its work whatever became of the others, and the run fails if any of them did.
    collect()
    prune()
    verify()
