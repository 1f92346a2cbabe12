"""How a stage is found by its name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck import DataFrameSource, Stage, Sum
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.stages.planning import load_stage

MODULE = """
from airflow_provider_statecheck import Count, DataFrameSource, ParquetSink, Stage

stage = Stage(parallelism=2).source(DataFrameSource([1], None)).key_by("a").aggregate(n=Count())
partial = Stage().source(DataFrameSource([1], None))
unread = Stage().source("/data/a").map(len)
unwritten = Stage().source(DataFrameSource([1], None)).sink(ParquetSink)
idle = Stage(parallelism=0).source(DataFrameSource([1], None)).map(len)
number = 5
def make(): return stage
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stages_to_load.py").write_text(MODULE)
    (tmp_path / "broken_to_load.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "stages_to_load", raising=False)


def test_stage_is_an_attribute_of_a_module_or_what_a_callable_there_gives() -> None:
    assert load_stage("stages_to_load:stage") is load_stage("stages_to_load:make")
    assert load_stage("stages_to_load:stage").parallelism == 2


def test_stage_itself_is_taken_as_it_is() -> None:
    stage = load_stage("stages_to_load:stage")
    assert load_stage(stage) is stage


def test_columns_of_a_key_are_single_arguments() -> None:
    columns: Any = ["a", "b"]
    with pytest.raises(InvalidConfigurationError, match="Expected names of columns to key by"):
        Stage().source(DataFrameSource([1], lambda spark, _: spark.range(1))).key_by(columns)


def test_parallelism_that_is_given_comes_before_the_stages_own() -> None:
    stage = load_stage("stages_to_load:stage", parallelism=7)
    assert (stage.parallelism, load_stage("stages_to_load:stage").parallelism) == (7, 2)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("stages_to_load:nothing", "has no attribute 'nothing'"),
        ("stages_to_load:number", "found int"),
        ("stages_to_load:partial", "found an incomplete one"),
        ("stages_to_load:unread", r"Expected a source of a stage, such as ParquetSource\('/data/x'\), found str"),
        ("stages_to_load:unwritten", "Expected a sink of a stage, .*found the class ParquetSink"),
        ("stages_to_load:idle", "Expected parallelism to be a whole number of at least 1, found 0"),
        ("stages_to_load", "as module:attribute"),
        (":stage", "as module:attribute"),
        ("broken_to_load:stage", "No module named 'no_such_library'"),
        (None, "found NoneType"),
    ],
)
def test_what_is_no_stage_is_refused_with_what_was_found(place: str, message: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=message):
        load_stage(place)


@pytest.mark.parametrize("aggregate", [Sum, "amount", Sum(5)], ids=["class", "text", "number"])  # type: ignore[arg-type]
def test_what_is_no_aggregate_of_an_expression_is_refused(aggregate: Any) -> None:
    keyed = Stage().source(DataFrameSource([1], lambda spark, _: spark.range(1))).key_by("id")
    with pytest.raises(InvalidConfigurationError, match=r"such as total=Sum\('price'\), found"):
        keyed.aggregate(total=aggregate)
