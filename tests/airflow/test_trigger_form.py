"""What a user chooses on the trigger form is what the run does: where it starts, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
)
from tests.airflow.example_data import few_flights
from tests.airflow.examples import Examples

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.soak]

DAG, JOB = "example_trigger_form", "route_delays"
FIRST, SECOND, LATER = "2013-01-01", "2013-01-02", "2013-01-03"
SUCCESS = "success"

Totals = dict[tuple[str, str], tuple[int, int, int]]


@pytest.fixture(scope="module")
def examples(airflow_db: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    running = Examples(airflow_db, tmp_path_factory.mktemp("form"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def two_runs(examples: Examples) -> Examples:
    """Return the job after two runs, of the first two months and of the third; the second took a savepoint."""
    assert examples.run(DAG, FIRST, first_month=1, last_month=2) == SUCCESS, examples.log
    assert examples.run(DAG, SECOND, first_month=3, last_month=3, savepoint_at_end=True) == SUCCESS, examples.log
    return examples


def totals(examples: Examples, output: str = "route_delays") -> Totals:
    """Return the last row of each route."""
    rows = sorted(examples.rows(output), key=lambda row: row["month"])
    return {(row["origin"], row["dest"]): (row["month"], row["flights"], int(row["delay"])) for row in rows}


def expected(months: Iterable[int], written: Iterable[int]) -> Totals:
    """Return the totals of some months for the routes that were flown in the months of the run."""
    found: Totals = {}
    for month in sorted(months):
        for flight in few_flights():
            if int(flight["month"]) == month and flight["arr_delay"] != "NA":
                _, flights, delay = found.get((flight["origin"], flight["dest"]), (0, 0, 0))
                found[flight["origin"], flight["dest"]] = month, flights + 1, delay + int(flight["arr_delay"])
    return {route: each for route, each in found.items() if each[0] in set(written)}


def last_attempt(examples: Examples, job: str) -> AttemptRecord:
    return examples.job(job).attempts[-1]


def savepoints(examples: Examples, job: str = JOB) -> list[CheckpointRecord]:
    return [each for each in examples.job(job).checkpoints if each.properties.is_savepoint]


def copied(examples: Examples, date: str, restore_from: str) -> str:
    """Run the fourth month on a copy of the state, and return the job of the copy."""
    before = examples.job(JOB).checkpoints
    output = f"copy_{date}"
    choice: dict[str, Any] = {"restore_from": restore_from, "output": f"data/{output}"}
    assert examples.run(DAG, date, first_month=4, last_month=4, **choice) == SUCCESS, examples.log
    assert examples.job(JOB).checkpoints == before
    return output


def test_latest_continues_from_the_newest_checkpoint_of_the_job(two_runs: Examples) -> None:
    assert totals(two_runs) == expected((1, 2, 3), written=(1, 2, 3))
    assert last_attempt(two_runs, JOB).start_reason == "a new run continues the state of the job"


def test_a_savepoint_is_taken_at_the_end_of_the_run_that_asked_for_it_only(two_runs: Examples) -> None:
    [savepoint] = savepoints(two_runs)
    assert (savepoint.status, savepoint.epoch) == (CheckpointStatus.COMPLETED, 2)
    assert savepoint.properties.snapshot_type is CheckpointType.SAVEPOINT_TERMINATE
    assert Path(savepoint.location.removeprefix("file://"), "_metadata").exists()
    assert savepoint.location.startswith(f"file://{two_runs.work}/savepoints/")


@pytest.mark.parametrize(
    ("date", "choice", "months"),
    [
        ("2013-02-01", f"run:{FIRST}T00:00:00+00:00", (1, 2, 4)),
        ("2013-02-02", f"before:{SECOND}T00:00:00+00:00", (1, 2, 4)),
        ("2013-02-03", "id", (1, 2, 4)),
        ("2013-02-04", "savepoint", (1, 2, 3, 4)),
    ],
)
def test_an_earlier_checkpoint_is_restored_into_a_copy_of_the_job(
    two_runs: Examples, date: str, choice: str, months: tuple[int, ...]
) -> None:
    if choice == "id":
        choice = str(_last_of_first_run(two_runs).checkpoint_id)
    elif choice == "savepoint":
        choice = savepoints(two_runs)[0].location
    output = copied(two_runs, date, choice)
    assert totals(two_runs, output) == expected(months, written=(4,))
    assert last_attempt(two_runs, f"{JOB}@{date}T00:00:00+00:00").restored_from == 1


def _last_of_first_run(examples: Examples) -> CheckpointRecord:
    of_run = [c for c in examples.job(JOB).checkpoints if c.run_key.startswith(FIRST) and c.is_restorable]
    return of_run[-1]


def test_nothing_starts_a_job_of_its_own_without_state(two_runs: Examples) -> None:
    output = copied(two_runs, "2013-02-05", "nothing")
    assert totals(two_runs, output) == expected((4,), written=(4,))


def test_an_interval_takes_fewer_checkpoints_than_months(two_runs: Examples) -> None:
    where: dict[str, Any] = {"restore_from": f"run:{FIRST}T00:00:00+00:00", "output": "data/paced"}
    choice: dict[str, Any] = {"first_month": 4, "last_month": 6, "checkpoint_interval": "1 h"}
    assert two_runs.run(DAG, "2013-03-01", **where, **choice) == SUCCESS, two_runs.log
    # The first id is that of the checkpoint that the copy starts from.
    taken = two_runs.job(f"{JOB}@2013-03-01T00:00:00+00:00").job.next_checkpoint_id - 2
    assert 1 <= taken < 3


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"restore_from": "newest"}, "'newest' does not match"),
        ({"restore_from": "newest"}, "**latest** continues"),
        ({"last_month": 13}, "13 is greater than the maximum of 12"),
    ],
)
def test_the_form_refuses_what_is_no_choice(two_runs: Examples, choice: dict[str, Any], message: str) -> None:
    said = len(two_runs.log)
    assert two_runs.run(DAG, "2013-04-01", **choice) == "refused"
    assert message in two_runs.log[said:]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"restore_from": "run:last-week"}, "Expected a retained checkpoint run:last-week of job"),
        ({"checkpoint_interval": "often"}, "Expected checkpoint_interval to be"),
    ],
)
def test_a_choice_that_cannot_be_fulfilled_fails_the_run_without_a_retry_before_it_reads_anything(
    two_runs: Examples, choice: dict[str, Any], message: str
) -> None:
    before, said = two_runs.job(JOB), len(two_runs.log)
    assert two_runs.run(DAG, "2013-04-01", **choice) == "failed"
    assert message in two_runs.log[said:]
    assert "up_for_retry" not in two_runs.log[said:]
    assert two_runs.job(JOB).checkpoints == before.checkpoints
