from __future__ import annotations

import io
import json
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, JobAction
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from tests.contracts.runs_of_a_job import day
from tests.unit.written_stage import JOB

SECOND = day(2).run_key


@pytest.fixture
def three_days(stage: Any) -> Any:
    """A job in which each of three runs has taken a checkpoint."""
    for number in (1, 2, 3):
        attempt = stage.attempt(owner=day(number), retained_runs=3)
        stage.take(attempt, stage.snapshot(attempt, "step"))
        attempt.finish(AttemptStatus.FINISHED)
        stage.clock.advance(60)
    return stage


def test_tells_what_is_taken_back_and_where_the_state_stands(three_days, run):
    outcome = run("rewind", JOB, "--before", SECOND, "--yes", "-o", "json")
    assert json.loads(outcome.out) == [
        {
            "operator": "aggregate",
            "rolled_back": [3, 2],
            "runs": [day(3).run_key, SECOND],
            "newest_checkpoint": 1,
            "newest_run": day(1).run_key,
            "fenced": None,
            "withdrawn_choice": None,
            "withdrawn_restore": None,
        }
    ]
    assert "clear that run and all later runs" in outcome.err
    assert three_days.statuses() == {1: "completed", 2: "SUBSUMED", 3: "SUBSUMED"}


def test_the_run_after_it_restores_what_the_run_before_left(three_days, run):
    run("rewind", JOB, "--before", SECOND, "--yes")
    assert three_days.attempt(owner=day(2), retained_runs=3).grant.candidates[0].checkpoint_id == 1


def test_what_is_taken_back_can_be_found_and_stays_on_storage_until_something_is_newer(three_days, run):
    before = three_days.files()
    run("rewind", JOB, "--before", SECOND, "--yes")
    run("gc", JOB)
    assert three_days.files() == before


def test_a_dry_run_changes_nothing(three_days, run):
    outcome = run("rewind", JOB, "--before", SECOND, "--dry-run", "-o", "json")
    assert json.loads(outcome.out)[0]["rolled_back"] == [3, 2]
    assert "would be rewound" in outcome.err
    assert set(three_days.statuses().values()) == {"completed"}


def test_names_the_choice_of_a_user_that_it_withdraws(three_days, run):
    wanted = UserAction(
        job_id=job_id_of(JOB),
        action=JobAction.RESTORE,
        request_key=new_key(),
        checkpoint_id=2,
        requested_by="a user",
    )
    three_days.actions.request(wanted)
    for arguments in (["--dry-run"], ["--yes"]):
        [row] = json.loads(run("rewind", JOB, "--before", SECOND, *arguments, "-o", "json").out)
        assert row["withdrawn_choice"] == 2, arguments
    [choice] = three_days.store.describe(job_id_of(JOB)).actions
    assert choice.message == "replaced by a rewind"


def test_without_yes_it_asks_and_no_is_no(three_days, run, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, status in (("n\n", "completed"), ("y\n", "SUBSUMED")):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        outcome = run("rewind", JOB, "--before", SECOND)
        assert (outcome.status, three_days.statuses()[3]) == (0, status), answer
        assert "[y/N]" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("other", "--before", SECOND), 2),
        ((JOB, "--before", SECOND, "--uid", "other"), 2),
        ((JOB, "--before", "asset__9"), 1),
        ((JOB, "--before", ""), 2),
    ],
    ids=["no such job", "no such operator", "nothing is known to be before the run", "no run"],
)
def test_a_refusal_has_a_status_of_its_own_and_changes_nothing(three_days, run, arguments, status):
    assert run("rewind", *arguments, "--yes").status == status
    assert set(three_days.statuses().values()) == {"completed"}


def test_the_listing_of_checkpoints_names_their_runs(three_days, run):
    listed = json.loads(run("checkpoints", JOB, "-o", "json").out)
    assert [row["run"] for row in listed] == [day(n).run_key for n in (1, 2, 3)]
