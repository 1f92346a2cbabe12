"""A stage with keyed state over the lines of orders, which can be made to fail anywhere."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.stage import Count, Max, Stage, Sum
from airflow_provider_statecheck.spark.stages.stage_run import StageRun
from airflow_provider_statecheck.testing.faults import FaultPlan
from tests.crash.pipeline import UID, open_attempt
from tests.crash.stage_functions import CountedSink, DriverKill, OrderedQuantity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a try needs is imported before the fork, not in each try.
for _module in ("pandas", "pyarrow.compute", "pyarrow.parquet", "sqlalchemy.dialects.sqlite"):
    import_module(_module)

JOB = "stage-crash"
COLUMNS = ("l_partkey", "l_suppkey", "l_orderkey", "l_linenumber", "l_quantity", "l_shipmode")
LINES = "part bigint, supplier bigint, number bigint, line int, quantity bigint, same bigint"
INLINE_BYTES = 256
"""So little that nearly all state is in files."""


@dataclass(slots=True)
class SharedPlan(FaultPlan):
    """Numbers the calls of several threads."""

    _counting: Any = field(default_factory=threading.RLock)

    @override
    def carry_out(self, name: str, call: Callable[[], Any], error: type[Exception]) -> Any:
        with self._counting:
            return FaultPlan.carry_out(self, name, call, error)


def run(spark: SparkSession, work: Path, plan: FaultPlan, command: dict[str, Any]) -> dict[str, Any]:
    """
    Run a try to its end.

    :param command: ``input`` and ``parallelism``; whether it ``adds_up`` behind a second key, or has an aggregate
        ``at_end`` and nothing else; an ``item`` at which the driver ends, early or ``late``; or the ``seconds`` after
        which it does.
    """
    if "seconds" in command:
        timer = threading.Timer(command["seconds"], os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    settings = DriverSettings(data_inline_threshold=INLINE_BYTES)
    attempt = open_attempt(work, plan, JOB, driver=settings)
    result = StageRun(spark, attempt, _stage(work, plan, command), settings).run()
    return {"increments": result.increments, "rows": result.rows}


def _stage(work: Path, plan: FaultPlan, command: dict[str, Any]) -> Stage:
    kill = None
    if "item" in command:
        kill = DriverKill(os.getpid(), tuple(command["item"]), is_late=bool(command.get("late")))
    source = ParquetSource(command["input"], files_per_increment=1, columns=COLUMNS)
    stage = Stage(UID, max_parallelism=16, parallelism=command["parallelism"]).source(source)
    if command.get("at_end"):
        quantity = Sum("l_linenumber" if command["reads_files"] else "cast(l_quantity as bigint)")
        stage = stage.key_by("l_partkey").aggregate(
            uid="totals", quantity=quantity, lines=Count(), last=Max("l_orderkey")
        )
        return stage.sink(CountedSink(str(work / "output"), plan, None))
    stage = stage.key_by("l_partkey", order_by=("l_orderkey", "l_linenumber"))
    stage = stage.process(OrderedQuantity(kill), uid="quantity", output=LINES)
    if command.get("adds_up"):
        stage = stage.key_by("supplier").aggregate(
            uid="totals", emit="changes", quantity=Sum("quantity"), lines=Count(), last=Max("number")
        )
    return stage.sink(CountedSink(str(work / "output"), plan, kill))
