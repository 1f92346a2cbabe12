"""Savepoints of stages as Parquet: other tools read them, and a stage goes on from them with any backend."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import duckdb
import polars
import pytest

from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from tests.messages import make_owner
from tests.soak import rest_in_soak
from tests.spark.stages.functions import RunningBalance
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_stage import balances, payments, running_stage


def files_of(pointer: str, name: str) -> list[str]:
    found = Path(pointer.removeprefix("file://")).glob(f"state/stage_balance-*/keyed/{name}-*/*.parquet")
    return sorted(map(str, found))


def last_balances(tries: StageTries) -> dict[str, int]:
    last: dict[str, tuple[int, int]] = {}
    for row in tries.rows():
        last[row["account"]] = max(last.get(row["account"], (-1, 0)), (row["number"], row["balance"]))
    return {account: balance for account, (_, balance) in last.items()}


@pytest.mark.parametrize("backend", rest_in_soak(["arrow", "hashmap"], "arrow"))
def test_tools_read_the_savepoint_of_a_stage(tries: StageTries, backend: str) -> None:
    parts = payments()
    tries.write_input(*parts)
    tries.run(running_stage(tries, RunningBalance(), state_backend=backend))
    files, expected = files_of(tries.savepoint(), "balance"), balances(parts)
    with_spark = tries.spark.read.parquet(*files)
    assert {row.account: row.value for row in with_spark.collect()} == expected
    with duckdb.connect() as connection:
        assert dict(connection.execute(f"SELECT account, value FROM read_parquet({files})").fetchall()) == expected
    assert dict(polars.read_parquet(files).select("account", "value").iter_rows()) == expected
    assert sum(polars.read_parquet(files_of(tries.savepoint(), "purposes"))["map_value"]) == sum(
        len(part["amount"]) for part in parts
    )


@pytest.mark.soak
@pytest.mark.parametrize(
    ("backend", "other", "mode"), [("arrow", "hashmap", RestoreMode.NO_CLAIM), ("hashmap", "arrow", RestoreMode.CLAIM)]
)
def test_another_backend_goes_on_from_the_savepoint_of_a_stage(
    tries: StageTries, backend: str, other: str, mode: RestoreMode
) -> None:
    parts = payments()
    tries.write_input(*parts[:-1])
    tries.run(running_stage(tries, RunningBalance(), parallelism=2, state_backend=backend))
    pointer = tries.savepoint()
    tries.write_input(parts[-1])
    stage = running_stage(tries, RunningBalance(), parallelism=3, state_backend=other)
    tries.run(stage, **tries.from_savepoint(pointer, mode=mode))
    assert last_balances(tries) == balances(parts)


@pytest.mark.soak
@pytest.mark.parametrize("backends", [("hashmap", "arrow"), pytest.param(("arrow", "hashmap"), marks=pytest.mark.soak)])
def test_another_backend_goes_on_in_the_next_run(tries: StageTries, backends: tuple[str, ...]) -> None:
    parts = payments()
    for number, (backend, part) in enumerate(zip(cycle(backends), parts, strict=False)):
        tries.write_input(part)
        stage = running_stage(tries, RunningBalance(), parallelism=number + 1, state_backend=backend)
        tries.run(stage, owner=make_owner(run_key=f"run {number}"))
    assert last_balances(tries) == balances(parts)
