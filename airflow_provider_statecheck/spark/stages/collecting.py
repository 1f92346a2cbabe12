"""Collection of what the jobs of a stage return, with errors that name their cause."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.driver.session import TaggedJobs
from airflow_provider_statecheck.spark.job_failures import task_errors_raised
from airflow_provider_statecheck.spark.snapshots.dataframes import explained
from airflow_provider_statecheck.spark.stage_costs import disk_failures_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def collected(jobs: TaggedJobs, frame: DataFrame, uri: str) -> list[Any]:
    """
    Run a job of a stage and return its rows, with errors that name their cause.

    :param uri: Directory of the checkpoints.
    """
    with disk_failures_named(uri), task_errors_raised(), explained(uri):
        return jobs.collect(frame)


def result_of(job: Future[list[Any]], uri: str) -> list[Any]:
    """
    Return the rows of a submitted job as :func:`collected` does.

    :param uri: Directory of the checkpoints.
    """
    with disk_failures_named(uri), task_errors_raised(), explained(uri):
        return job.result()


def read_in_turn(jobs: TaggedJobs, frame: DataFrame, uri: str) -> Iterator[Any]:
    """
    Yield rows as :func:`collected` returns them, partition by partition, so that a caller may end early.

    :param uri: Directory of the checkpoints.
    """
    with disk_failures_named(uri), task_errors_raised(), explained(uri):
        yield from jobs.each(frame)
