"""A script with steps for ``spark-submit``, which fails at its second item when it runs for the first time."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_statecheck import StageContext

WORK = Path(sys.argv[1])


def note(what: str) -> None:
    with (WORK / "computed").open("a") as notes:
        notes.write(f"{what}\n")


def fail_once() -> None:
    if not (WORK / "failed").exists():
        (WORK / "failed").touch()
        raise RuntimeError("planned")


spark = SparkSession.builder.getOrCreate()


def numbers():
    note("numbers")
    return spark.range(100)


with StageContext.open(
    spark, job="steps", checkpoint_dir=str(WORK / "checkpoints"), metadata=f"sqlite:///{WORK}/state.db"
) as checkpoint:
    found = checkpoint.snapshot("numbers", numbers)
    for item in checkpoint.each("items", ["a", "b"]):
        note(f"item {item}")
        if item == "b":
            fail_once()
        checkpoint.state[item] = found.count()
    note(f"result {sum(checkpoint.state.values())}")
assert "airflow" not in sys.modules
