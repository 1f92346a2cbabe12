"""
What a user would submit to a cluster that reaches the checkpoint storage and nothing else.

Its argument is the control folder, as in ``dags/stages.py``: it notes there what it really computes, stops once at an
item with its processes' ids, and goes on when the folder tells it to.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_statecheck import StageContext

LIMIT_SECONDS = 1800
CONTROL = Path(sys.argv[1])


def note(what: str, name: str = "computed.log") -> None:
    with (CONTROL / name).open("a") as log:
        log.write(f"{what}\n")


def say(name: str, text: str) -> None:
    hidden = CONTROL / f".{name}"
    hidden.write_text(text)
    hidden.rename(CONTROL / name)


def stop_once(item: str) -> None:
    """Say where we are and wait for the release, in the first process that comes here."""
    if item != (CONTROL / "stops_at").read_text() or (CONTROL / "stopped.json").exists():
        return
    say("stopped.json", json.dumps(pids()))
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (CONTROL / "release").exists():
        assert time.monotonic() < deadline, "nobody has released this driver"
        time.sleep(0.05)


def pids() -> dict[str, int]:
    """Return the ids of the driver's processes; a submitted driver is the child of its JVM."""
    return {"driver": os.getpid(), "jvm": os.getppid()}


def devices() -> list[str]:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return [line.partition(":")[0].strip() for line in lines if ":" in line]


def work(spark: Any) -> None:
    def numbers() -> Any:
        note("numbers")
        return spark.range(100)

    def doubled() -> Any:
        note("doubled")
        return source.selectExpr("id * 2 AS id")

    with StageContext.current(spark) as checkpoint:
        source: Any = checkpoint.snapshot("numbers", numbers)
        rows: Any = checkpoint.snapshot("doubled", doubled)
        for item in checkpoint.each("items", ["a", "b", "c"]):
            note(f"item {item}")
            stop_once(item)
            [[total]] = rows.agg({"id": "sum"}).collect()
            checkpoint.state["rows"] = [*checkpoint.state.get("rows", []), [item, total]]
    note(json.dumps(checkpoint.state["rows"]), "output.log")


def main() -> None:
    session: Any = SparkSession.builder.getOrCreate()
    say("devices.json", json.dumps(devices()))
    try:
        work(session)
    except BaseException as error:
        say("error.txt", f"{type(error).__name__}: {error}")
        raise
    session.stop()


main()
