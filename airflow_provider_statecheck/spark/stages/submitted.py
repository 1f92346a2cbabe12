"""The stage in a driver that ``spark-submit`` starts."""

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
    """The driver was told to end while its stage was running."""


def main() -> None:
    """
    Run the stage that the first argument names.

    :raises EnvironmentNotReadyError: if no operator submitted this driver, or a package is missing.
    :raises InvalidConfigurationError: if there is no such stage.
    """
    from airflow_provider_statecheck.spark.context import begin_submitted
    from airflow_provider_statecheck.spark.driver.readiness import check_driver_packages
    from airflow_provider_statecheck.spark.driver.thread import run_interruptibly
    from airflow_provider_statecheck.spark.stages.stage_run import StageRun

    check_driver_packages()
    spark, attempt, driver = begin_submitted()
    stage = _loaded(sys.argv[1], driver.parallelism, attempt)
    signal.signal(signal.SIGTERM, _terminate)
    StageRun(spark, attempt, stage, stage_settings_of(driver)).run(functools.partial(run_interruptibly, spark))
    spark.stop()


def _loaded(place: str, parallelism: int | None, attempt: StageAttempt) -> Stage:

    try:
        return load_stage(place, parallelism=parallelism)
    except Exception as error:
        # The task that submitted this driver sees no more of it than what the attempt says.
        attempt.finish(AttemptStatus.FAILED, f"{type(error).__name__}: {error}")
        raise


def _terminate(*_: object) -> NoReturn:
    raise DriverTerminatedError("The driver was told to end; its stage is closed and a retry goes on from there.")


def load_stage(stage: str | Stage, *, parallelism: int | None = None) -> Stage:
    """
    Return a stage that can run.

    :param stage: The stage, or where it is as ``module:attribute``; a callable there is called and gives it.
    :param parallelism: Number of subtasks in place of the stage's own.
    :raises InvalidConfigurationError: if there is no stage, or its parts do not fit.
    """
    found = stage if isinstance(stage, Stage) else _made(stage)
    if parallelism is not None:
        found = replace(found, parallelism=parallelism)
    vertices_of(found)
    return found


def _made(place: object) -> Stage:
    if not isinstance(place, str):
        raise InvalidConfigurationError(
            f"Expected a Stage, or where it is as module:attribute, found {type(place).__name__}."
        )
    found = _found(place)
    made = found() if callable(found) else found
    if not isinstance(made, Stage):
        raise InvalidConfigurationError(f"Expected a Stage at {place!r}, found {type(made).__name__}.")
    return made


def _found(place: str) -> Any:
    module, _, attribute = place.partition(":")
    if not module or not attribute:
        raise InvalidConfigurationError(f"Expected where the stage is, as module:attribute, found {place!r}.")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidConfigurationError(
            f"Expected a stage at {place!r}, found none: {error}. The module has to be importable where the stage runs: "
            f"below the Dags folder, installed, or sent along with the application."
        ) from error


def stage_settings_of(driver: DriverSettings) -> StageSettings:
    """Return how a stage is run in a driver, in this process or in one that was submitted."""
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
