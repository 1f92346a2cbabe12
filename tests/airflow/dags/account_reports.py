"""What the stages of the pipeline do, as a module beside its Dags, where Spark's tasks have to find it too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow_provider_statecheck import (
    Count,
    KeyedProcessFunction,
    ParquetSink,
    ParquetSource,
    Stage,
    StageOutputSource,
    Sum,
    ValueStateDescriptor,
)


class Balance(KeyedProcessFunction[str, Any, Any]):
    """Gives the balance after each payment; waits at gates, and is wrong where a file says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, runtime_context: Any) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, 0))

    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        self._pass_gate(value.number)
        balance = self.balance.value() + (1000 if (self.folder / "wrong").exists() else 1)
        self.balance.update(balance)
        yield value.account, value.number, balance

    def _pass_gate(self, number: int) -> None:
        gate = self.folder / f"gate-{number}"
        if gate.is_fifo():
            (self.folder / "reached").write_text(str(number))
            gate.read_text()


def load_stage(folder: Path, output: Path, country: str) -> Stage:
    """Return the stage that copies the payments of a country."""
    source = ParquetSource(f"{folder}/input/{country}", files_per_increment=1)
    return Stage("load").source(source).sink(ParquetSink(f"{output}/payments"))


def report_stage(folder: Path, output: Path) -> Stage:
    """Return the stage that reads what the other one has written."""
    source = StageOutputSource(f"{output}/payments", checkpoints_per_increment=1)
    keyed = Stage("report", max_parallelism=4, parallelism=1).source(source).key_by("account", order_by="number")
    balances = keyed.process(Balance(folder), uid="balance", output="account string, number bigint, balance bigint")
    return balances.sink(ParquetSink(f"{output}/report"))


def audit_stage(folder: Path, output: Path) -> Stage:
    """Return the stage that counts all payments."""
    source = ParquetSource([f"{folder}/input/de", f"{folder}/input/fr"])
    counted = Stage("audit", max_parallelism=4, parallelism=1).source(source).key_by("account")
    return counted.aggregate(n=Count(), total=Sum("number"), emit="changes").sink(ParquetSink(f"{output}/audit"))
