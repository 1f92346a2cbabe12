"""
A stage whose state is read as data at any of its checkpoints, and one that begins from state that was given as data.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.gateway.time_travel import find_checkpoint
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.stages.stage import Sum
from airflow_provider_statecheck.spark.state_dataframes import read_state, write_savepoint
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.reading.diff_states import diff_states
from tests.soak import rest_in_soak
from tests.spark.stages.functions import RunningBalance
from tests.spark.stages.stage_tries import JOB, StageTries
from tests.spark.stages.test_stage import PAYMENTS, balances, from_files, payments, running, running_stage

BALANCE = ValueStateDescriptor("balance", int, 0)


@pytest.mark.parametrize("backend", rest_in_soak(["arrow", "hashmap"], "arrow"))
def test_state_is_read_edited_compared_and_gone_on_from(tries: StageTries, backend: str) -> None:
    parts = payments()
    tries.write_input(*parts[:-1])
    tries.run(running_stage(tries, RunningBalance(), parallelism=3, state_backend=backend), num_retained=5)
    pointer = find_checkpoint(JOB, "stage", metadata=tries.coordinator)
    now = {row.account: row.value for row in read_state(tries.spark, pointer, "balance").collect()}
    assert now == balances(parts[:-1])
    purposes = read_state(tries.spark, pointer, "purposes")
    assert sum(row.map_value for row in purposes.collect()) == (len(parts) - 1) * PAYMENTS

    first = find_checkpoint(JOB, "stage", metadata=tries.coordinator, checkpoint_id=tries.completed()[0].checkpoint_id)
    changed = {row["account"] for row in diff_states(first, pointer, "balance").read_all().to_pylist()}
    early = balances(parts[:1])
    assert changed == {account for account, value in now.items() if early.get(account) != value}

    edited = read_state(tries.spark, pointer, "balance").selectExpr("account", "value + 1000 as value")
    target = f"{tries.storage.base_uri}/savepoints"
    savepoint = write_savepoint(edited, "balance", stage="stage", function="balance", target=target, base=pointer)
    tries.write_input(parts[-1])
    seen = len(tries.rows())
    result = tries.run(
        running_stage(tries, RunningBalance(), parallelism=3, state_backend=backend), **tries.from_savepoint(savepoint)
    )
    assert result.rows == PAYMENTS
    expected = [row | {"balance": row["balance"] + 1000} for row in running(parts) if row["number"] >= seen]
    assert [row for row in tries.rows() if row["number"] >= seen] == expected


@pytest.mark.soak
@pytest.mark.parametrize("backend", rest_in_soak(["arrow", "hashmap"], "arrow"))
def test_stage_begins_from_balances_that_were_computed_elsewhere(tries: StageTries, backend: str) -> None:
    old, *new = payments()
    known = tries.spark.createDataFrame(list(balances([old]).items()), "account string, value bigint")
    savepoint = write_savepoint(
        known,
        BALANCE,
        stage="stage",
        function="balance",
        key=["account"],
        max_parallelism=32,
        parallelism=5,
        target=f"{tries.storage.base_uri}/savepoints",
    )
    tries.write_input(*new)
    tries.run(
        running_stage(tries, RunningBalance(), parallelism=3, state_backend=backend), **tries.from_savepoint(savepoint)
    )
    assert tries.rows() == [row for row in running([old, *new]) if row["number"] >= PAYMENTS]


@pytest.mark.soak
def test_declared_aggregates_are_state_named_aggregates(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    totals = from_files(tries).key_by("account").aggregate(uid="totals", total=Sum("amount"))
    tries.run(totals.sink(ParquetSink(str(tries.output))))
    pointer = find_checkpoint(JOB, "stage", metadata=tries.coordinator)
    found = read_state(tries.spark, pointer, "aggregates").select("account", "value.total")
    assert {row.account: row.total for row in found.collect()} == dict(Counter(balances(parts)))


def test_rows_that_do_not_fit_are_told_in_one_line(tries: StageTries) -> None:
    twice = tries.spark.createDataFrame([("ann", 1), ("ann", 2)], "account string, value bigint")
    arguments: dict[str, Any] = {"stage": "stage", "function": "balance", "key": ["account"], "max_parallelism": 16}
    target = f"{tries.storage.base_uri}/savepoints"
    with pytest.raises(InvalidConfigurationError, match=r"1 row too many.*'ann'"):
        write_savepoint(twice, BALANCE, target=target, **arguments)
    assert not tries.storage.list_files(target)
