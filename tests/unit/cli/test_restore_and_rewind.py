from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import METADATA_FILE, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    JobAction,
    OnClear,
)
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.job_restore import RestoredOperator, tasks_to_run
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, decode_metadata, encode_metadata
from tests.contracts.runs_of_a_job import AGAIN, day, rows_of
from tests.job_savepoints import save_job
from tests.unit.cli.conftest import Terminal, rows
from tests.unit.written_stage import JOB, local_path


def owner_of(number: int, task: str, **changes: Any) -> AttemptOwner:
    """Return the owner of an attempt that is a task of Airflow."""
    coordinates = {"dag_id": "nightly", "run_id": day(number).run_id, "task_id": task, "map_index": "-1"}
    return day(number, logical_task=f"nightly/{task}", airflow=tuple(coordinates.items()), **changes)


@pytest.fixture
def saved(stage: Any, tmp_path: Any) -> Any:
    """A job whose stages have worked for some days, and a savepoint of the second day."""
    for uid, days in {"load": (1, 2, 3), "count": (1, 2, 3), "late": (3,)}.items():
        for number in days:
            attempt = stage.attempt(uid=uid, owner=owner_of(number, uid), num_retained=5)
            stage.take(attempt, stage.snapshot(attempt, f"step {uid} {number}"))
            attempt.finish(AttemptStatus.FINISHED)
    taken = {c.checkpoint_id: c for c in stage.store.describe(job_id_of(JOB)).checkpoints}
    stage.pointer = save_job(stage.storage, [taken[2], taken[4]], f"file://{tmp_path}/savepoints")
    return stage


def rewrite(pointer: str, change: Callable[[CheckpointDocument], CheckpointDocument]) -> None:
    """Change the metadata of a savepoint."""
    uri = f"{pointer}/{METADATA_FILE}"
    document = decode_metadata(local_path(uri).read_bytes(), uri=uri)
    local_path(uri).write_bytes(encode_metadata(change(document), uri=uri))


def view_of(stage: Any) -> Any:
    """Return the rows of the job."""
    return stage.store.describe(job_id_of(JOB))


def test_a_savepoint_of_an_operator_is_refused_while_its_restore_waits(saved, run):
    run("restore", JOB, "--from", saved.pointer, "--yes")
    outcome = run("savepoint", JOB, "--uid", "count", "-o", "json")
    assert outcome.status == 1
    assert "no restore in place to carry out, found that stage 'count'" in rows(outcome)[0]["failure"]


def test_tells_where_each_stage_starts_and_which_tasks_run_again(saved, run):
    outcome = run("restore", JOB, "--from", saved.pointer, "--yes", "-o", "json")
    common = {"fenced": None, "replaced": None}
    assert rows(outcome) == [
        {
            "operator": "count",
            "start": "member of the savepoint",
            "checkpoint": 4,
            "run": day(1).run_key,
            "rolled_back": [6, 5],
            "runs": [day(3).run_key, day(2).run_key],
            **common,
        },
        {
            "operator": "late",
            "start": "without state",
            "checkpoint": None,
            "run": None,
            "rolled_back": [7],
            "runs": [day(3).run_key],
            **common,
        },
        {
            "operator": "load",
            "start": "member of the savepoint",
            "checkpoint": 2,
            "run": day(2).run_key,
            "rolled_back": [3],
            "runs": [day(3).run_key],
            **common,
        },
    ]
    first, second, third = (day(number).run_key for number in (1, 2, 3))
    assert f"{JOB} was restored from {saved.pointer}" in outcome.err
    assert outcome.err.splitlines()[1:] == [
        f"airflow tasks clear nightly -t '^(count)$' -s {first} -e {third}",
        f"airflow tasks clear nightly -t '^(load)$' -s {second} -e {third}",
        f"airflow tasks clear nightly -t '^(late)$' -s {third} -e {third}",
    ]


def test_tasks_of_equal_runs_are_cleared_together(stage):
    newest = stage.attempt(owner=owner_of(3, "load"))
    row = stage.store.describe(job_id_of(JOB)).attempts[0]
    operators = [
        RestoredOperator(uid=uid, member=None, taken_back=(), first_run=day(2).run_key, newest=attempt)
        for uid, attempt in {"b": _of_task(row, "b.c"), "a": _of_task(row, "a")}.items()
    ]
    first, last = day(2).run_key, day(3).run_key
    assert [*tasks_to_run(operators)] == [f"airflow tasks clear nightly -t '^(a|b\\.c)$' -s {first} -e {last}"]
    newest.finish(AttemptStatus.FINISHED)


def _of_task(row: AttemptRecord, task: str) -> AttemptRecord:
    return replace(row, owner=owner_of(3, task))


