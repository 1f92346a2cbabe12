"""
Output that the target of a sink cannot hold ends a stage before its checkpoint, with an error that is not retried.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck import DataFrameSource, DeltaSink, ParquetSink, SqlSink, Stage, run_stage
from airflow_provider_statecheck.exceptions import A_RETRY_CANNOT_HELP, UnfitOutputError
from tests.soak import rest_in_soak

ROWS = "select id, case id when 2 then date'20221-03-01' else date'2024-01-01' end day from range(4)"


def sink_of(kind: str, folder: Path) -> Any:
    if kind == "parquet":
        return ParquetSink(folder / "out", partition_by=["day"])
    if kind == "delta":
        return DeltaSink(folder / "out")
    return SqlSink(f"sqlite:///{folder}/rows.db", "rows", staging=str(folder / "staging"))


@pytest.mark.parametrize("kind", rest_in_soak(("sql", "parquet", "delta"), "sql"))
def test_a_day_that_the_target_cannot_hold_ends_each_try_before_a_checkpoint_until_the_rows_are_repaired(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    def run(rows: str) -> int:
        stage = Stage("stage").source(DataFrameSource([1], lambda session, _: session.sql(rows).coalesce(1)))
        places: dict[str, Any] = {
            "checkpoint_dir": str(tmp_path / "checkpoints"),
            "metadata": f"sqlite:///{tmp_path}/state.db",
        }
        return run_stage(spark, stage.sink(sink_of(kind, tmp_path)), job="job", **places).rows

    for _ in range(2):
        with pytest.raises(
            UnfitOutputError, match="column 'day' has 1 value outside of the years 1 to 9999"
        ) as refused:
            run(ROWS)
        assert isinstance(refused.value, A_RETRY_CANNOT_HELP)
        assert "20221" not in str(refused.value)
    with sqlite3.connect(tmp_path / "state.db") as database:
        assert database.execute("select count(*) from statecheck_checkpoint where status = 'completed'").fetchone() == (
            0,
        )
    assert run(ROWS.replace("20221", "2022")) == 4
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if name.endswith(".staged")]
