"""The contents of checkpoints, by command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.state.progress import Iteration, Iterations, LoopProgress
from airflow_provider_statecheck.storage.stored_json import encode_state
from tests.job_savepoints import SAVEPOINT_ID, add_row, save_job
from tests.unit.cli.conftest import Run, rows
from tests.unit.written_stage import WrittenStage, local_path
from tests.written_snapshots import SnapshotJob, flip


def values_of_loops() -> dict[str, Any]:
    progress, iterations = LoopProgress(), Iterations()
    for item in range(5):
        progress.finish(((), "days"), f"day {item}")
    iterations.record(((), "ranks"), Iteration(4, is_converged=True))
    return {"values": encode_state({"cursor": 7}), "loops": progress.encode(), "iterations": iterations.encode()}


def test_contents_of_the_latest_checkpoint_of_each_operator_are_listed(stage: WrittenStage, run: Run) -> None:
    for uid, name in (("first", "sales"), ("mapped[2]", "visits")):
        attempt = stage.attempt(uid=uid)
        stage.take(attempt, stage.snapshot(attempt, "older"))
        stage.take(attempt, stage.snapshot(attempt, name, 10))
    found = rows(run("show", "sales", "--output", "json"))
    assert [(row["operator"], row["name"], row["rows"]) for row in found] == [
        ("first", "sales", 20),
        ("mapped[2]", "visits", 20),
    ]
    assert found[0]["content"] == ["n int64", "text string"]
    (row,) = rows(run("show", "sales", "--uid", "mapped[2]", "--output", "json"))
    assert row["name"] == "visits"


def test_what_is_damaged_or_missing_is_listed_with_the_reason_beside_the_rest(
    stage: WrittenStage, run: Run, tmp_path: Path
) -> None:
    first, second = stage.attempt(uid="first"), stage.attempt(uid="mapped[2]")
    stage.take(first, stage.snapshot(first, "damaged"), stage.snapshot(first, "sales"))
    missing = stage.take(second, stage.snapshot(second, "visits"))
    flip(next(tmp_path.rglob("damaged-*/*/_manifest")), -15)
    local_path(f"{missing.location}/_metadata").unlink()
    outcome = run("show", "sales", "--output", "json")
    found = rows(outcome)
    assert [(row["operator"], row["kind"], row["name"]) for row in found] == [
        ("first", "snapshot", "sales"),
        ("first", "snapshot", "damaged"),
        ("mapped[2]", "checkpoint", ""),
    ]
    assert all(row["content"].startswith("unreadable: ") for row in found[1:])
    statuses = [
        outcome.status,
        run("show", "sales", "damaged", "--uid", "first").status,
        run("show", "sales", "--uid", "mapped[2]").status,
    ]
    assert statuses == [1, 1, 2]


def test_loops_values_and_iterations_are_listed(stage: WrittenStage, run: Run) -> None:
    pointer = SnapshotJob(stage.storage).take(**values_of_loops())
    found = [(row["kind"], row["name"], row["content"]) for row in rows(run("show", pointer, "--output", "json"))]
    assert found == [
        ("items", "days", "5 finished"),
        ("iteration", "ranks", "4, converged"),
        ("value", "cursor", "7"),
    ]


def test_rows_of_a_snapshot_are_shown_up_to_the_limit(stage: WrittenStage, run: Run) -> None:
    attempt = stage.attempt()
    stage.take(attempt, stage.snapshot(attempt, "visits", 10))
    outcome = run("show", "sales", "visits", "--limit", "2", "--output", "json")
    assert rows(outcome) == [{"n": 0, "text": "row 0"}, {"n": 1, "text": "row 1"}]
    assert "more than 2 rows" in outcome.err
    assert len(rows(run("show", "sales", "visits", "--checkpoint", "1", "--output", "json"))) == 20


def test_columns_with_equal_names_are_all_shown(stage: WrittenStage, run: Run) -> None:
    job = SnapshotJob(stage.storage)
    pointer = job.take(job.snapshot("twice", columns=[("a", "long"), ("a", "string")]))
    assert rows(run("show", pointer, "twice", "--output", "json"))[1] == {"a": 1, "a (2)": "shop 1"}


@pytest.mark.parametrize("output", ["table", "plain"])
def test_values_are_shown_as_they_are_whatever_their_column_is_called(
    stage: WrittenStage, run: Run, output: str
) -> None:
    job = SnapshotJob(stage.storage)
    batch = pa.record_batch({"_c0": [0.0425], "_c1": [2048], "_c2": ["many"]})
    columns = [("rate", "double"), ("sent_bytes", "long"), ("kilobytes", "string")]
    pointer = job.take(job.snapshot("rates", batch, columns))
    outcome = run("show", pointer, "rates", "--output", output)
    assert outcome.status == 0
    assert outcome.out.strip().splitlines()[-1].replace("|", " ").split() == ["0.0425", "2048", "many"]


def test_finished_items_are_shown_up_to_the_limit(stage: WrittenStage, run: Run) -> None:
    pointer = SnapshotJob(stage.storage).take(**values_of_loops())
    outcome = run("show", pointer, "--items", "--limit", "3", "--output", "json")
    assert [row["item"] for row in rows(outcome)] == ["day 0", "day 1", "day 2"]
    assert "2 more items" in outcome.err
    assert len(rows(run("show", pointer, "days", "--items", "--output", "json"))) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "sales", "other"), "snapshot 'other'"),
        (("show", "sales", "other", "--items"), "loop 'other'"),
        (("show", "sales", "--uid", "other"), "checkpoint of 'other'"),
        (("show", "sales", "--checkpoint", "9"), "checkpoint of id 9"),
        (("show", "unknown"), "no job 'unknown'"),
        (("show", "file:///nowhere/chk-1"), "found nothing there"),
        (("show", "file:///nowhere/chk-1", "--checkpoint", "1"), "omit it"),
    ],
)
def test_unknown_contents_are_wrong_usage(
    stage: WrittenStage, run: Run, arguments: tuple[str, ...], message: str
) -> None:
    stage.run()
    outcome = run(*arguments)
    assert outcome.status == 2
    assert message in outcome.err


def test_name_in_several_operators_needs_a_uid(stage: WrittenStage, run: Run) -> None:
    for uid in ("first", "second"):
        attempt = stage.attempt(uid=uid)
        stage.take(attempt, stage.snapshot(attempt, "visits", 10))
    outcome = run("show", "sales", "visits")
    assert (outcome.status, "found it in 'first', 'second'" in outcome.err) == (2, True)
    assert len(rows(run("show", "sales", "visits", "--uid", "second", "--output", "json"))) == 20


def test_damaged_snapshot_is_a_finding(stage: WrittenStage, run: Run) -> None:
    attempt = stage.attempt()
    handle = stage.snapshot(attempt, "visits", 10)
    stage.take(attempt, handle)
    flip(Path(f"{handle.uri}/data/part-1.parquet".removeprefix("file://")), -15)
    assert run("show", "sales", "visits").status == 1


def test_a_savepoint_of_the_whole_job_is_listed_by_stage(stage: WrittenStage, run: Run, tmp_path: Path) -> None:
    taken = []
    for uid in ("first", "mapped[2]"):
        attempt = stage.attempt(uid=uid)
        taken.append(stage.take(attempt, stage.snapshot(attempt, "visits", 10)))
    pointer = save_job(stage.storage, taken, f"file://{tmp_path}/savepoints")
    add_row(stage.store, stage.storage, pointer)

    for job in ((pointer,), ("sales", "--checkpoint", str(SAVEPOINT_ID))):
        found = rows(run("show", *job, "--output", "json"))
        assert [(row["operator"], row["name"]) for row in found] == [("first", "visits"), ("mapped[2]", "visits")]
        (row,) = rows(run("show", *job, "--uid", "mapped[2]", "--output", "json"))
        assert (row["operator"], row["rows"]) == ("mapped[2]", 20)
        assert len(rows(run("show", *job[:1], "visits", *job[1:], "--uid", "first", "--output", "json"))) == 20
        refused = run("show", *job[:1], "visits", *job[1:])
        assert (refused.status, "'first', 'mapped[2]'" in refused.err) == (2, True)
        assert run("show", *job, "--uid", "other").status == 2
