"""
A small stage with keyed state whose output goes to any sink, and whose driver can be made to end at any step.

The sink comes from a factory, ``module:function``, which gets the folder of the try and its plan::

    def make(work: Path, plan: FaultPlan) -> Sink: ...

A factory may count calls inside its sink by ``plan.carry_out("sink.<name>", call, error)``; each is then a step at
which the suite lets the driver end. The sink reaches Spark's tasks by pickle, so it must leave the plan on the driver.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import StageRun
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction
from airflow_provider_statecheck.testing.faults import FaultMode
from tests.crash.pipeline import UID, open_attempt
from tests.crash.sink_steps import SteppedSink, StepPlan, WriteKill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_statecheck.spark.connectors.sink import Sink
    from airflow_provider_statecheck.state.functions.contexts import RuntimeContext

JOB = "sink-crash"
OUTPUT = "part bigint, number bigint, total bigint, name string"
TOTAL: ValueStateDescriptor[int] = ValueStateDescriptor("total", int, 0)


class RunningTotal(KeyedProcessFunction[int, Any, Any]):
    """Gives after each row how much there was of its part so far, times a factor."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @override
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(TOTAL)

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        total = (self.total.value() or 0) + value.quantity
        self.total.update(total)
        yield value.part, value.number, total * self.factor, f"{value.part}-{value.number}"


def plan_of(command: dict[str, Any]) -> StepPlan:
    """Return where and how a try fails, if it does."""
    return StepPlan(
        step=command.get("step", ""),
        occurrence=command.get("occurrence", 1),
        mode=FaultMode(command.get("mode", "error")),
        pause_in=Path(command["work"]) if command.get("pauses") else None,
    )


def run(spark: SparkSession, work: Path, plan: StepPlan, command: dict[str, Any]) -> dict[str, Any]:
    """
    Run a try to its end.

    :param command: ``sink``, ``input`` and ``parallelism``; a ``factor`` for other output; ``cleared``, whose every new
        value is a fresh start; a ``row`` at which the driver ends while a task writes, or ``late``, when the task has
        staged its output.
    """
    stage = Stage(UID, max_parallelism=16, parallelism=command["parallelism"])
    stage = stage.source(ParquetSource(command["input"], files_per_increment=1))
    stage = stage.key_by("part", order_by="number").process(RunningTotal(command.get("factor", 1)), output=OUTPUT)
    attempt = open_attempt(
        work, plan, JOB, clear_marker=str(command.get("cleared", 0)), on_clear=OnClear.RESTART, num_retained=3
    )
    result = StageRun(spark, attempt, stage.sink(_sink(work, plan, command))).run()
    return {"increments": result.increments}


def _sink(work: Path, plan: StepPlan, command: dict[str, Any]) -> SteppedSink:
    module, _, function = command["sink"].partition(":")
    sink = cast("Sink", getattr(import_module(module), function)(work, plan))
    kill = None
    if "row" in command:
        kill = WriteKill(os.getpid(), command["row"], is_late=bool(command.get("late")))
    return SteppedSink(sink, plan, kill)
