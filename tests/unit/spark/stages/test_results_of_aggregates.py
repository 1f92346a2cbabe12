"""Which aggregates of a stage read the results of other aggregates, and when those emit them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.stages.planning import vertices_of
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, Count, Stage, Sum
from airflow_provider_statecheck.state.functions.user_functions import (
    CheckpointedFunction,
    KeyedProcessFunction,
    RichMapFunction,
)


class Passing(KeyedProcessFunction[Any, Any, Any]):
    """A function of the user with keyed state."""

    def process_element(self, value: Any, context: Any) -> Any:
        yield value


class Opened(RichMapFunction[Any, Any]):
    """A function that can have keyed state directly after a key."""

    def map(self, value: Any) -> Any:
        return value


class Remembering(Opened, CheckpointedFunction):
    """A function with operator state."""

    def initialize_state(self, context: Any) -> None:
        """It needs nothing."""

    def snapshot_state(self, context: Any) -> None:
        """It saves nothing."""


def users(emit: Any = "end") -> Stage:
    stage = Stage("stage").source(DataFrameSource([1], lambda spark, _: spark.range(1)))
    return stage.key_by("user", "country").aggregate(uid="users", emit=emit, n=Count())


def per_country(stage: Stage, uid: str = "countries", emit: Any = "changes") -> Stage:
    return stage.key_by("country").aggregate(uid=uid, emit=emit, n=Sum("n"))


def planned(stage: Stage) -> dict[str, tuple[bool, bool]]:
    nodes = (node for vertex in vertices_of(stage) for node in vertex.functions)
    return {node.uid: (node.reads_results, node.emits_changes) for node in nodes if isinstance(node, AggregateNode)}


@pytest.mark.parametrize("emit", ["end", "changes"])
def test_aggregates_of_aggregates_read_all_results_at_the_end_of_the_input(emit: str) -> None:
    chain = per_country(per_country(users(emit)), uid="all", emit="changes")
    assert planned(chain) == {"users": (False, False), "countries": (True, False), "all": (True, True)}


def test_single_aggregate_emits_as_declared() -> None:
    assert planned(users("changes")) == {"users": (False, True)}


def test_functions_without_state_pass_results_on() -> None:
    stage = per_country(users("changes").map(lambda row: row).map(Opened(), uid="opened"))
    assert planned(stage) == {"users": (False, False), "countries": (True, True)}


@pytest.mark.parametrize(
    "between",
    [
        lambda stage: stage.key_by("user").process(Passing(), output="country long, n long"),
        lambda stage: stage.key_by("user").map(Opened()),
        lambda stage: stage.map(Remembering()),
    ],
    ids=["process function", "map with keyed state", "map with operator state"],
)
def test_function_with_state_reads_changes_and_what_it_emits_is_added(between: Any) -> None:
    stage = per_country(between(users("changes")))
    assert planned(stage) == {"users": (False, True), "countries": (False, True)}
