"""What the stages of the tests do, as a module beside the Dags, where Spark's tasks have to find it too."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_statecheck import (
    DataFrameSource,
    KeyedProcessFunction,
    ParquetSink,
    Stage,
    ValueStateDescriptor,
)

DAYS = (1, 2, 3, 4)
TROUBLED_DAY, TROUBLED_NUMBER = 3, 35
OUTPUT = "account string, number bigint, balance bigint"


def payments(folder: Path, spark: Any, day: int) -> Any:
    (folder / "driver").write_text(str(os.getpid()))
    with (folder / "computed.log").open("a") as log:
        log.write(f"day {day}\n")
    return spark.range(10 * day, 10 * day + 10, numPartitions=2).selectExpr(
        "id as number", "concat('a', id % 3) as account", "id % 5 as amount"
    )


def expected() -> list[tuple[str, int, int]]:
    """Return what the stage gives for all days."""
    balances: dict[str, int] = {}
    rows = []
    for number in range(10 * DAYS[0], 10 * DAYS[-1] + 10):
        account = f"a{number % 3}"
        balances[account] = balances.get(account, 0) + number % 5
        rows.append((account, number, balances[account]))
    return sorted(rows)


class Balance(KeyedProcessFunction[str, Any, Any]):
    """Gives the balance after each payment; goes wrong where it is told to."""

    def __init__(self, folder: Path, trouble: str | None) -> None:
        self.folder = folder
        self.trouble = trouble

    def open(self, runtime_context: Any) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, 0))

    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        if value.number == TROUBLED_NUMBER and self.trouble is not None:
            self._go_wrong()
        balance = self.balance.value() + value.amount
        self.balance.update(balance)
        yield value.account, value.number, balance

    def _go_wrong(self) -> None:
        (self.folder / "trouble").touch()
        if self.trouble == "raise":
            raise RuntimeError("planned")
        time.sleep(600)


def stage_in(folder: Path, trouble: str | None) -> Stage:
    """
    Return a stage that works in a folder, and goes wrong in the first try there, however often Spark repeats a task.
    """
    trouble = None if (folder / "trouble").exists() else trouble
    return (
        Stage("balances", max_parallelism=8, parallelism=2)
        .source(DataFrameSource(DAYS, partial(payments, folder)))
        .key_by("account", order_by="number")
        .process(Balance(folder, trouble), uid="balance", output=OUTPUT)
        .sink(ParquetSink(str(folder / "output")))
    )


def stage() -> Stage:
    """Return the stage as the environment wants it."""
    return stage_in(Path(os.environ["STAGE_WORK"]), os.environ.get("STAGE_TROUBLE"))
