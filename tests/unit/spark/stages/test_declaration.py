"""A stage is declared with any legal names, or refused where it is written."""

from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.stages.planning import vertices_of
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, BroadcastInput, Count, Stage, Sum
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor
from airflow_provider_statecheck.state.functions.user_functions import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
)


def _keyed() -> Stage:
    return Stage("totals").source(DataFrameSource([1], _rows)).key_by("account")


def _rows(*_: Any) -> Any:
    """Load no rows: the stage does not run."""


def _aggregates(stage: Stage) -> Any:
    node = stage.nodes[-1]
    assert isinstance(node, AggregateNode)
    return node.aggregates


def _named(name: str) -> Any:
    return {name: Count()}


@pytest.mark.parametrize("name", ["self", "by_name", "aggregates", "a b", "None"])
def test_an_aggregate_has_any_name_as_an_argument(name):
    assert _aggregates(_keyed().aggregate(**_named(name))) == {name: Count()}


@pytest.mark.parametrize("name", ["uid", "emit", "self", "total"])
def test_an_aggregate_has_any_name_in_a_dictionary(name):
    assert _aggregates(_keyed().aggregate({name: Count()}, n=Sum("x"))) == {name: Count(), "n": Sum("x")}


@pytest.mark.parametrize("name", ["uid", "emit"])
def test_an_aggregate_in_place_of_a_setting_is_refused_with_the_way_to_name_it(name):
    with pytest.raises(InvalidConfigurationError, match=rf"Expected text for {name}, .* aggregate\(\{{'{name}': Count"):
        _keyed().aggregate(n=Count(), **_named(name))


@pytest.mark.parametrize("given", [[("n", Count())], Count(), {1: Count()}, {"n": 1}, {}])
def test_what_is_no_dictionary_of_aggregates_by_name_is_refused(given):
    with pytest.raises(InvalidConfigurationError, match="aggregates by"):
        _keyed().aggregate(given)


def test_an_aggregate_that_is_given_twice_is_refused():
    with pytest.raises(InvalidConfigurationError, match="each aggregate once, found 'n' in the dictionary"):
        _keyed().aggregate({"n": Count()}, n=Sum("id"))


RULES = DataFrameSource([1], _rows)
LIMITS: MapStateDescriptor[int] = MapStateDescriptor("limits", str, int)


class Limited(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def process_broadcast_element(self, value: Any, context: Any) -> Any:
        """Emit nothing."""

    def process_element(self, value: Any, context: Any) -> Any:
        """Emit nothing."""


class Deaf(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Any:
        """Emit nothing."""


class Plain(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Any:
        """Emit nothing."""


def test_a_broadcast_is_an_input_of_the_function_after_it():
    (vertex,) = vertices_of(_keyed().broadcast(RULES, LIMITS).process(Limited()))
    assert vertex.key is not None
    assert vertex.key.broadcast == BroadcastInput(source=RULES, states=(LIMITS,))


@pytest.mark.parametrize(
    "stage",
    [
        lambda: _keyed().process(Limited()),
        lambda: _keyed().broadcast(RULES, LIMITS).process(Plain()),
        lambda: _keyed().broadcast(RULES, LIMITS).aggregate(n=Count()),
        lambda: _keyed().broadcast(RULES, LIMITS).map(str),
        lambda: _keyed().broadcast(RULES, LIMITS),
        lambda: _keyed().broadcast(cast("Any", "rules"), LIMITS).process(Limited()),
    ],
)
def test_a_broadcast_without_its_function_is_refused(stage):
    with pytest.raises(InvalidConfigurationError):
        vertices_of(stage())


@pytest.mark.parametrize(
    "broadcast",
    [
        lambda: Stage("s").source(DataFrameSource([1], _rows)).broadcast(RULES, LIMITS),
        lambda: _keyed().broadcast(RULES, LIMITS).broadcast(RULES, LIMITS),
        lambda: _keyed().broadcast(RULES),
        lambda: _keyed().broadcast(RULES, LIMITS, LIMITS),
        lambda: _keyed().broadcast(RULES, cast("Any", "limits")),
        lambda: _keyed().aggregate(n=Count()).broadcast(RULES, LIMITS),
    ],
)
def test_a_broadcast_in_another_place_or_without_states_is_refused(broadcast):
    with pytest.raises(InvalidConfigurationError, match="broadcast"):
        broadcast()


def test_a_broadcast_input_that_would_start_its_run_again_is_refused():
    source = DataFrameSource([1], _rows, on_change="restart")
    with pytest.raises(InvalidConfigurationError, match="'fail' or 'ignore', found 'restart'"):
        _keyed().broadcast(source, LIMITS)


def test_a_function_that_does_not_process_its_broadcast_input_is_refused():
    with pytest.raises(InvalidConfigurationError, match="Deaf to define process_broadcast_element"):
        _keyed().broadcast(RULES, LIMITS).process(Deaf())


@pytest.mark.parametrize(
    "aliases",
    [
        {"other": "account"},
        {"account": 1},
        {"account": ["a", None]},
        {"account": ""},
        {"account": ["a", ""]},
        ["account"],
        [],
        "account",
    ],
)
def test_former_names_of_what_is_no_column_of_the_key_are_refused(aliases):
    with pytest.raises(InvalidConfigurationError, match="Expected former names of the columns"):
        Stage("s").source(DataFrameSource([1], _rows)).key_by("account", aliases=aliases)
