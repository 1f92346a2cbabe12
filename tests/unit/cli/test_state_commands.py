"""The state in checkpoints, by command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.cli import state_commands
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.job_savepoints import save_documents
from tests.unit.cli.conftest import Outcome
from tests.written_state import BACKENDS, FUNCTION, StatefulJob

Run = Callable[..., Outcome]


@dataclass
class Account:
    balance: Decimal
    day: date
    data: bytes


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatefulJob]:
    monkeypatch.setattr(state_commands, "storage_opener", lambda conn_id: CheckpointStorage.open)
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
    found = {row.pop("state"): row for row in json.loads(outcome.out)}
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
    assert len(json.loads(outcome.out)) == 3
    assert "more than 3 rows" in outcome.err
    outcome = run("state", "show", pointer, "tags", "--limit", "5", "--output", "json")
    assert sorted(row["value"] for row in json.loads(outcome.out)) == [[number] for number in range(5)]
    assert outcome.err == ""


def test_values_of_all_types_are_shown(job: StatefulJob, run: Run) -> None:
    job.state("ann", "account").update(Account(Decimal("1.5"), date(2026, 1, 2), b"\x01\xff"))
    pointer = job.save()
    [row] = json.loads(run("state", "show", pointer, "account", "--output", "json").out)
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
    assert json.loads(outcome.out) == [{"account": "bob", "change": "added", "before": None, "after": [2]}]
    outcome = run("diff", second, second, "tags", "--output", "json")
    assert (outcome.status, json.loads(outcome.out)) == (0, [])


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
    parts = [replace(document, uid=uid, operator_states=()) for uid in ("first",)] + [document]
    pointer = save_documents(job.storage, parts, f"file://{tmp_path}/savepoints")

    outcome = run("state", "show", pointer, "--output", "json")
    assert {row["function"] for row in json.loads(outcome.out)} == {f"stage/{FUNCTION}"}
    assert run("state", "show", pointer, "tags", "--uid", "stage").status == 0
    refused = run("state", "show", pointer, "tags")
    assert (refused.status, "'first', 'stage'" in refused.err) == (2, True)
    same = run("diff", pointer, pointer, "tags", "--uid", f"stage/{FUNCTION}")
    assert same.status == 0
