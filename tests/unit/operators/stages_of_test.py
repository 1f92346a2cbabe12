"""Stages that the tests of the operators find by their names."""

from __future__ import annotations

from airflow_provider_statecheck import Count, DataFrameSource, ParquetSink, Stage

SECRET = "a key that nobody may see"
not_a_stage = 5
without_a_source = Stage("empty")
without_a_key = Stage("keyless").source(DataFrameSource([1], lambda spark, _: spark.range(1)))
stage = (
    without_a_key.key_by("id")
    .aggregate(n=Count())
    .sink(ParquetSink("s3://lake/out", storage_options={"secret": SECRET}))
)


def made() -> Stage:
    return stage


def failing() -> Stage:
    raise ValueError("planned")
