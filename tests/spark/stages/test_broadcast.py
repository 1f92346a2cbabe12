"""
A second source, whose rows each subtask of a keyed function sees first, through failures, runs and other parallelisms.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.stages import broadcasts
from airflow_provider_statecheck.spark.stages.executor.elements import PackedRows
from airflow_provider_statecheck.spark.stages.stage import Stage
from tests.messages import make_owner
from tests.spark.stages.functions import RATES, ConvertedBalance
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_stage import PAYMENTS, RUNNING, payments

NEXT_RUN = make_owner(run_key="2026-01-02")


def write_rates(tries: StageTries, name: str, **rates: int) -> None:
    folder = tries.folder / "rates"
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"purpose": list(rates), "rate": list(rates.values())}), folder / f"{name}.parquet")


def converting(tries: StageTries, source: Any = None, *, fails_at: int = -1, parallelism: int = 2) -> Stage:
    payments_source = source or ParquetSource(str(tries.input), files_per_increment=1)
    keyed = (
        Stage("stage", max_parallelism=16, parallelism=parallelism)
        .source(payments_source)
        .key_by("account", order_by="number")
    )
    keyed = keyed.broadcast(ParquetSource(str(tries.folder / "rates")), RATES)
    function = ConvertedBalance(tries.folder / "failed", fails_at)
    return keyed.process(function, uid="balance", output=RUNNING).sink(ParquetSink(str(tries.output)))


def converted(tries: StageTries, rates: dict[str, int]) -> list[dict[str, Any]]:
    """Return what plain Spark makes of all payments at once."""
    spark = tries.spark
    spark.read.parquet(str(tries.input)).createOrReplaceTempView("paid")
    cases = " ".join(f"when '{purpose}' then {rate}" for purpose, rate in rates.items())
    window = "over (partition by account order by number)"
    frame = spark.sql(f"select account, number, sum(amount * case purpose {cases} end) {window} as balance from paid")
    return sorted((row.asDict() for row in frame.collect()), key=repr)


def test_each_subtask_sees_the_broadcast_rows_once_through_a_failure_and_a_rescale(tries: StageTries) -> None:
    write_rates(tries, "first", rent=2)
    write_rates(tries, "second", food=3, rent=5)
    tries.write_input(*payments())
    with pytest.raises(Exception, match="planned"):
        tries.run(converting(tries, fails_at=2 * PAYMENTS + 7))
    tries.run(converting(tries, parallelism=3))
    assert tries.rows() == converted(tries, {"rent": 7, "food": 3})
    uids = {state.uid: state.parallelism for state in tries.document().operator_states}
    assert uids["stage/balance#broadcast"] == 1
    assert uids["stage/balance"] == 3


@pytest.mark.soak
def test_rows_that_another_run_finds_change_the_state_of_the_runs_before(tries: StageTries) -> None:
    write_rates(tries, "first", rent=2, food=3)
    tries.write_input(*payments())
    tries.run(converting(tries))
    before = converted(tries, {"rent": 2, "food": 3})
    assert tries.rows() == before
    write_rates(tries, "second", food=10)
    tries.write_input({"account": ["a new one"], "number": [1000], "amount": [1], "purpose": ["food"]})
    tries.run(converting(tries, parallelism=1), owner=NEXT_RUN)
    assert tries.rows() == sorted([*before, {"account": "a new one", "number": 1000, "balance": 13}], key=repr)


@pytest.mark.soak
def test_broadcast_rows_of_all_inputs_together_have_a_limit(tries: StageTries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "LARGEST_BYTES", 30_000)
    source, partitions = DataFrameSource([1000], lambda spark, rows: spark.range(0, rows, 1, 4)), []

    def read(frame: Any) -> Any:
        for row in frame.toLocalIterator():
            partitions.append(row)
            yield row

    opened = [source.open(tries.spark) for _ in range(4)]
    found = broadcasts.Broadcasts({f"stage/{place}": each for place, each in enumerate(opened[:2])}).rows(read)
    assert sum(len(PackedRows.rows_of(packed)) for each in found.values() for packed in each) == 2000
    partitions.clear()
    with pytest.raises(UnsupportedStateError, match=r"of a stage together, .* found more in that of 'stage/3'"):
        broadcasts.Broadcasts(
            {
                f"stage/{place}": each
                for place, each in enumerate([*opened[2:], source.open(tries.spark), source.open(tries.spark)])
            }
        ).rows(read)
    assert len(partitions) < 16


@pytest.mark.soak
@pytest.mark.parametrize("column", ["1 as `__statecheck_control`", "interval '1' month as m", "1 as a, 2 as a"])
def test_broadcast_columns_that_functions_cannot_have_are_refused(tries: StageTries, column: str) -> None:
    source = DataFrameSource([1], lambda spark, _: spark.sql(f"select {column}"))
    inputs = broadcasts.Broadcasts({"stage/balance": source.open(tries.spark)})
    with pytest.raises((InvalidConfigurationError, UnsupportedStateError), match="found"):
        inputs.rows(lambda frame: frame.collect())


def _paid(spark: Any, number: int) -> Any:
    rows = spark.createDataFrame(
        [("a", number, 5, "rent")], "account string, number bigint, amount bigint, purpose string"
    )
    return rows if number else rows.limit(0)


@pytest.mark.soak
def test_subtasks_without_rows_in_the_first_increment_see_the_broadcast_rows(tries: StageTries) -> None:
    write_rates(tries, "first", rent=2)
    tries.run(converting(tries, DataFrameSource([0, 1, 2], _paid)))
    assert [row["balance"] for row in tries.rows()] == [10, 20]


@pytest.mark.soak
def test_savepoint_gives_the_broadcast_state_to_another_job(tries: StageTries) -> None:
    write_rates(tries, "first", rent=2, food=3)
    first, *others = payments()
    tries.write_input(first)
    tries.run(converting(tries))
    pointer = tries.savepoint()
    tries.write_input(*others)
    tries.run(converting(tries, parallelism=5), **tries.from_savepoint(pointer))
    assert tries.rows() == converted(tries, {"rent": 2, "food": 3})
