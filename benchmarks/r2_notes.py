"""Stage with a text for each key in state, which fails when a retry first reads the state."""

from __future__ import annotations

import base64
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.functions.contexts import RuntimeContext
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction
from benchmarks.keyed_state import distinct_keys

NOTE: ValueStateDescriptor[str] = ValueStateDescriptor("note", str)
ROWS_AT_ONCE = 250_000
ASKED = 100
"""Every 100th key is in the second increment."""


class Notes(KeyedProcessFunction[int, Any, Any]):
    """
    Store the texts of rows. At the first rows without texts, read their state, record the time and fail.

    :param first_work: File for the time.
    """

    def __init__(self, first_work: str) -> None:
        self._first_work = Path(first_work)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Register the state before the first rows."""
        runtime_context.get_state(NOTE)

    def process_batch(self, table: Any, context: Any) -> None:
        """Store the texts of distinct keys."""
        notes = table.column("note").combine_chunks()
        if notes.null_count == 0:
            context.state(NOTE).put(context.keys, notes)
            return
        found = context.state(NOTE).get(context.keys)
        # Only the first subtask records the time.
        with suppress(FileExistsError), self._first_work.open("x") as file:
            file.write(str(time.time()))
        raise RuntimeError(f"Planned: found the state of {len(found) - found.null_count} of {len(found)} keys.")


def write_input(folder: Path, keys: int, width: int) -> None:
    """Write two files: incompressible texts for all keys, and a subset of the keys without texts."""
    folder.mkdir(parents=True)
    ids, random = distinct_keys(keys), np.random.default_rng(0)
    schema = pa.schema([("id", pa.int64()), ("note", pa.string())])
    with pq.ParquetWriter(folder / "1-all.parquet", schema) as writer:
        for start in range(0, keys, ROWS_AT_ONCE):
            some = ids[start : start + ROWS_AT_ONCE]
            writer.write_table(pa.table([pa.array(some), _texts(random, len(some), width)], schema=schema))
    asked = ids[::ASKED]
    nothing = pa.nulls(len(asked), pa.string())
    pq.write_table(pa.table([pa.array(asked), nothing], schema=schema), folder / "2-asked.parquet")


def _texts(random: Any, count: int, width: int) -> Any:
    """Return random texts; ``width`` is a multiple of four."""
    data = base64.b64encode(random.bytes(count * width // 4 * 3))
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


def stage_over(files: Path, first_work: Path) -> Stage:
    """Return the stage with one increment per file."""
    source = ParquetSource(sorted(map(str, files.iterdir())), files_per_increment=1)
    return Stage("notes").source(source).key_by("id").process(Notes(str(first_work)))
