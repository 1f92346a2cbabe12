"""
A script with steps for ``spark-submit``, which fails at its second item when it runs for the first time.

Its arguments are a directory, and the URI and the options of another storage for its checkpoints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_statecheck import StageContext

WORK, *STORE = Path(sys.argv[1]), *sys.argv[2:]
BASE, OPTIONS = (STORE[0], json.loads(STORE[1])) if STORE else (str(WORK / "checkpoints"), None)


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
    spark, job="steps", checkpoint_dir=BASE, storage_options=OPTIONS, metadata=f"sqlite:///{WORK}/state.db"
) as checkpoint:
    found = checkpoint.snapshot("numbers", numbers)
    for item in checkpoint.each("items", ["a", "b"]):
        note(f"item {item}")
        if item == "b":
            fail_once()
        checkpoint.state[item] = found.count()
    note(f"result {sum(checkpoint.state.values())}")
assert not {"airflow", "tenacity", "httpx", "s3fs"} & set(sys.modules)
