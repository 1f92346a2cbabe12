"""The pipeline as an application that is submitted."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, sys.argv[2])

from airflow_provider_statecheck import StageContext
from tests.matrix.stage import run_stage


def main() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    with StageContext.current(spark) as checkpoint:
        run_stage(spark, checkpoint, Path(sys.argv[1]))
    spark.stop()


main()
