"""What a user would submit, with trouble in its first run."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import airflow_provider_statecheck
from airflow_provider_statecheck import StageContext

WORK, TROUBLE = Path(sys.argv[1]), sys.argv[2]
LIMIT_SECONDS = 200
PIECES = {"a": 4, "b": 5, "c": 1}
"""Jobs of Spark for each item. Trouble comes before the last one, so in b when four fifths of all work are done."""


class Completed(logging.Handler):
    """Notes the checkpoint with the first item, which may complete while the second one is worked on."""

    def __init__(self) -> None:
        super().__init__()
        self.has_an_item = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Look for the line of that checkpoint."""
        if "completed in" in record.getMessage() and "1 finished item" in record.getMessage():
            self.has_an_item.set()


completed = Completed()


def note(what: str, name: str = "computed.log") -> None:
    with (WORK / name).open("a") as log:
        log.write(f"{what}\n")


def computed(item: str, source: Any) -> int:
    """Return the number of rows of a source, counted in each piece of the work, whose seconds are noted."""
    rows = 0
    for piece in range(PIECES[item]):
        if piece == PIECES[item] - 1:
            trouble(item)
        began = time.monotonic()
        rows = source.count()
        note(f"item {item}: {piece} {time.monotonic() - began:.3f}", "pieces.log")
    return rows


def wait_for(name: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (WORK / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.05)


def trouble(item: str) -> None:
    """Go wrong in the way that the arguments name, once."""
    once = WORK / f"trouble-{item}"
    if once.exists():
        return
    if TROUBLE == "wait":
        once.with_suffix(".part").write_text(str(os.getpid()))
        once.with_suffix(".part").replace(once)
        wait_for(f"go-{item}")
    elif item == "b" and TROUBLE != "none":
        once.touch()
        assert completed.has_an_item.wait(LIMIT_SECONDS)
        if TROUBLE == "kill driver":
            os.kill(os.getpid(), signal.SIGKILL)
        if TROUBLE == "kill jvm":
            os.kill(os.getppid(), signal.SIGKILL)
        raise RuntimeError("planned")


def seen_by_worker(_: int) -> str | None:
    return os.environ.get("SPARK_STATECHECK_HANDOVER")


def main() -> None:
    spark: Any = SparkSession.builder.getOrCreate()
    (WORK / "package").write_text(airflow_provider_statecheck.__file__)
    (WORK / "page").write_text(spark.sparkContext.uiWebUrl or "")
    logging.getLogger("airflow_provider_statecheck").addHandler(completed)
    logging.getLogger("airflow_provider_statecheck").setLevel(logging.INFO)
    with StageContext.current(spark) as checkpoint:
        assert StageContext.current() is checkpoint
        assert "SPARK_STATECHECK_HANDOVER" not in os.environ
        assert not spark.sparkContext.parallelize([0], 1).map(seen_by_worker).collect()[0]

        def numbers() -> Any:
            note("numbers")
            return spark.range(100, numPartitions=2)

        source = checkpoint.snapshot("numbers", numbers)
        for item in checkpoint.each("items", ["a", "b", "c"]):
            note(f"item {item}")
            checkpoint.state[item] = computed(item, source)
    (WORK / "result").write_text(str(sum(checkpoint.state.values())))
    spark.stop()


main()
