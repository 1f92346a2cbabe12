"""Checkpointed batch pipelines for Apache Airflow: failed Spark tasks resume from checkpoints."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.masking import guard_logs

if TYPE_CHECKING:
    from airflow_provider_statecheck.hooks.statecheck import StatecheckHook as StatecheckHook
    from airflow_provider_statecheck.operators.amazon import (
        CheckpointedEmrAddStepsOperator as CheckpointedEmrAddStepsOperator,
        CheckpointedEmrContainerOperator as CheckpointedEmrContainerOperator,
        CheckpointedEmrServerlessStartJobOperator as CheckpointedEmrServerlessStartJobOperator,
        CheckpointedGlueJobOperator as CheckpointedGlueJobOperator,
    )
    from airflow_provider_statecheck.operators.databricks import (
        CheckpointedDatabricksRunNowOperator as CheckpointedDatabricksRunNowOperator,
        CheckpointedDatabricksSubmitRunOperator as CheckpointedDatabricksSubmitRunOperator,
    )
    from airflow_provider_statecheck.operators.google import (
        CheckpointedDataprocCreateBatchOperator as CheckpointedDataprocCreateBatchOperator,
        CheckpointedDataprocSubmitJobOperator as CheckpointedDataprocSubmitJobOperator,
    )
    from airflow_provider_statecheck.operators.kubernetes import (
        CheckpointedSparkKubernetesOperator as CheckpointedSparkKubernetesOperator,
    )
    from airflow_provider_statecheck.operators.livy import (
        CheckpointedLivyOperator as CheckpointedLivyOperator,
    )
    from airflow_provider_statecheck.operators.pyspark import (
        CheckpointedPySparkOperator as CheckpointedPySparkOperator,
        CheckpointedStageOperator as CheckpointedStageOperator,
    )
    from airflow_provider_statecheck.operators.remote import (
        RemoteDriverMixin as RemoteDriverMixin,
    )
    from airflow_provider_statecheck.operators.spark_submit import (
        CheckpointedSparkSubmitOperator as CheckpointedSparkSubmitOperator,
        CheckpointedStageSubmitOperator as CheckpointedStageSubmitOperator,
    )
    from airflow_provider_statecheck.queryable.client import (
        AsyncQueryableStateClient as AsyncQueryableStateClient,
        QueryableStateClient as QueryableStateClient,
    )
    from airflow_provider_statecheck.queryable.reads import LocalStateClient as LocalStateClient
    from airflow_provider_statecheck.sensors.checkpoint import CheckpointSensor as CheckpointSensor
    from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource as DataFrameSource
    from airflow_provider_statecheck.spark.connectors.custom.two_phase_commit_sink import (
        TwoPhaseCommitSink as TwoPhaseCommitSink,
    )
    from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink as DeltaSink
    from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource as DeltaSource
    from airflow_provider_statecheck.spark.connectors.files.sink import (
        ParquetSink as ParquetSink,
        committed_files as committed_files,
        read_committed as read_committed,
    )
    from airflow_provider_statecheck.spark.connectors.files.source import (
        CsvSource as CsvSource,
        JsonSource as JsonSource,
        ParquetSource as ParquetSource,
    )
    from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink as IcebergSink
    from airflow_provider_statecheck.spark.connectors.iceberg.source import IcebergSource as IcebergSource
    from airflow_provider_statecheck.spark.connectors.sql.sink import SqlSink as SqlSink
    from airflow_provider_statecheck.spark.connectors.sql.source import SqlSource as SqlSource
    from airflow_provider_statecheck.spark.connectors.stage_output.source import StageOutputSource as StageOutputSource
    from airflow_provider_statecheck.spark.context import StageContext as StageContext
    from airflow_provider_statecheck.spark.stages.stage import (
        Count as Count,
        Max as Max,
        Min as Min,
        Stage as Stage,
        StageSettings as StageSettings,
        Sum as Sum,
    )
    from airflow_provider_statecheck.spark.stages.stage_run import run_stage as run_stage
    from airflow_provider_statecheck.state.descriptors import (
        AggregateFunction as AggregateFunction,
        AggregatingStateDescriptor as AggregatingStateDescriptor,
        FoldingStateDescriptor as FoldingStateDescriptor,
        ListStateDescriptor as ListStateDescriptor,
        MapStateDescriptor as MapStateDescriptor,
        ReducingStateDescriptor as ReducingStateDescriptor,
        StateTtlConfig as StateTtlConfig,
        StateVisibility as StateVisibility,
        UpdateType as UpdateType,
        ValueStateDescriptor as ValueStateDescriptor,
    )
    from airflow_provider_statecheck.state.functions.user_functions import (
        BoundedOneInput as BoundedOneInput,
        CheckpointedFunction as CheckpointedFunction,
        FlatMapFunction as FlatMapFunction,
        KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction,
        KeyedProcessFunction as KeyedProcessFunction,
        MapFunction as MapFunction,
        RichFlatMapFunction as RichFlatMapFunction,
        RichMapFunction as RichMapFunction,
    )

__version__ = "0.1.0"

guard_logs()

_MODULES = {
    "hooks.statecheck": ("StatecheckHook",),
    "operators.pyspark": ("CheckpointedPySparkOperator", "CheckpointedStageOperator"),
    "operators.remote": ("RemoteDriverMixin",),
    "operators.spark_submit": ("CheckpointedSparkSubmitOperator", "CheckpointedStageSubmitOperator"),
    "queryable.client": ("AsyncQueryableStateClient", "QueryableStateClient"),
    "queryable.reads": ("LocalStateClient",),
    "sensors.checkpoint": ("CheckpointSensor",),
    "spark.context": ("StageContext",),
    "spark.connectors.files.sink": ("ParquetSink", "committed_files", "read_committed"),
    "spark.connectors.delta.sink": ("DeltaSink",),
    "spark.connectors.iceberg.sink": ("IcebergSink",),
    "spark.connectors.sql.sink": ("SqlSink",),
    "spark.connectors.custom.two_phase_commit_sink": ("TwoPhaseCommitSink",),
    "spark.connectors.delta.source": ("DeltaSource",),
    "spark.connectors.files.source": ("CsvSource", "JsonSource", "ParquetSource"),
    "spark.connectors.iceberg.source": ("IcebergSource",),
    "spark.connectors.custom.data_frame_source": ("DataFrameSource",),
    "spark.connectors.sql.source": ("SqlSource",),
    "spark.connectors.stage_output.source": ("StageOutputSource",),
    "spark.stages.stage": ("Count", "Max", "Min", "Stage", "StageSettings", "Sum"),
    "spark.stages.stage_run": ("run_stage",),
    "state.descriptors": (
        "AggregateFunction",
        "AggregatingStateDescriptor",
        "FoldingStateDescriptor",
        "ListStateDescriptor",
        "MapStateDescriptor",
        "ReducingStateDescriptor",
        "StateTtlConfig",
        "StateVisibility",
        "UpdateType",
        "ValueStateDescriptor",
    ),
    "state.functions.user_functions": (
        "BoundedOneInput",
        "CheckpointedFunction",
        "FlatMapFunction",
        "KeyedBroadcastProcessFunction",
        "KeyedProcessFunction",
        "MapFunction",
        "RichFlatMapFunction",
        "RichMapFunction",
    ),
}
_OF_SERVICES = {
    "operators.amazon": (
        "CheckpointedEmrAddStepsOperator",
        "CheckpointedEmrContainerOperator",
        "CheckpointedEmrServerlessStartJobOperator",
        "CheckpointedGlueJobOperator",
    ),
    "operators.databricks": (
        "CheckpointedDatabricksRunNowOperator",
        "CheckpointedDatabricksSubmitRunOperator",
    ),
    "operators.google": (
        "CheckpointedDataprocCreateBatchOperator",
        "CheckpointedDataprocSubmitJobOperator",
    ),
    "operators.kubernetes": ("CheckpointedSparkKubernetesOperator",),
    "operators.livy": ("CheckpointedLivyOperator",),
}
"""What needs the provider of a service, an extra of this package; an import of all names leaves it out."""
_PUBLIC = {name: f"{__name__}.{module}" for module, names in {**_MODULES, **_OF_SERVICES}.items() for name in names}

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "AsyncQueryableStateClient",
    "BoundedOneInput",
    "CheckpointSensor",
    "CheckpointedFunction",
    "CheckpointedPySparkOperator",
    "CheckpointedSparkSubmitOperator",
    "CheckpointedStageOperator",
    "CheckpointedStageSubmitOperator",
    "Count",
    "CsvSource",
    "DataFrameSource",
    "DeltaSink",
    "DeltaSource",
    "FlatMapFunction",
    "FoldingStateDescriptor",
    "IcebergSink",
    "IcebergSource",
    "JsonSource",
    "KeyedBroadcastProcessFunction",
    "KeyedProcessFunction",
    "ListStateDescriptor",
    "LocalStateClient",
    "MapFunction",
    "MapStateDescriptor",
    "Max",
    "Min",
    "ParquetSink",
    "ParquetSource",
    "QueryableStateClient",
    "ReducingStateDescriptor",
    "RemoteDriverMixin",
    "RichFlatMapFunction",
    "RichMapFunction",
    "SqlSink",
    "SqlSource",
    "Stage",
    "StageContext",
    "StageOutputSource",
    "StageSettings",
    "StateTtlConfig",
    "StateVisibility",
    "StatecheckHook",
    "Sum",
    "TwoPhaseCommitSink",
    "UpdateType",
    "ValueStateDescriptor",
    "__version__",
    "committed_files",
    "read_committed",
    "run_stage",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_PUBLIC[name])
    except ModuleNotFoundError as error:
        extra = _PUBLIC[name].rpartition(".")[2]
        if f"operators.{extra}" not in _OF_SERVICES:
            raise
        raise ModuleNotFoundError(
            f"{name} needs {error.name}, found none; install airflow-provider-statecheck[{extra}].", name=error.name
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
