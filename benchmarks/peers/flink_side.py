"""Common parts of the peers on Flink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLUMNS = "l_suppkey bigint, l_partkey bigint, l_orderkey bigint, price double"
CHECKPOINT_INTERVAL = "1500ms"


def configuration(work: Path) -> dict[str, str]:
    """Return the settings: two slots, state on the heap, and about as many checkpoints as our side takes."""
    return {
        "parallelism.default": "2",
        "state.backend.type": "hashmap",
        "execution.checkpointing.interval": CHECKPOINT_INTERVAL,
        "execution.checkpointing.dir": work.as_uri(),
        "taskmanager.memory.process.size": "4g",
        "restart-strategy.type": "none",
    }


def create_source(tables: Any, files: str, name: str) -> None:
    """Create a table for the CSV files of a folder."""
    options = f"'connector'='filesystem', 'path'='{Path(files).as_uri()}', 'format'='csv'"
    tables.execute_sql(f"create temporary table {name} ({COLUMNS}) with ({options})")


def job_seconds(result: Any) -> float:
    """Wait for a job and return its reported run time in seconds, without the start of its cluster."""
    result.wait()
    finished = result.get_job_client().get_job_execution_result().result()
    return float(finished.get_net_runtime()) / 1000
