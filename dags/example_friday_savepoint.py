"""
Take a savepoint of a whole job every Friday evening.

It holds one consistent checkpoint of each stage of the job `customer_balances`, whose stage `example_running_balances`
runs each day. `airflow statecheck restore customer_balances --from <pointer>` puts the job back to it; the pointer is
the result of the task. Add the id of this Dag to `[statecheck] maintenance_dags`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task

SAVEPOINTS = "data/savepoints"


# [START howto_job_savepoint]
@dag(
    schedule="0 18 * * 5",
    is_paused_upon_creation=True,
    start_date=datetime(1992, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_friday_savepoint() -> None:
    @task(retries=2, retry_delay=timedelta(minutes=5))
    def savepoint() -> str:
        from airflow_provider_statecheck.hooks.statecheck import StatecheckHook

        return StatecheckHook().savepoint("customer_balances", target=SAVEPOINTS)

    savepoint()


# [END howto_job_savepoint]

example_friday_savepoint()
