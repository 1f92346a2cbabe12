"""A stage with state from one Delta table to another, over several runs."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource
from airflow_provider_statecheck.spark.stages.stage import Stage
from tests.messages import make_owner
from tests.spark.stages.functions import RunningBalance
from tests.spark.stages.stage_tries import StageTries

OUTPUT = "account string, number bigint, balance bigint"


def payments(*numbers: int) -> pa.Table:
    accounts = [f"account {number % 2}" for number in numbers]
    return pa.table(
        {"account": accounts, "number": list(numbers), "amount": list(numbers), "purpose": ["rent"] * len(numbers)}
    )


def test_each_run_reads_what_was_added_and_goes_on_with_the_state_of_the_runs_before(tries: StageTries) -> None:
    source, target = str(tries.input), str(tries.output)
    stage = Stage("stage", max_parallelism=16, parallelism=2).source(DeltaSource(source, files_per_increment=1))
    stage = stage.key_by("account", order_by="number").process(RunningBalance(), output=OUTPUT)
    stage = stage.sink(DeltaSink(target, partition_by=["account"]))

    write_deltalake(source, payments(1, 2))
    write_deltalake(source, payments(3, 4), mode="append")
    tries.run(stage, owner=make_owner(run_key="monday", run_id="monday"))
    assert balances(target) == [1, 2, 4, 6]
    write_deltalake(source, payments(5, 6), mode="append")
    tries.run(stage, owner=make_owner(run_key="tuesday", run_id="tuesday"))
    assert balances(target) == [1, 2, 4, 6, 9, 12]
    before = DeltaTable(target).version()
    tries.run(stage, owner=make_owner(run_key="wednesday", run_id="wednesday"))
    assert balances(target) == [1, 2, 4, 6, 9, 12]
    assert DeltaTable(target).version() == before + 1  # the attempt has begun, and had nothing to commit


def balances(target: str) -> list[int]:
    rows = pa.table(DeltaTable(target).to_pyarrow_table()).sort_by("number")
    assert rows.column("account").to_pylist() == [
        f"account {number % 2}" for number in rows.column("number").to_pylist()
    ]
    found: list[int] = rows.column("balance").to_pylist()
    return found
