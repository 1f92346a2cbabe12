"""Commands beside a job with a row that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.metadata.tables import METADATA
from tests.bad_rows import NO_TEXT, corrupt
from tests.soak import rest_in_soak
from tests.unit.cli.conftest import Run, rows
from tests.unit.written_stage import WrittenStage

BAD, GOOD = "sales", "orders"
OF_A_JOB = {
    "checkpoints": ("checkpoints", BAD),
    "stats": ("stats", BAD),
    "history": ("stats", BAD, "--history"),
    "figures": ("stats", BAD, "--checkpoint", "1"),
    "verify": ("verify", BAD),
    "show": ("show", BAD),
    "items": ("show", BAD, "--items"),
    "state names": ("state", "names", BAD),
    "state get": ("state", "get", BAD, "totals", "EUR"),
    "gc": ("gc", BAD, "--yes"),
    "prune": ("prune", BAD, "--yes"),
    "rewind": ("rewind", BAD, "--before", "2026-01-01", "--yes"),
    "restore": ("restore", BAD, "--from", "memory://savepoints/savepoint-1", "--yes"),
    "savepoint": ("savepoint", BAD),
}
"""Commands for one job."""
BAD_VALUES = {
    "attempt.owner": "{",
    "checkpoint.status": "unknown",
    "checkpoint.properties": "[1]",
    "operator.epoch": -1,
    "job.next_checkpoint_id": NO_TEXT,
    "statistics.content": "[",
}
"""One value for each table, of a column that each command for one job reads."""


@pytest.fixture(params=rest_in_soak(BAD_VALUES, "attempt.owner", "checkpoint.properties"))
def bad(request: pytest.FixtureRequest, stage: WrittenStage) -> str:
    """Two jobs, one of which has a value that cannot be read; return how an error names the value."""
    for job in (GOOD, BAD):
        attempt = stage.attempt(job)
        stage.take(attempt, stage.snapshot(attempt, "raw"))
        attempt.finish(AttemptStatus.FINISHED)
    table, column = request.param.split(".")
    of_table = METADATA.tables[f"statecheck_{table}"].c[column]
    store: Any = stage.store
    corrupt(store.engine, of_table, BAD_VALUES[request.param], job_id_of(BAD))
    return f"column {column} of table statecheck_{table}"


@pytest.mark.parametrize("arguments", OF_A_JOB.values(), ids=OF_A_JOB)
def test_a_command_names_the_row_and_column_in_one_line_and_ends_with_1(
    bad: str, arguments: tuple[str, ...], run: Run
) -> None:
    outcome = run(*arguments, "-o", "json")

    assert outcome.status == 1
    assert bad in outcome.err + outcome.out
    assert job_id_of(BAD) in outcome.err + outcome.out
    assert "Traceback" not in outcome.err


def test_the_list_of_jobs_goes_on_and_shows_the_others(bad: str, run: Run) -> None:
    for sort in ("name", "completed_at", "size", "status", "failed_at"):
        outcome = run("jobs", "--sort", sort, "-o", "json")

        assert outcome.status == 0
        found = {row["job_id"]: row for row in rows(outcome)}
        assert found[job_id_of(GOOD)]["failure"] is None
        assert job_id_of(BAD) in found


@pytest.mark.parametrize(
    "arguments",
    [
        ("gc", "--all", "--yes"),
        ("gc", BAD, GOOD, "--yes"),
        ("prune", BAD, GOOD, "--yes"),
        ("prune", "--older-than", "1d", "--yes"),
    ],
    ids=" ".join,
)
def test_maintenance_does_its_work_for_the_others_and_ends_with_1(
    bad: str, arguments: tuple[str, ...], run: Run, stage: WrittenStage
) -> None:
    outcome = run(*arguments, "-o", "json")

    assert outcome.status == 1
    of_bad = [row for row in rows(outcome) if bad in " ".join(row["problems"])]
    assert len(of_bad) == 1
    assert "2 jobs" in outcome.err
    if arguments[:2] == ("prune", BAD):
        assert GOOD not in [job.name for job in stage.store.jobs()]


def test_uninstall_removes_tables_with_bad_rows_but_no_row_that_names_files(
    bad: str, run: Run, stage: WrittenStage
) -> None:
    outcome = run("uninstall", "--storage", "--yes")
    assert (outcome.status, bad in outcome.err) == (1, True)
    assert BAD in [job.name for job in stage.store.jobs()]
    assert run("uninstall", "--yes").status == 0
