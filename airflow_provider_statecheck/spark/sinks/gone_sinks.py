"""Output of a stage that is gone from the job: a sink that is new must not write it a second time."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.spark.sinks.names import lineage_of
from airflow_provider_statecheck.spark.sinks.sink import SinkContext


def refuse_output_of_gone(context: SinkContext, target: str, has_output: Callable[[str], bool]) -> None:
    """
    Refuse a target that holds output of the same job whose stage is gone.

    To be called for a sink that never had the target. One that had it wrote beside the other while both were in use.

    :param target: The target, fit to be shown.
    :param has_output: Tells whether the target holds committed output of a lineage.
    :raises EnvironmentNotReadyError: if it does of one that is gone.
    """
    for uid in context.gone_uids:
        if has_output(lineage_of(context.job_id, uid)):
            stage, mine = (each.rpartition("/")[0] for each in (uid, context.uid))
            raise EnvironmentNotReadyError(
                f"Expected no output in {target} of a stage that is gone from job {context.job_name!r}, found output of {stage!r}, "
                f"beside which {mine!r} would write all of it again. If {mine!r} is its new name, say "
                f"renamed_uids={{{stage!r}: {mine!r}}} or uid={stage!r}; otherwise choose another target, or give the stage a "
                "job= of its own."
            )
