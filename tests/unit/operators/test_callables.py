"""Functions and arguments that cannot be those of a stage are refused when Airflow parses the Dag."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_statecheck.decorators.checkpointed_spark import checkpointed_spark_task
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.callables import stage_function
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator

DATE = datetime(2026, 1, 1, tzinfo=UTC)
DECORATOR: Any = task.checkpointed_spark


async def asynchronous(spark: Any, checkpoint: Any) -> None: ...


async def asynchronous_generator(spark: Any, checkpoint: Any) -> Any:
    yield 1


def generator(spark: Any, checkpoint: Any) -> Any:
    yield 1


@functools.wraps(asynchronous)
def wrapper(*args: Any, **kwargs: Any) -> None:
    asyncio.run(asynchronous(*args, **kwargs))


class Called:
    async def __call__(self, spark: Any, checkpoint: Any) -> None: ...

    async def method(self, spark: Any, checkpoint: Any) -> None: ...

    def good(self, spark: Any, checkpoint: Any) -> int:
        return 7


class CalledGenerator:
    def __call__(self, spark: Any, checkpoint: Any) -> Any:
        yield 1


def no_parameters() -> None: ...


def without_checkpoint(spark: Any) -> None: ...


def without_spark(checkpoint: Any) -> None: ...


def by_position(spark: Any, checkpoint: Any, /) -> None: ...


def any_position(*args: Any) -> None: ...


def load(spark: Any, checkpoint: Any, day: str) -> str:
    return day


def seven(spark: Any, checkpoint: Any, day: str) -> int:
    return 7


def loaded_before(day: str, spark: Any, checkpoint: Any) -> str:
    return day


def of_operator(function: Any, **arguments: Any) -> Any:
    return CheckpointedPySparkOperator(task_id="t", python_callable=function, **arguments)


def of_decorator(function: Any, **arguments: Any) -> Any:
    op_args, op_kwargs = arguments.pop("op_args", ()), arguments.pop("op_kwargs", {})
    made: Any = checkpointed_spark_task(function, task_id="t", **arguments)
    return made(*op_args, **op_kwargs).operator


FORMS = pytest.mark.parametrize("make", [of_operator, of_decorator])
ASYNCHRONOUS = "is asynchronous; Spark's calls wait for their results"
GENERATOR = "is a generator, whose values nothing would read"


@FORMS
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (asynchronous, f"that asynchronous {ASYNCHRONOUS}"),
        (asynchronous_generator, f"that asynchronous_generator {ASYNCHRONOUS}"),
        (functools.partial(asynchronous), f"that asynchronous {ASYNCHRONOUS}"),
        (wrapper, f"that asynchronous {ASYNCHRONOUS}"),
        (Called(), f"that Called {ASYNCHRONOUS}"),
        (Called().method, f"that method {ASYNCHRONOUS}"),
        (generator, f"that generator {GENERATOR}"),
        (functools.partial(generator), f"that generator {GENERATOR}"),
        (CalledGenerator(), f"that CalledGenerator {GENERATOR}"),
        (no_parameters, "found no_parameters() without spark and checkpoint"),
        (without_checkpoint, "without checkpoint; add them"),
        (without_spark, "without spark; add them"),
        (by_position, "without spark and checkpoint"),
        (any_position, "without spark and checkpoint"),
        ("spark_default", "Expected a function as python_callable, found 'spark_default'"),
        (load, "none for day; give it when the task is called, or in op_kwargs"),
    ],
)
def test_function_that_cannot_be_that_of_a_stage_is_refused(
    make: Callable[..., Any], function: Any, message: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=re.escape(message)):
        make(function)


@FORMS
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op_args": ["monday"]}, "at most 0 arguments of load by position, found 1: .* give day=..."),
        ({"op_kwargs": {"day": "monday", "spark": 1}}, "Expected spark of load from the Airflow operator only"),
        ({"op_kwargs": {"day": "monday", "checkpoint": 1}}, "checkpoint of load from the Airflow operator only"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(make: Callable[..., Any], arguments: Any, message: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=message):
        make(load, **arguments)


@FORMS
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (load, {"op_kwargs": {"day": "monday"}}),
        (loaded_before, {"op_args": ["monday"]}),
        (loaded_before, {"op_kwargs": {"day": "monday"}}),
        (Called().good, {}),
        (lambda spark, checkpoint, ti, params: None, {}),
        (lambda **kwargs: None, {}),
        (lambda *days, spark, checkpoint: None, {"op_args": ["monday", "tuesday"]}),
    ],
)
def test_function_and_arguments_that_fit_are_taken(make: Callable[..., Any], function: Any, arguments: Any) -> None:
    assert callable(make(function, **arguments).python_callable)


@pytest.mark.parametrize("function", [Called().good, functools.partial(seven, day="monday")], ids=["method", "partial"])
def test_bound_function_is_called(function: Any) -> None:
    assert of_operator(function).python_callable(spark=None, checkpoint=None) == 7


def test_one_function_is_that_of_several_tasks() -> None:
    with DAG("d", schedule=None, start_date=DATE):
        first = DECORATOR(load)
        assert [first(day="monday").operator.task_id, first(day="tuesday").operator.task_id] == ["load", "load__1"]


def test_arguments_of_a_mapped_task_are_not_missing_when_the_dag_is_parsed() -> None:
    with DAG("d", schedule=None, start_date=DATE) as dag:
        DECORATOR(load, map_key="{{ task.op_kwargs['day'] }}").expand(day=["monday", "tuesday"])
        operators = CheckpointedPySparkOperator.partial(task_id="classic", python_callable=load)
        operators.expand(op_kwargs=[{"day": "monday"}])
    assert {task.task_id: task.is_mapped for task in dag.tasks} == {"load": True, "classic": True}


def test_asynchronous_function_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(InvalidConfigurationError, match="is asynchronous"):
        DECORATOR(asynchronous)


def test_argument_of_the_decorator_by_position_is_refused_by_its_remedy() -> None:
    with pytest.raises(InvalidConfigurationError, match="give the arguments of the task by name, such as conn_id="):
        DECORATOR("spark_default")


def test_what_is_given_at_run_time_may_be_left_out_when_arguments_are_bound() -> None:
    def stage(day: str, spark: Any, checkpoint: Any, params: Any) -> None: ...

    signature = inspect.signature(stage_function(stage, {"op_args": ["monday"]}))
    assert signature.bind("monday", params={}).arguments == {"day": "monday", "params": {}}
