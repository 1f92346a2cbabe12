"""
Choose on Airflow's trigger form where a run starts, and what it leaves behind.

Each run adds the delays of some months to the totals of every route. By default it continues from the newest checkpoint
of the job `route_delays`. The form also offers a copy of the state at an earlier checkpoint, and a start without state;
neither changes the state of `route_delays`. An entry that names no checkpoint fails the run before Spark starts.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context

# [START howto_trigger_form]
from airflow_provider_statecheck import CheckpointedStageOperator, Count, DataFrameSource, Max, ParquetSink, Stage, Sum

FLIGHTS = "data/flights/flights.csv"
RESTORE_FROM = """\
- **latest** continues from the newest checkpoint.
- **nothing** starts without state.
- **12** starts from a copy of checkpoint 12.
- **run:2013-01-01T00:00:00+00:00** starts from a copy of the last checkpoint of that run.
- **before:2013-02-01T00:00:00+00:00** starts from a copy of the last checkpoint before that run.
- **s3://…/savepoint-1a2b3c-4d5e6f708192** starts from a copy of that checkpoint or savepoint.
"""
PARAMS = {
    "first_month": Param(1, type="integer", minimum=1, maximum=12, title="First month"),
    "last_month": Param(12, type="integer", minimum=1, maximum=12, title="Last month"),
    "restore_from": Param(
        "latest",
        type="string",
        pattern="^(latest|nothing|[0-9]+|(run|before):.+|.*/.+)$",
        examples=["latest", "nothing", "run:2013-01-01T00:00:00+00:00", "before:2013-02-01T00:00:00+00:00", "12"],
        title="Restore from",
        # Unlike the description, it is part of the message with which Airflow refuses another entry.
        description_md=RESTORE_FROM,
    ),
    "output": Param(
        "data/route_delays",
        type="string",
        title="Output folder",
        description="Choose another folder unless the run continues from latest.",
    ),
    "checkpoint_interval": Param(
        None,
        type=["null", "string"],
        title="Checkpoint interval",
        description="A duration such as 5 min, or auto. The default is the configured interval, or else each month.",
    ),
    "savepoint_at_end": Param(
        False,
        type="boolean",
        title="Take a savepoint at the end",
        description="Needs [statecheck] savepoint_dir.",
    ),
}


def months_of_the_run() -> list[int]:
    params = get_current_context()["params"]
    return list(range(params["first_month"], params["last_month"] + 1))


def flights(spark: Any, month: int) -> Any:
    year = spark.read.csv(FLIGHTS, header=True, inferSchema=True, nullValue="NA")
    return year.where(f"month = {month} and arr_delay is not null")


def stage() -> Stage:
    return (
        Stage("route_delays", max_parallelism=128)
        .source(DataFrameSource(months_of_the_run, flights))
        .key_by("origin", "dest")
        .aggregate(month=Max("month"), flights=Count(), delay=Sum("arr_delay"), emit="changes")
        .sink(ParquetSink(get_current_context()["params"]["output"]))
    )


@dag(
    schedule=None,
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["example", "statecheck"],
    params=PARAMS,
)
def example_trigger_form() -> None:
    CheckpointedStageOperator(
        task_id="route_delays",
        stage="example_trigger_form:stage",
        job="route_delays{{ '/' ~ run_id if params.restore_from == 'nothing' else '' }}",
        from_checkpoint="{{ '' if params.restore_from in ('latest', 'nothing') else params.restore_from }}",
        checkpoint_interval="{{ params.checkpoint_interval or '' }}",
        savepoint_at_end="{{ params.savepoint_at_end }}",
        retries=2,
        retry_delay=timedelta(seconds=1),
    )


# [END howto_trigger_form]

example_trigger_form()
