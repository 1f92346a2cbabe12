"""The state in checkpoints and queries of it by queryable names, by command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
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
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.queried_stage import QueriedStage
from tests.job_savepoints import save_documents
from tests.messages import ManualClock
from tests.sqlite_rows import new_engine
from tests.unit.cli.conftest import Run, rows
from tests.written_state import BACKENDS, FUNCTION, StatefulJob


@dataclass
class Account:
    balance: Decimal
    day: date
    data: bytes


@pytest.fixture
def job(tmp_path: Path) -> Iterator[StatefulJob]:
    descriptors: list[Any] = [
        ValueStateDescriptor("account", Account),
        ListStateDescriptor("tags", int),
        MapStateDescriptor("amounts", str, int, ttl=StateTtlConfig(timedelta(days=1))),
    ]
    made = StatefulJob(CheckpointStorage.open(tmp_path.as_uri()), BACKENDS["arrow"](), descriptors)
    made.open(2)
    yield made
    made.close()


def test_states_of_a_checkpoint_are_listed_with_their_types(job: StatefulJob, run: Run) -> None:
    outcome = run("state", "show", job.save(), "--output", "json")
    assert outcome.status == 0
    found = {row.pop("state"): row for row in rows(outcome)}
    key = "key(account string)"
    assert found == {
        "account": {
            "function": FUNCTION,
            "kind": "value",
            "key": key,
            "type": "record(balance decimal128(38, 18), day date32[day], data binary)",
            "expires": False,
        },
        "tags": {"function": FUNCTION, "kind": "list", "key": key, "type": "int64", "expires": False},
        "amounts": {"function": FUNCTION, "kind": "map", "key": key, "type": "string to int64", "expires": True},
    }


def test_rows_of_a_state_are_shown_up_to_the_limit(job: StatefulJob, run: Run) -> None:
    for number in range(5):
        job.state(f"key {number}", "tags").add(number)
    pointer = job.save()
    outcome = run("state", "show", pointer, "tags", "--limit", "3", "--output", "json")
    assert len(rows(outcome)) == 3
    assert "more than 3 rows" in outcome.err
    outcome = run("state", "show", pointer, "tags", "--limit", "5", "--output", "json")
    assert sorted(row["value"] for row in rows(outcome)) == [[number] for number in range(5)]
    assert outcome.err == ""


def test_values_of_all_types_are_shown(job: StatefulJob, run: Run) -> None:
    job.state("ann", "account").update(Account(Decimal("1.5"), date(2026, 1, 2), b"\x01\xff"))
    pointer = job.save()
    [row] = rows(run("state", "show", pointer, "account", "--output", "json"))
    assert Decimal(row["value"].pop("balance")) == Decimal("1.5")
    assert row == {"account": "ann", "value": {"day": "2026-01-02", "data": "Af8="}}
    for output in ("table", "plain", "yaml"):
        assert "2026-01-02" in run("state", "show", pointer, "account", "--output", output).out.replace("\n", "")


def test_difference_is_a_finding(job: StatefulJob, run: Run) -> None:
    job.state("ann", "tags").add(1)
    first = job.save()
    job.state("bob", "tags").add(2)
    second = job.save()
    outcome = run("diff", first, second, "tags", "--output", "json")
    assert outcome.status == 1
    assert rows(outcome) == [{"account": "bob", "change": "added", "before": None, "after": [2]}]
    outcome = run("diff", second, second, "tags", "--output", "json")
    assert (outcome.status, rows(outcome)) == (0, [])


def test_state_that_is_not_there_is_wrong_usage_and_names_those_that_are(job: StatefulJob, run: Run) -> None:
    outcome = run("state", "show", job.save(), "other")
    assert outcome.status == 2
    assert f"{FUNCTION}: tags" in outcome.err


def test_checkpoint_that_is_not_there_is_wrong_usage(job: StatefulJob, run: Run, tmp_path: Path) -> None:
    assert run("state", "show", f"file://{tmp_path}/none/chk-1").status == 2
    assert run("diff", job.save(), f"file://{tmp_path}/none/chk-1", "tags").status == 2


def test_states_of_a_savepoint_of_the_whole_job_are_listed_with_their_stages(
    job: StatefulJob, run: Run, tmp_path: Path
) -> None:
    job.state("a", "tags").add(1)
    document = CheckpointStates.load(job.save()).document
    members = [replace(document, uid=uid, operator_states=()) for uid in ("first",)] + [document]
    pointer = save_documents(job.storage, members, f"file://{tmp_path}/savepoints")

    outcome = run("state", "show", pointer, "--output", "json")
    assert {row["function"] for row in rows(outcome)} == {f"stage/{FUNCTION}"}
    assert run("state", "show", pointer, "tags", "--uid", "stage").status == 0
    refused = run("state", "show", pointer, "tags")
    assert (refused.status, "'first', 'stage'" in refused.err) == (2, True)
    same = run("diff", pointer, pointer, "tags", "--uid", f"stage/{FUNCTION}")
    assert same.status == 0


KEYS = KeySerializer((KeyField("shop", pa.string()), KeyField("value", pa.date32())))
OSLO = ("oslo", date(2026, 1, 31))


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
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", storage.base_uri)
    stage = QueriedStage(store, (written,), num_retained=2)
    stage.begin()
    stage.put("account", {OSLO: Account(Decimal("1.5"), date(2026, 1, 2), b"\x01\xff")})
    stage.state(OSLO, "tags").add_all([1, 2])
    stage.state(OSLO, "visits").put_all({7: "ann", 8: None})
    stage.state(OSLO, "prices").put("pear", float("inf"))
    stage.checkpoint()
    yield stage
    stage.close()
    engine.dispose()


def test_a_value_is_shown_with_its_key_and_checkpoint(stage: QueriedStage, run: Run) -> None:
    [row] = rows(run("state", "get", "sales", "accounts", "oslo", "2026-01-31", "-o", "json"))
    assert row.pop("completed_at") is not None
    assert row == {
        "shop": "oslo",
        "key_value": "2026-01-31",
        "value": {"balance": "1.500000000000000000", "day": "2026-01-02", "data": "Af8="},
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


@pytest.mark.parametrize(
    "command",
    [("state", "get", "sales", "accounts", "oslo", "2026-01-31"), ("state", "names", "sales"), ("show", "sales")],
)
def test_what_the_rows_of_a_job_name_is_opened_only_in_configured_locations(
    stage: QueriedStage, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    assert run(*command).status == 0
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", f"{tmp_path}/another")
    outcome = run(*command)
    assert "accounts" not in outcome.out
    # The names of a job are those of the checkpoints that can be read.
    assert command[1] == "names" or (outcome.status == 2 and "allowed_locations" in outcome.err)
    pointer = next(str(path.parent) for path in (tmp_path / "base").rglob("_metadata"))
    if command[0] == "state":
        assert run(*command, "--pointer", f"file://{pointer}").status == 0
