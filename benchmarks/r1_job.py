"""Arguments of the submitted jobs of R1 and R3: an immediate retry, and a mark at the start of each try."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from benchmarks.r1_marks import TRY, mark
from benchmarks.spark_side import CONF

FILES, OUTPUT, MARKS = "BENCH_FILES", "BENCH_OUTPUT", "BENCH_MARKS"
"""Environment variables of the Dags."""
_OF_THE_OPERATOR = ("spark.master", "spark.driver.memory")


def job_arguments(**conf: str) -> dict[str, Any]:
    """
    Return the arguments of an operator of Spark.

    :param conf: Further settings of Spark.
    """
    return {
        "task_id": "job",
        "application_args": [os.environ[name] for name in (FILES, OUTPUT, MARKS)],
        "conf": {name: value for name, value in CONF.items() if name not in _OF_THE_OPERATOR} | conf,
        "driver_memory": CONF["spark.driver.memory"],
        "retries": 1,
        "retry_delay": timedelta(0),
        "pre_execute": _begin_try,
    }


def _begin_try(context: Any) -> None:
    mark(os.environ[MARKS], TRY)
