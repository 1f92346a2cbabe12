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
    from airflow_provider_statecheck.operators.stage import CheckpointedStageOperator as CheckpointedStageOperator
    from airflow_provider_statecheck.operators.stage_submit import (
        CheckpointedStageSubmitOperator as CheckpointedStageSubmitOperator,
    )
    from airflow_provider_statecheck.sensors.checkpoint import CheckpointSensor as CheckpointSensor
    from airflow_provider_statecheck.spark.context import StageContext as StageContext
    from airflow_provider_statecheck.spark.sinks.committed import (
        committed_files as committed_files,
        read_committed as read_committed,
    )
    from airflow_provider_statecheck.spark.sinks.delta_sink import DeltaSink as DeltaSink
    from airflow_provider_statecheck.spark.sinks.iceberg_sink import IcebergSink as IcebergSink
    from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink as ParquetSink
    from airflow_provider_statecheck.spark.sinks.sql_sink import SqlSink as SqlSink
    from airflow_provider_statecheck.spark.sinks.two_phase_commit_sink import TwoPhaseCommitSink as TwoPhaseCommitSink
    from airflow_provider_statecheck.spark.sources.csv_source import CsvSource as CsvSource
    from airflow_provider_statecheck.spark.sources.dataframe_source import DataFrameSource as DataFrameSource
    from airflow_provider_statecheck.spark.sources.delta_source import DeltaSource as DeltaSource
    from airflow_provider_statecheck.spark.sources.iceberg_source import IcebergSource as IcebergSource
    from airflow_provider_statecheck.spark.sources.json_source import JsonSource as JsonSource
    from airflow_provider_statecheck.spark.sources.parquet_source import ParquetSource as ParquetSource
    from airflow_provider_statecheck.spark.sources.sql_source import SqlSource as SqlSource
    from airflow_provider_statecheck.spark.sources.stage_output_source import StageOutputSource as StageOutputSource
    from airflow_provider_statecheck.spark.stages.aggregates import (
        Count as Count,
        Max as Max,
        Min as Min,
        Sum as Sum,
    )
    from airflow_provider_statecheck.spark.stages.script import run_stage as run_stage
    from airflow_provider_statecheck.spark.stages.stage import Stage as Stage
    from airflow_provider_statecheck.spark.stages.stage_settings import StageSettings as StageSettings
    from airflow_provider_statecheck.state.descriptors import (
        AggregateFunction as AggregateFunction,
        AggregatingStateDescriptor as AggregatingStateDescriptor,
        FoldingStateDescriptor as FoldingStateDescriptor,
        ListStateDescriptor as ListStateDescriptor,
        MapStateDescriptor as MapStateDescriptor,
        ReducingStateDescriptor as ReducingStateDescriptor,
        ValueStateDescriptor as ValueStateDescriptor,
    )
    from airflow_provider_statecheck.state.functions.checkpointed_function import (
        CheckpointedFunction as CheckpointedFunction,
    )
    from airflow_provider_statecheck.state.functions.flat_map_function import (
        FlatMapFunction as FlatMapFunction,
        RichFlatMapFunction as RichFlatMapFunction,
    )
    from airflow_provider_statecheck.state.functions.keyed_process_function import (
        KeyedProcessFunction as KeyedProcessFunction,
    )
    from airflow_provider_statecheck.state.functions.map_function import (
        MapFunction as MapFunction,
        RichMapFunction as RichMapFunction,
    )
    from airflow_provider_statecheck.state.ttl import (
        StateTtlConfig as StateTtlConfig,
        StateVisibility as StateVisibility,
        UpdateType as UpdateType,
    )

__version__ = "0.1.0"

_MODULES = {
    "hooks.statecheck": ("StatecheckHook",),
    "operators.pyspark": ("CheckpointedPySparkOperator",),
    "operators.spark_submit": ("CheckpointedSparkSubmitOperator",),
    "operators.stage": ("CheckpointedStageOperator",),
    "operators.stage_submit": ("CheckpointedStageSubmitOperator",),
    "sensors.checkpoint": ("CheckpointSensor",),
    "spark.context": ("StageContext",),
    "spark.sinks.committed": ("committed_files", "read_committed"),
    "spark.sinks.delta_sink": ("DeltaSink",),
    "spark.sinks.iceberg_sink": ("IcebergSink",),
    "spark.sinks.parquet_sink": ("ParquetSink",),
    "spark.sinks.sql_sink": ("SqlSink",),
    "spark.sinks.two_phase_commit_sink": ("TwoPhaseCommitSink",),
    "spark.sources.csv_source": ("CsvSource",),
    "spark.sources.dataframe_source": ("DataFrameSource",),
    "spark.sources.delta_source": ("DeltaSource",),
    "spark.sources.iceberg_source": ("IcebergSource",),
    "spark.sources.json_source": ("JsonSource",),
    "spark.sources.parquet_source": ("ParquetSource",),
    "spark.sources.sql_source": ("SqlSource",),
    "spark.sources.stage_output_source": ("StageOutputSource",),
    "spark.stages.aggregates": ("Count", "Max", "Min", "Sum"),
    "spark.stages.script": ("run_stage",),
    "spark.stages.stage": ("Stage",),
    "spark.stages.stage_settings": ("StageSettings",),
    "state.descriptors": (
        "AggregateFunction",
        "AggregatingStateDescriptor",
        "FoldingStateDescriptor",
        "ListStateDescriptor",
        "MapStateDescriptor",
        "ReducingStateDescriptor",
        "ValueStateDescriptor",
    ),
    "state.functions.checkpointed_function": ("CheckpointedFunction",),
    "state.functions.flat_map_function": ("FlatMapFunction", "RichFlatMapFunction"),
    "state.functions.keyed_process_function": ("KeyedProcessFunction",),
    "state.functions.map_function": ("MapFunction", "RichMapFunction"),
    "state.ttl": ("StateTtlConfig", "StateVisibility", "UpdateType"),
}
_PUBLIC = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
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
    "KeyedProcessFunction",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "Max",
    "Min",
    "ParquetSink",
    "ParquetSource",
    "ReducingStateDescriptor",
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
    return getattr(importlib.import_module(_PUBLIC[name]), name)
