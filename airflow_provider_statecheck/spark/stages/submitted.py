"""
Main program of a driver that ``spark-submit`` starts for a stage.

The operator passes the location of the stage as the first argument and the attempt through the handover.
"""

from __future__ import annotations

import functools
import importlib
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.driver.handover import DriverSettings
from airflow_provider_statecheck.spark.stages.planning import vertices_of
from airflow_provider_statecheck.spark.stages.stage import Stage, StageSettings

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.attempt import StageAttempt


class DriverTerminatedError(RuntimeError):
    """The driver received SIGTERM while its stage was running."""


def main() -> None:
    """
    Run the stage at the location in the first argument.

    :raises EnvironmentNotReadyError: if no operator submitted this driver, or a package is missing.
    :raises InvalidConfigurationError: if there is no such stage.
    """
    from airflow_provider_statecheck.spark.context import begin_submitted
    from airflow_provider_statecheck.spark.driver.readiness import check_driver_packages
    from airflow_provider_statecheck.spark.driver.thread import run_interruptibly
    from airflow_provider_statecheck.spark.stages.stage_run import StageRun

    check_driver_packages()
    spark, attempt, driver = begin_submitted()
    stage = _load_or_fail(sys.argv[1], driver.parallelism, attempt)
    signal.signal(signal.SIGTERM, _terminate)
    StageRun(spark, attempt, stage, stage_settings_of(driver)).run(functools.partial(run_interruptibly, spark))
    spark.stop()


def _load_or_fail(location: str, parallelism: int | None, attempt: StageAttempt) -> Stage:
    try:
        return load_stage(location, parallelism=parallelism)
    except Exception as error:
        # The task that submitted this driver reads the error only from the attempt.
        attempt.finish(AttemptStatus.FAILED, f"{type(error).__name__}: {error}")
        raise


def _terminate(*_: object) -> NoReturn:
    raise DriverTerminatedError(
        "The driver received SIGTERM; its stage is closed, and a retry resumes after its last checkpoint."
    )


def load_stage(stage: str | Stage, *, parallelism: int | None = None) -> Stage:
    """
    Load and validate a stage.

    :param stage: The stage, or its location as ``module:attribute``; a callable at the location is called and returns
        it.
    :param parallelism: Number of subtasks, instead of the stage's own.
    :raises InvalidConfigurationError: if there is no stage, or its steps do not fit together.
    """
    found = stage if isinstance(stage, Stage) else _import_stage(stage)
    if parallelism is not None:
        found = replace(found, parallelism=parallelism)
    vertices_of(found)
    return found


def _import_stage(location: object) -> Stage:
    if not isinstance(location, str):
        raise InvalidConfigurationError(
            f"Expected a Stage, or its location as module:attribute, found {type(location).__name__}."
        )
    found = _import_attribute(location)
    stage = found() if callable(found) else found
    if not isinstance(stage, Stage):
        raise InvalidConfigurationError(f"Expected a Stage at {location!r}, found {type(stage).__name__}.")
    return stage


def _import_attribute(location: str) -> Any:
    module, _, attribute = location.partition(":")
    if not module or not attribute:
        raise InvalidConfigurationError(f"Expected the location of a stage as module:attribute, found {location!r}.")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidConfigurationError(
            f"Expected a stage at {location!r}, found none: {error}. Make the module importable where the stage runs: put it "
            "below the Dags folder, install it, or send it with the application."
        ) from error


def stage_settings_of(driver: DriverSettings) -> StageSettings:
    """Return the settings of a stage from those of its driver."""
    return StageSettings(
        logical_date=driver.logical_date,
        checkpoint_interval=driver.checkpoint_interval,
        min_pause=driver.min_pause_ms,
        renamed_uids=driver.renamed_uids,
        allow_non_restored_state=driver.allow_non_restored_state,
        data_inline_threshold=driver.data_inline_threshold,
        state_config=driver.state_config,
        storage_options=driver.storage_options,
    )
