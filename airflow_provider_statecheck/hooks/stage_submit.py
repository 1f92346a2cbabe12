"""The hook that submits this package's own application, which runs a stage."""

from __future__ import annotations

from typing_extensions import override

from airflow_provider_statecheck.hooks.spark_submit import CheckpointedSparkSubmitHook


class CheckpointedStageSubmitHook(CheckpointedSparkSubmitHook):
    """Writes the application to where the driver finds it, and submits it."""

    @override
    def _prepare(self, application: str) -> str:
        from airflow_provider_statecheck.spark.driver.stage_application import write_stage_application

        return super()._prepare(str(write_stage_application(self._folder())))
