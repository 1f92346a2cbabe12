"""Queries of a job's state by its queryable name, by command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.cli import state_commands
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.queried_stage import QueriedStage
from tests.messages import ManualClock
from tests.sqlite_rows import new_engine
from tests.unit.cli.conftest import Outcome
from tests.written_state import BACKENDS, StatefulJob

Run = Callable[..., Outcome]
KEYS = KeySerializer((KeyField("shop", pa.string()), KeyField("value", pa.date32())))
OSLO = ("oslo", date(2026, 1, 31))


@dataclass
class Account:
    balance: Decimal
    data: bytes


DESCRIPTORS: list[Any] = [
    ValueStateDescriptor("account", Account, queryable_name="accounts"),
    ListStateDescriptor("tags", int, queryable_name="tags"),
    MapStateDescriptor("visits", int, str, queryable_name="visits"),
    MapStateDescriptor("prices", str, float, queryable_name="prices"),
]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueriedStage]:
    engine = new_engine(tmp_path / "state.db")
    store = SqlJobStore(engine, ManualClock())
    storage = CheckpointStorage.open((tmp_path / "base").as_uri())
    written = StatefulJob(storage, BACKENDS["arrow"](), DESCRIPTORS, job_name="sales", keys=KEYS)
    monkeypatch.setattr(state_commands, "airflow_gateway", lambda conn_id: AttemptCoordinator(store))
    monkeypatch.setattr(state_commands, "storage_opener", lambda conn_id: CheckpointStorage.open)
    stage = QueriedStage(store, (written,), num_retained=2)
    stage.begin()
    stage.put("account", {OSLO: Account(Decimal("1.5"), b"\x01\xff")})
    stage.state(OSLO, "tags").add_all([1, 2])
    stage.state(OSLO, "visits").put_all({7: "ann", 8: None})
    stage.state(OSLO, "prices").put("pear", float("inf"))
    stage.checkpoint()
    yield stage
    stage.close()
    engine.dispose()


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.status == 0, outcome.err
    found: list[dict[str, Any]] = json.loads(outcome.out)
    return found


def test_a_value_is_shown_with_its_key_and_checkpoint(stage: QueriedStage, run: Run) -> None:
    [row] = rows(run("state", "get", "sales", "accounts", "oslo", "2026-01-31", "-o", "json"))
    assert row.pop("completed_at") is not None
    assert row == {
        "shop": "oslo",
        "key_value": "2026-01-31",
        "value": {"balance": "1.500000000000000000", "data": "Af8="},
        "checkpoint": 1,
    }
    for output in ("table", "plain", "yaml"):
        assert "oslo" in run("state", "get", "sales", "accounts", "oslo", "2026-01-31", "-o", output).out


def test_a_list_is_one_row_and_a_map_a_row_for_each_entry(stage: QueriedStage, run: Run) -> None:
    key = ("oslo", "2026-01-31", "-o", "json")
    assert [row["value"] for row in rows(run("state", "get", "sales", "tags", *key))] == [[1, 2]]
    visits = rows(run("state", "get", "sales", "visits", *key))
    assert [(row["map_key"], row["map_value"]) for row in visits] == [(7, "ann"), (8, None)]
    prices = rows(run("state", "get", "sales", "prices", *key))
    assert [(row["map_key"], row["map_value"]) for row in prices] == [("pear", "Infinity")]


def test_one_entry_of_a_map_is_its_value(stage: QueriedStage, run: Run) -> None:
    key = ("oslo", "2026-01-31", "-o", "json", "--user-key")
    assert [row["value"] for row in rows(run("state", "get", "sales", "visits", *key, "7"))] == ["ann"]
    assert run("state", "get", "sales", "visits", *key, "9").status == 2


def test_an_earlier_checkpoint_is_named_in_three_ways(stage: QueriedStage, run: Run) -> None:
    before = stage.pointer(1)
    stage.state(OSLO, "tags").add(3)
    stage.checkpoint()
    command = ("state", "get", "sales", "tags", "oslo", "2026-01-31", "-o", "json")
    assert [row["value"] for row in rows(run(*command))] == [[1, 2, 3]]
    for earlier in (("--checkpoint", "1"), ("--pointer", before)):
        assert [row["value"] for row in rows(run(*command, *earlier))] == [[1, 2]]
    assert [row["checkpoint"] for row in rows(run(*command, "--at", "2100-01-01T00:00:00+00:00"))] == [2]
    refused = run(*command, "--checkpoint", "1", "--pointer", before)
    assert (refused.status, "pass only one" in refused.err) == (2, True)


def test_names_are_listed_with_their_types(stage: QueriedStage, run: Run) -> None:
    found = {row.pop("name"): row for row in rows(run("state", "names", stage.job_id, "-o", "json"))}
    assert set(found) == {"accounts", "tags", "visits", "prices"}
    visits = found["visits"]
    assert (visits["kind"], visits["type"], visits["key"]) == ("map", "int64 to string", ["shop string", "value date"])
    assert (visits["checkpoint"], visits["refused"], visits["expires"]) == (1, None, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "tags", "oslo", "2026-01-31"), "There is no job 'nowhere'"),
        (("sales", "other", "oslo", "2026-01-31"), "'tags'"),
        (("sales", "tags", "bergen", "2026-01-31"), "found none"),
        (("sales", "tags", "oslo", "2026-01-31", "--namespace", "eu"), "another namespace"),
        (("sales", "tags", "oslo"), "shop, value"),
        (("sales", "tags", "oslo", "today"), "a date such as"),
        (("sales", "tags", "oslo", "2026-01-31", "--checkpoint", "9"), "9"),
        (("sales", "tags", "oslo", "2026-01-31", "--user-key", "1"), "no user key"),
    ],
)
def test_what_is_not_there_or_does_not_fit_is_wrong_usage(
    stage: QueriedStage, run: Run, arguments: tuple[str, ...], said: str
) -> None:
    outcome = run("state", "get", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert said in outcome.err


def test_a_time_without_a_zone_is_refused(stage: QueriedStage, run: Run) -> None:
    assert run("state", "names", "sales", "--at", "2026-01-31T12:00:00").status == 2
