"""State of an aggregate whose one job failed in its midst: readers find the sums, and the files parts of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.executor.split_task import RECORD_SUFFIX
from airflow_provider_statecheck.spark.stages.stage import Count, Stage, Sum
from airflow_provider_statecheck.spark.state_dataframes import read_state, write_savepoint
from airflow_provider_statecheck.state.reading.diff_states import diff_states
from airflow_provider_statecheck.storage.metadata_file import load_document
from tests.spark.stages.aggregate_cases import LocalRows
from tests.spark.stages.failing import LIMIT_SECONDS
from tests.spark.stages.stage_tries import StageTries

NO_INLINE = DriverSettings(data_inline_threshold=0)
FILES = [range(start, start + 400) for start in (0, 200, 600, 0)]
"""Keys of each file, each of which adds 1 to them."""


def sums(count: int) -> Counter[int]:
    """Return the sums after some files."""
    return Counter(key for keys in FILES[:count] for key in keys)


@dataclass(frozen=True)
class BrokenRows:
    """
    Spark function that fails when the tasks before it have written their records.

    :param records: Number of these tasks.
    """

    checkpoints: Path
    records: int
    earlier: frozenset[Path] = frozenset()
    """Records of earlier tries."""

    @classmethod
    def after(cls, checkpoints: Path, records: int) -> BrokenRows:
        """Return a function that fails after some records of the next try."""
        return cls(checkpoints, records, frozenset(checkpoints.rglob(f"*{RECORD_SUFFIX}")))

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Wait for the records, and fail."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            if len({*self.checkpoints.rglob(f"*{RECORD_SUFFIX}")} - self.earlier) >= self.records:
                raise RuntimeError("broken")
            time.sleep(0.05)
        yield from batches


def rows_of(broken: Mapping[int, BrokenRows], spark: Any, number: int) -> Any:
    """Return the rows of a file."""
    frame = spark.range(FILES[number].start, FILES[number].stop, 1, 1).selectExpr("id", "1L AS v")
    return frame.mapInArrow(broken[number], frame.schema) if number in broken else frame


def totals(tries: StageTries, broken: Mapping[int, BrokenRows] | None = None, parallelism: int = 2) -> Stage:
    source = LocalRows(list(range(len(FILES))), partial(rows_of, broken or {}))
    stage = Stage("stage", parallelism=parallelism, max_parallelism=16).source(source).key_by("id")
    return stage.aggregate(uid="totals", v=Sum("v"), n=Count()).sink(ParquetSink(str(tries.output)))


def failed_at(tries: StageTries, broken: int) -> str:
    """
    Let the stage fail at a file after two others, and return its newest checkpoint, which has parts of sums.

    The file directly before the broken one is not known to be complete.
    """
    rows = BrokenRows.after(tries.folder / "checkpoints", records=2)
    with pytest.raises(Exception, match="broken"):
        tries.run(totals(tries, {broken: rows}), NO_INLINE, num_retained=9)
    return tries.completed()[-1].location


@pytest.fixture
def checkpoints(tries: StageTries) -> tuple[str, str]:
    """Checkpoints after one file and after two."""
    return failed_at(tries, 2), failed_at(tries, 3)


def found_in(table: Any) -> dict[int, int]:
    return {row["id"]: row["value"]["v"] for row in table.to_pylist()}


def test_readers_add_the_parts_up(tries: StageTries, checkpoints: tuple[str, str]) -> None:
    [operator] = [
        o for o in load_document(tries.storage, tries.completed()[-1]).operator_states if o.uid.endswith("ls")
    ]
    handles = [handle for each in operator.subtask_states.values() for handle in each.managed_keyed]
    assert len(handles) == 2 * operator.parallelism, "each subtask has parts of two files"
    for count, pointer in zip((1, 2), checkpoints, strict=True):
        rows = read_state(tries.spark, pointer, "aggregates").collect()
        assert {row.id: row.value.v for row in rows} == sums(count)
        assert all(row.value.n == row.value.v for row in rows)


def test_differences_are_those_of_the_sums(checkpoints: tuple[str, str]) -> None:
    rows = diff_states(*checkpoints, "aggregates").read_all().to_pylist()
    before, after = sums(1), sums(2)
    assert {row["id"]: row["after"]["v"] for row in rows} == {
        key: value for key, value in after.items() if before.get(key) != value
    }
    assert {row["id"]: row["before"]["v"] for row in rows if row["before"]} == {
        key: before[key] for key in after if before.get(key) not in (None, after[key])
    }
    assert diff_states(checkpoints[1], checkpoints[1], "aggregates").read_all().num_rows == 0


def test_savepoint_has_the_sums_as_parquet_and_a_stage_goes_on_from_it(
    tries: StageTries, checkpoints: tuple[str, str]
) -> None:
    pointer = tries.savepoint()
    files = Path(pointer.removeprefix("file://")).glob("state/stage_totals-*/keyed/aggregates-*/*.parquet")
    assert found_in(pa.concat_tables(map(pq.read_table, files))) == sums(2)
    tries.run(totals(tries, parallelism=3), **tries.from_savepoint(pointer))
    assert {row["id"]: row["v"] for row in tries.rows()} == sums(4)


def test_savepoint_that_edits_state_in_parts_has_the_sums(tries: StageTries, checkpoints: tuple[str, str]) -> None:
    state = read_state(tries.spark, checkpoints[1], "aggregates")
    edited = state.where("id < 200").selectExpr("id", "named_struct('v', value.v + 1000, 'n', value.n) AS value")
    target = f"{tries.storage.base_uri}/savepoints"
    pointer = write_savepoint(
        edited, "aggregates", stage="stage", function="totals", target=target, base=checkpoints[1]
    )
    found = {row.id: row.value.v for row in read_state(tries.spark, pointer, "aggregates").collect()}
    assert found == {key: value + 1000 for key, value in sums(2).items() if key < 200}
