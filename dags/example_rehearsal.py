"""
Rehearse a month on a copy of the state.

Use this Dag to test new code or corrected flights before you change `example_backfill_year`. It computes a month in a
separate job, from the state before that month, and writes to a separate folder. The state and the output of the other
Dag do not change.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag

# [START howto_fork]
from airflow_provider_statecheck import CheckpointedStageOperator, ParquetSink, Stage

REHEARSAL = "data/rehearsal"


def rehearsed() -> Stage:
    from example_backfill_year import stage

    return replace(stage, output=ParquetSink(REHEARSAL))


@dag(
    schedule=None,
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_rehearsal() -> None:
    CheckpointedStageOperator(
        task_id="hours",
        stage="example_rehearsal:rehearsed",
        job="hours_flown",
        from_checkpoint="before:{{ (logical_date or data_interval_end or run_after).isoformat() }}",
        retries=2,
        retry_delay=timedelta(seconds=1),
    )


# [END howto_fork]

example_rehearsal()
