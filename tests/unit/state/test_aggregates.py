"""Aggregates that a later declaration continues, and those that it must not continue."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.state.aggregates import AggregateSchema, continued, unrecorded
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas, decode_schemas, encode_schemas
from airflow_provider_statecheck.state.serializers.resolve import serializer_of


def aggregate(name: str, function: str = "sum", expression: str = "v", **given: Any) -> AggregateSchema:
    values: dict[str, Any] = {
        "analyzed": f"[{expression.replace(' ', '')}]",
        "combine": function,
        "is_nullable": function != "count",
    }
    return AggregateSchema(name=name, function=function, expression=expression, **values | given)


def aliases(found: list[AggregateSchema], declared: list[AggregateSchema]) -> dict[str, tuple[str, ...]]:
    return {each.name: each.aliases for each in continued(found, declared, "stage/aggregate")}


@pytest.mark.parametrize(
    "later",
    [
        aggregate("x"),
        aggregate("x", expression="  v"),
        aggregate("x", analyzed="[as another version of Spark writes it]"),
        aggregate("x", analyzed=None),
    ],
    ids=["same", "other spaces", "same text", "text alone is known"],
)
def test_aggregate_of_the_same_function_and_expression_goes_on(later: AggregateSchema) -> None:
    assert aliases([aggregate("x")], [later]) == {"x": ()}


@pytest.mark.parametrize(
    "later",
    [
        aggregate("x", "max"),
        aggregate("x", combine="max"),
        aggregate("x", expression="v * 100"),
        aggregate("x", expression="w", analyzed=None),
    ],
    ids=["function", "combining", "expression", "expression that is not analyzed"],
)
def test_another_aggregate_under_a_name_is_refused_with_both_declarations(later: AggregateSchema) -> None:
    with pytest.raises(StateMigrationError) as refused:
        aliases([aggregate("x"), aggregate("n", "count", "1")], [later, aggregate("n", "count", "1")])
    assert f"found {later.text}; the state has x=sum(v), n=count(1)." in str(refused.value)
    assert "uid=" in str(refused.value)
    assert "job=" in str(refused.value)


def test_added_aggregate_that_has_not_seen_the_earlier_input_is_refused() -> None:
    with pytest.raises(StateMigrationError, match=r"found low=min\(v\); the state has total=sum\(v\)"):
        aliases([aggregate("total")], [aggregate("total"), aggregate("low", "min")])


def test_removed_aggregate_is_dropped_and_refused_when_it_comes_back() -> None:
    both = [aggregate("total"), aggregate("low", "min")]
    found = continued(both, both[:1], "stage/aggregate")
    assert [each.name for each in found] == ["total"]
    with pytest.raises(StateMigrationError, match="low"):
        aliases(list(found), both)


def test_renamed_aggregate_goes_on_under_its_former_names() -> None:
    (second,) = continued([aggregate("total")], [aggregate("amount")], "stage/aggregate")
    (third,) = continued([second], [aggregate("sum")], "stage/aggregate")
    assert (second.aliases, third.aliases) == (("total",), ("amount", "total"))
    assert aliases([third], [aggregate("total")]) == {"total": ("sum", "amount")}


def test_exchanged_names_are_refused_because_a_name_in_use_denotes_its_own_aggregate() -> None:
    with pytest.raises(StateMigrationError, match="found a="):
        aliases([aggregate("a"), aggregate("b", expression="w")], [aggregate("a", expression="w"), aggregate("b")])


def test_two_names_of_one_earlier_aggregate_both_go_on_from_it() -> None:
    assert aliases([aggregate("a")], [aggregate("b"), aggregate("c")]) == {"b": ("a",), "c": ("a",)}


def test_aggregate_that_no_longer_reads_results_is_refused() -> None:
    with pytest.raises(StateMigrationError, match=r"found x=sum\(v\); the state has x=sum\(v\) of results"):
        aliases([aggregate("x", of_results=True)], [aggregate("x")])


def test_aggregate_in_state_of_another_function_is_refused() -> None:
    with pytest.raises(StateMigrationError, match="the state has none"):
        aliases([], [aggregate("x")])


STORED = serializer_of(pa.struct([pa.field("total", pa.int64()), pa.field("n", pa.int64(), nullable=False)])).snapshot()


def test_state_that_recorded_no_function_goes_on_by_name_and_is_recorded_from_now_on() -> None:
    found = unrecorded(STORED)
    later = [aggregate("n", "count", "1"), aggregate("total", "max")]
    assert list(continued(found, later, "stage/aggregate")) == later


@pytest.mark.parametrize(
    "later",
    [aggregate("n"), aggregate("total", "count"), aggregate("other")],
    ids=["no longer a count", "a count now", "another name"],
)
def test_state_that_recorded_no_function_is_refused_for_what_its_types_rule_out(later: AggregateSchema) -> None:
    with pytest.raises(StateMigrationError, match="the state has total, not a count, n, a count"):
        aliases(list(unrecorded(STORED)), [later])


def test_types_of_state_name_their_aggregates_and_those_of_earlier_releases_name_none() -> None:
    schemas = OperatorSchemas(aggregates=(replace(aggregate("amount"), aliases=("total",)),))
    encoded = json.loads(json.dumps(encode_schemas(schemas)))
    assert decode_schemas(encoded) == schemas
    del encoded["aggregates"]
    assert decode_schemas(encoded) == OperatorSchemas()
