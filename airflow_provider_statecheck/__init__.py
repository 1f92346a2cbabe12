"""Checkpointed batch pipelines for Apache Airflow: a failed Spark task goes on from its last completed checkpoint."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_statecheck.hooks.statecheck import StatecheckHook as StatecheckHook
    from airflow_provider_statecheck.operators.pyspark import (
        CheckpointedPySparkOperator as CheckpointedPySparkOperator,
    )
    from airflow_provider_statecheck.operators.spark_submit import (
        CheckpointedSparkSubmitOperator as CheckpointedSparkSubmitOperator,
    )
    from airflow_provider_statecheck.sensors.checkpoint import CheckpointSensor as CheckpointSensor
    from airflow_provider_statecheck.spark.context import StageContext as StageContext

__version__ = "0.1.0"

_PUBLIC = {
    "CheckpointSensor": "airflow_provider_statecheck.sensors.checkpoint",
    "CheckpointedPySparkOperator": "airflow_provider_statecheck.operators.pyspark",
    "CheckpointedSparkSubmitOperator": "airflow_provider_statecheck.operators.spark_submit",
    "StageContext": "airflow_provider_statecheck.spark.context",
    "StatecheckHook": "airflow_provider_statecheck.hooks.statecheck",
}

__all__ = [
    "CheckpointSensor",
    "CheckpointedPySparkOperator",
    "CheckpointedSparkSubmitOperator",
    "StageContext",
    "StatecheckHook",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
