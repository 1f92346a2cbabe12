"""The settings of a stage as an operator gives them to its driver."""

from __future__ import annotations

from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.stage_settings import StageSettings


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
