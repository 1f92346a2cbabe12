"""A stage is declared with any legal names, or refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, Count, Stage, Sum


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
