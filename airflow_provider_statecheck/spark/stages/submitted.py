"""What the driver runs that ``CheckpointedStageSubmitOperator`` submits: it takes the handover and runs the stage."""

from __future__ import annotations

import functools
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_statecheck.checkpoint.records import AttemptStatus

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.attempt import StageAttempt
    from airflow_provider_statecheck.spark.stages.stage import Stage


class DriverTerminatedError(RuntimeError):
    """The driver was told to end while its stage was running."""


def main() -> None:
    """
    Run the stage that the first argument names.

    :raises EnvironmentNotReadyError: if no operator submitted this driver, or a package is missing.
    :raises InvalidConfigurationError: if there is no such stage.
    """
    from airflow_provider_statecheck.spark.current import begin_submitted
    from airflow_provider_statecheck.spark.driver.requirements import check_driver_packages
    from airflow_provider_statecheck.spark.driver.thread import run_interruptibly
    from airflow_provider_statecheck.spark.stages.settings_of_driver import stage_settings_of
    from airflow_provider_statecheck.spark.stages.stage_run import StageRun

    check_driver_packages()
    spark, attempt, driver = begin_submitted()
    stage = _loaded(sys.argv[1], driver.parallelism, attempt)
    signal.signal(signal.SIGTERM, _terminate)
    StageRun(spark, attempt, stage, stage_settings_of(driver)).run(functools.partial(run_interruptibly, spark))
    spark.stop()


def _loaded(place: str, parallelism: int | None, attempt: StageAttempt) -> Stage:
    from airflow_provider_statecheck.spark.stages.loading import load_stage

    try:
        return load_stage(place, parallelism=parallelism)
    except Exception as error:
        # The task that submitted this driver sees no more of it than what the attempt says.
        attempt.finish(AttemptStatus.FAILED, f"{type(error).__name__}: {error}")
        raise


def _terminate(*_: object) -> NoReturn:
    raise DriverTerminatedError("The driver was told to end; its stage is closed and a retry goes on from there.")
