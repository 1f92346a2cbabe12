"""A stage whose paths are all relative, run as a process of its own; Spark's executors run in other directories."""

from __future__ import annotations

import json
import os

from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import run_stage
from tests.sessions import start_session
from tests.spark.stages.functions import RunningBalance
from tests.spark.stages.test_stage import RUNNING

INPUT, OUTPUT, CHECKPOINTS = "data/input", "data/output", "data/checkpoints"


def main() -> None:
    spark = start_session(json.loads(os.environ["SPARK_CONF"]))
    stage = (
        Stage("stage", parallelism=2)
        .source(ParquetSource(INPUT, files_per_increment=1))
        .key_by("account", order_by="number")
        .process(RunningBalance(), uid="balance", output=RUNNING)
        .sink(ParquetSink(OUTPUT))
    )
    run_stage(spark, stage, job="balances", checkpoint_dir=CHECKPOINTS, metadata="sqlite:///state.db")
    spark.stop()


if __name__ == "__main__":
    main()