def test_runs_without_a_logical_date_and_scripts_are_named_in_words(stage):
    stage.attempt(owner=owner_of(3, "load"))
    row = stage.store.describe(job_id_of(JOB)).attempts[0]
    script = replace(row, owner=day(3, label="script balances"))
    manual = replace(row, owner=replace(row.owner, run_key="asset__2"))
    operators = [
        RestoredOperator(uid="a", member=None, taken_back=(), first_run="asset__1", newest=manual),
        RestoredOperator(uid="b", member=None, taken_back=(), first_run="", newest=script),
        RestoredOperator(uid="c", member=None, taken_back=(), first_run="", newest=None),
    ]
    assert [*tasks_to_run(operators)] == [
        "a: clear task load of Dag nightly in run asset__1 and all later runs.",
        "b: start script balances again.",
        "c: start it again.",
    ]


def test_a_dry_run_changes_nothing(saved, run):
    before = view_of(saved)
    outcome = run("restore", JOB, "--from", saved.pointer, "--dry-run", "-o", "json")
    assert [row["rolled_back"] for row in rows(outcome)] == [[6, 5], [7], [3]]
    assert "would be restored" in outcome.err
    assert (rows_of(view_of(saved)), view_of(saved).actions) == (rows_of(before), ())


def test_without_yes_it_asks_and_no_is_no(saved, run, monkeypatch):
    for answer, actions in (("n\n", 0), ("y\n", 3)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        outcome = run("restore", JOB, "--from", saved.pointer)
        assert (outcome.status, len(view_of(saved).actions)) == (0, actions), answer
        assert "[y/N]" in outcome.err


def test_members_of_stages_that_are_gone_are_listed(saved, run):
    rewrite(saved.pointer, lambda d: replace(d, members=(*d.members, replace(d.members[0], uid="loads[b]"))))
    *_, last = rows(run("restore", JOB, "--from", saved.pointer, "--yes", "-o", "json"))
    assert (last["operator"], last["start"]) == ("loads[b]", "not in the job")
    assert [action.requested_by for action in view_of(saved).actions] == ["airflow statecheck restore"] * 3


def test_a_stage_that_has_started_over_is_named(saved, run):
    rewrite(saved.pointer, lambda d: replace(d, members=(replace(d.members[0], uid="late"),)))
    owner = owner_of(3, "late", clear_marker=AGAIN)
    attempt = saved.attempt(uid="late", owner=owner, num_retained=5, on_clear=OnClear.RESTART)
    attempt.finish(AttemptStatus.FINISHED)
    outcome = run("restore", JOB, "--from", saved.pointer, "--dry-run", "-o", "json")
    [warning] = [line for line in outcome.err.splitlines() if "started over" in line]
    assert warning.startswith("Operator 'late' has started over since its member was taken")


@pytest.mark.parametrize("kind", ["of another job", "of one stage", "damaged", "not there"])
def test_a_savepoint_that_does_not_fit_is_refused_and_changes_nothing(saved, run, tmp_path, kind):
    earlier = {c.checkpoint_id: c for c in view_of(saved).checkpoints}
    if kind == "of another job":
        other = saved.attempt(job="other", uid="load", owner=owner_of(1, "load"))
        taken = saved.take(other, saved.snapshot(other, "step"))
        pointer, status, told = save_job(saved.storage, [taken], f"file://{tmp_path}/savepoints"), 1, "in another job"
    elif kind == "of one stage":
        pointer, status, told = earlier[2].location, 1, "on the page of the job"
    elif kind == "damaged":
        damaged = next(local_path(saved.pointer).rglob("*.parquet"))
        damaged.write_bytes(damaged.read_bytes()[:-10])
        pointer, status, told = saved.pointer, 1, "to be complete"
    else:
        pointer, status, told = f"file://{tmp_path}/savepoints/none", 2, "found nothing there"
    before = view_of(saved)
    outcome = run("restore", JOB, "--from", pointer, "--yes")
    assert (outcome.status, told in outcome.err) == (status, True), outcome.err
    assert (rows_of(view_of(saved)), view_of(saved).actions) == (rows_of(before), ())


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
    assert rows(outcome) == [
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


def test_what_is_taken_back_stays_on_storage_although_the_clock_was_set_back(three_days, run):
    three_days.clock.advance(-1800)
    attempt = three_days.attempt(owner=day(4), retained_runs=3)
    three_days.take(attempt, three_days.snapshot(attempt, "step"))
    attempt.finish(AttemptStatus.FINISHED)
    before = three_days.files()
    for run_key in (day(4).run_key, SECOND):
        run("rewind", JOB, "--before", run_key, "--yes")
        run("gc", "--yes", JOB)
        assert three_days.files() == before


def test_a_dry_run_of_rewind_changes_nothing(three_days, run):
    outcome = run("rewind", JOB, "--before", SECOND, "--dry-run", "-o", "json")
    assert rows(outcome)[0]["rolled_back"] == [3, 2]
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
        [row] = rows(run("rewind", JOB, "--before", SECOND, *arguments, "-o", "json"))
        assert row["withdrawn_choice"] == 2, arguments
    [choice] = three_days.store.describe(job_id_of(JOB)).actions
    assert choice.message == "replaced by a rewind"


def test_rewind_asks_without_yes_and_no_is_no(three_days, run, monkeypatch):
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
    listed = rows(run("checkpoints", JOB, "-o", "json"))
    assert [row["run"] for row in listed] == [day(n).run_key for n in (1, 2, 3)]
