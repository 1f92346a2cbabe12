"""The one pipeline that runs everywhere, and dies once in its second half."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.matrix.parts import run_parts

ITEMS = ["a", "b", "c"]
RESUMED = ["orders", "totals", "a", "b", "b", "c"]
"""What is computed over both tries; only the item that was interrupted comes twice."""
RESULT = {"a": 20358, "b": 20475, "c": 20242, "totals": 42}


def run_stage(spark: Any, checkpoint: Any, work: Path) -> None:
    """Compute the result of the pipeline; the driver is killed at item ``b`` of the first try."""
    if (work / "in_parts").exists():
        run_parts(spark, checkpoint, work)
        return
    (work / "master").write_text(spark.conf.get("spark.master"))
    orders = checkpoint.snapshot("orders", lambda: _orders(spark, work))
    totals = checkpoint.snapshot("totals", lambda: _totals(orders, work))
    for item in checkpoint.each("items", ITEMS):
        _note(work, item)
        _die_once(work, item)
        checkpoint.state[item] = (
            totals.where(totals.customer % 3 == ITEMS.index(item)).groupBy().sum("total").first()[0]
        )
    (work / "result.txt").write_text(repr({**dict(checkpoint.state), "totals": totals.count()}))


def _orders(spark: Any, work: Path) -> Any:
    _note(work, "orders")
    return spark.range(0, 350, 1, 3).selectExpr(
        "id AS `order id`", "id % 42 AS customer", "CAST(id AS DECIMAL(12, 2)) AS price"
    )


def _totals(orders: Any, work: Path) -> Any:
    _note(work, "totals")
    return (
        orders.groupBy("customer").agg({"price": "sum"}).selectExpr("customer", "CAST(`sum(price)` AS LONG) AS total")
    )


def _note(work: Path, what: str) -> None:
    with (work / "computed.log").open("a") as log:
        log.write(f"{what}\n")


def _die_once(work: Path, item: str) -> None:
    mark, victim = work / "died", work / "victim"
    if item == "b" and not mark.exists():
        mark.touch()
        os.kill(int(victim.read_text()) if victim.exists() else os.getpid(), signal.SIGKILL)
