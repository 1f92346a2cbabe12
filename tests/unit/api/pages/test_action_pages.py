"""What users can do on the page of a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_statecheck.api.forks import param_of
from airflow_provider_statecheck.api.pages import routes
from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, StepSummary
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import ConfirmRestore, SkippedCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, JobAction
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.job_restore import JobRestoring, JobSavepoint, RestoreJob, SavedMember
from tests.messages import make_source
from tests.unit.api.pages.html import Page
from tests.unit.api.pages.site import MadeJob, Site

JOB = f"/jobs/{job_id_of('sales')}"
OPERATOR = operator_id_of("aggregate")
HOSTILE = """<img src=x onerror='alert(1)'>"&"""


@pytest.fixture
def failed(site: Site) -> MadeJob:
    """A job whose only task has failed after three checkpoints."""
    job = site.job().begin()
    for _ in range(3):
        job.checkpoint()
    job.end(AttemptStatus.FAILED, "out of memory")
    site.user.edits = ("nightly",)
    return job


def offered(page: Page) -> list[str]:
    return [each.text for each in page.all("a") if "data-preview" in each.attributes]


def request(site: Site, action: JobAction, by: str = "ann", **wanted: Any) -> None:
    wanted |= {"job_id": job_id_of("sales"), "request_key": new_key(), "requested_by": by}
    site.actions.request(UserAction(action=action, **wanted))


def test_an_idle_stage_is_not_stopped(site: Site, failed: MadeJob) -> None:
    assert offered(site.read(JOB)) == ["Remove the job", "Take a savepoint"]
    failed.begin()
    assert offered(site.read(JOB)) == ["Take a savepoint", "Stop with a savepoint"]


def test_a_checkpoint_is_restored_or_rewound_and_a_savepoint_disposed_of(site: Site, failed: MadeJob) -> None:
    assert offered(site.read(f"{JOB}/checkpoints/2")) == ["Restore with the next attempt", "Rewind to before this run"]
    key = failed.request_savepoint(target="memory://mine")
    failed.begin()
    savepoint = failed.checkpoint(serves=key, savepoint_dir="memory://mine")
    assert offered(site.read(f"{JOB}/checkpoints/{savepoint}")) == ["Dispose of the savepoint"]


def test_a_subsumed_checkpoint_is_offered_nothing(site: Site, failed: MadeJob) -> None:
    failed.begin()
    failed.checkpoint()
    assert offered(site.read(f"{JOB}/checkpoints/1")) == []


def test_a_checkpoint_that_could_not_be_read_is_not_offered(site: Site, failed: MadeJob) -> None:
    failed.begin()
    skipped = (SkippedCheckpoint(checkpoint_id=3, reason="damaged"),)
    failed.coordinator.confirm_restore(ConfirmRestore(attempt=failed.attempt, checkpoint_id=2, skipped=skipped))
    assert "Restore with the next attempt" in offered(site.read(f"{JOB}/checkpoints/2"))
    assert "Restore with the next attempt" not in offered(site.read(f"{JOB}/checkpoints/3"))


@pytest.mark.parametrize("path", [JOB, f"{JOB}/checkpoints/2", "/dags/nightly/runs/run-1/tasks/features"])
def test_one_who_may_only_read_is_offered_nothing(site: Site, failed: MadeJob, path: str) -> None:
    assert offered(site.read(path)) != []
    site.user.edits = ()
    assert offered(site.read(path)) == []


def test_every_dag_of_the_job_must_be_editable(site: Site, failed: MadeJob) -> None:
    site.user.dag_ids = ("nightly", "hourly")
    other = site.job(uid="load", task=type(failed.task)(dag_id="hourly", run_id="run-1", task_id="load"))
    other.begin()
    assert offered(site.read(JOB)) == []
    site.user.edits = ("nightly", "hourly")
    assert offered(site.read(JOB)) != []


def test_the_preview_says_what_is_kept_and_done_again_and_asks_for_a_confirmation(site: Site, failed: MadeJob) -> None:
    page = site.read(f"{JOB}/actions/restore?checkpoint_id=1")
    assert page.one("h1").text == "Restore with the next attempt"
    assert [each.text for each in page.all("h3")] == ["Kept", "Work done again", "Files deleted"]
    assert "Checkpoint 3 of aggregate, run 2026-01-01, 4.0 MiB" in page.text
    (button,) = [each for each in page.all("button") if "data-confirm" in each.attributes]
    assert button.attributes["data-confirm"] == f"/statecheck/ui{JOB}/restore"
    assert button.attributes["data-action"] == "restore"
    message = json.loads(button.attributes["data-message"])
    assert (message["checkpoint_id"], len(message["request_key"])) == (1, 32)
    again = site.read(f"{JOB}/actions/restore?checkpoint_id=1").all("button")[-1]
    assert json.loads(again.attributes["data-message"])["request_key"] != message["request_key"]
    assert site.store.describe(job_id_of("sales")).actions == ()


def test_a_refused_action_has_its_reason_and_no_confirmation(site: Site, failed: MadeJob) -> None:
    page = site.read(f"{JOB}/actions/stop?operator_id={OPERATOR}")
    assert "Expected a running attempt" in page.text
    assert page.all("button") == []


@pytest.mark.parametrize("edits", [("nightly",), ()], ids=["hidden", "only readable"])
def test_the_preview_does_not_exist_for_one_who_may_not_act(
    site: Site, failed: MadeJob, edits: tuple[str, ...]
) -> None:
    site.user.edits = edits
    if edits:
        site.user.dag_ids = ()
    page = site.read(f"{JOB}/actions/restore?checkpoint_id=1", status=404)
    assert "aggregate" not in page.text
    site.read(f"{JOB}/actions/explode?checkpoint_id=1", status=404)


def test_a_choice_is_shown_until_an_attempt_has_taken_it(site: Site, failed: MadeJob) -> None:
    request(site, JobAction.RESTORE, checkpoint_id=2)
    page = site.read(JOB)
    assert "The next attempt restores checkpoint 2, which a user chose." in page.text
    assert "The next try restores checkpoint 2." in page.text
    assert "Withdraw the chosen checkpoint" in offered(page)
    (row,) = page.table("Newest requests to restore, fork, rewind and dispose of aggregate")
    assert (row["By"], row["Status"], row["Of"]) == ("ann", "… queued", "Checkpoint 2")
    assert page.one("main").attributes["data-refresh-seconds"] == "5"
    failed.begin()
    page = site.read(JOB)
    (row,) = page.table("Newest requests to restore, fork, rewind and dispose of aggregate")
    assert (row["Status"], row["Outcome"]) == ("✓ completed", "attempt 2 restores checkpoint 2")
    assert "which ann chose" in page.text


def test_a_rewind_of_the_job_is_shown_with_each_operator(site: Site, failed: MadeJob) -> None:
    request(site, JobAction.REWIND, run_key="2026-01-01")
    (row,) = site.read(JOB).table("Newest requests to restore, fork, rewind and dispose of aggregate")
    assert (row["Action"], row["Of"]) == ("Rewind to before this run", "Run 2026-01-01")


@pytest.mark.parametrize("has_member", [True, False])
def test_a_restore_of_the_job_in_place_is_shown_and_may_be_withdrawn(
    site: Site, failed: MadeJob, has_member: bool
) -> None:
    pointer = "memory://mine/savepoint-5d2c4a-0f6f7c1e2b3a"
    uid = "aggregate" if has_member else "another stage"
    member = SavedMember(uid=uid, checkpoint_id=2, generation=1, run="", source=make_source(pointer, member=uid))
    savepoint = JobSavepoint(pointer=pointer, members=(member,))
    restoring = JobRestoring(site.store, UnknownLiveness())
    restoring.restore(RestoreJob(job_id=job_id_of("sales"), savepoint=savepoint, requested_by="ann"))
    page = site.read(JOB)
    start = "restores its member of" if has_member else "starts without state, as in"
    assert f"Until its first checkpoint, each attempt {start} the savepoint of the job {pointer}" in page.text
    assert f"Savepoint {pointer}" in page.text
    assert "The next try restores checkpoint" not in page.text
    assert "Withdraw the chosen checkpoint" in offered(page)
    preview = site.read(f"{JOB}/actions/withdraw?operator_id={OPERATOR}")
    assert "may then not match that of the others" in preview.text
    failed.begin().end(AttemptStatus.FAILED, "out of memory")
    assert "Restore with the next attempt" in offered(site.read(f"{JOB}/checkpoints/2"))


def test_a_removal_is_shown_until_an_attempt_starts_or_a_user_withdraws_it(site: Site, failed: MadeJob) -> None:
    preview = site.read(f"{JOB}/actions/prune")
    assert "deletes the files of 3 checkpoints, up to 12.0 MiB" in preview.text
    site.clock.advance(1)
    request(site, JobAction.PRUNE)
    page = site.read(JOB)
    (row,) = page.table("Newest requests to remove the job")
    assert (row["By"], row["Action"], row["Status"]) == ("ann", "Remove the job", "… queued")
    assert row["Outcome"] == "waits for the maintenance Dag or 'airflow statecheck prune'"
    assert offered(page)[:2] == ["Remove the job", "Withdraw the removal"]
    assert page.one("main").attributes["data-refresh-seconds"] == "5"
    assert site.read(f"{JOB}/actions/withdraw").one("h1").text == "Withdraw the removal"
    request(site, JobAction.WITHDRAW)
    statuses = [each["Status"] for each in site.read(JOB).table("Newest requests to remove the job")]
    assert sorted(statuses) == ["✓ completed", "✕ failed"]
    assert "Withdraw the removal" not in offered(site.read(JOB))


def test_a_running_job_is_not_removed(site: Site, failed: MadeJob) -> None:
    failed.begin()
    assert "Remove the job" not in offered(site.read(JOB))
    assert "has not ended" in site.read(f"{JOB}/actions/prune").text


def test_names_with_markup_are_text(site: Site, failed: MadeJob) -> None:
    request(site, JobAction.RESTORE, by=HOSTILE, checkpoint_id=2)
    assert site.read(JOB).all("img") == []
    failed.begin()
    page = site.read(JOB)
    assert page.all("img") == []
    assert HOSTILE in page.text
    page = Page(
        site.client.get(
            f"/statecheck{JOB}/actions/savepoint", params={"operator_id": OPERATOR, "run_key": HOSTILE}
        ).text
    )
    assert page.all("img") == []
    (button,) = [each for each in page.all("button") if "data-confirm" in each.attributes]
    assert json.loads(button.attributes["data-message"])["run_key"] == HOSTILE


def test_the_script_is_served(site: Site, failed: MadeJob) -> None:
    assert "X-Statecheck-Action" in site.client.get("/statecheck/static/actions.js").text


TEMPLATE = "{{ '' if params.restore_from == 'latest' else params.restore_from }}"
FORK = f"/jobs/{job_id_of('sales')}/actions/fork"


def fork_section(page: Page) -> str:
    return page.text.partition(" Fork ")[2]


def offers_fork(page: Page) -> bool:
    return any("data-preview" in each.attributes and each.text == "Fork from here" for each in page.all("a"))


@pytest.fixture
def page_of(site: Site) -> str:
    """The page of the second checkpoint of a job with a name of its own, which has a third one."""
    job = site.job().begin()
    job.checkpoint()
    job.checkpoint(
        summary=CheckpointSummary(steps=(StepSummary(name="sessions", outcome="computed", size_bytes=1 << 20),))
    )
    job.checkpoint()
    job.end(AttemptStatus.FAILED)
    site.user.edits = ("nightly",)
    return f"/jobs/{job_id_of('sales')}/checkpoints/2"


def test_a_checkpoint_whose_dag_takes_it_from_a_param_is_forked_on_its_page(site: Site, page_of: str) -> None:
    site.templates["nightly", "features"] = TEMPLATE
    page = site.read(page_of)
    assert offers_fork(page)
    assert fork_section(page) == ""


def test_the_preview_shows_what_is_restored_and_done_again_and_the_params(site: Site, page_of: str) -> None:
    site.templates["nightly", "features"] = TEMPLATE
    page = site.read(f"{FORK}?checkpoint_id=2")
    assert [each.text for each in page.all("h3")] == [
        "Kept",
        "Restored by the fork",
        "Work done again",
        "Params of the run",
    ]
    assert "nothing is deleted" in page.text
    assert "Checkpoint 3 of aggregate" in page.text
    (step,) = page.table("Steps of the fork")
    assert (step["Step"], step["Size"]) == ("sessions", "1.0 MiB")
    assert "newer checkpoints of the job may replace this one" in page.text
    (field,) = page.all("textarea")
    assert json.loads(field.text) == {"month": 12, "output": "<i>here</i>"}
    assert page.all("i") == []
    (button,) = [each for each in page.all("button") if "data-confirm" in each.attributes]
    message = json.loads(button.attributes["data-message"])
    assert message.keys() == {"checkpoint_id", "request_key"}


def test_the_job_lists_the_fork_with_a_link_to_its_run(site: Site, page_of: str) -> None:
    job_id = job_id_of("sales")
    wanted = UserAction(
        job_id=job_id, action=JobAction.FORK, checkpoint_id=2, request_key=new_key(), requested_by="ann"
    )
    site.actions.fork(wanted, lambda point: "fork__1")
    page = site.read(f"/jobs/{job_id}")
    (row,) = page.table("Newest requests to restore, fork, rewind and dispose of aggregate")
    assert (row["Action"], row["Status"], row["Of"]) == ("Fork from here", "✓ completed", "Checkpoint 2")
    assert row["Outcome"].startswith("run fork__1 of Dag nightly started")
    assert page.links()["Open the run in Airflow"] == "/dags/nightly/runs/fork__1"


def test_without_a_param_the_preview_is_refused(site: Site, page_of: str) -> None:
    page = site.read(f"{FORK}?checkpoint_id=2")
    assert "Expected task 'features' of Dag 'nightly' to take from_checkpoint from one param" in page.text
    assert page.all("button") == []


def test_a_savepoint_is_forked_too(site: Site, page_of: str) -> None:
    site.templates["nightly", "features"] = TEMPLATE
    job = site.job().begin()
    savepoint = job.checkpoint(serves=job.request_savepoint(target="memory://mine"), savepoint_dir="memory://mine")
    job.end()
    assert offers_fork(site.read(f"/jobs/{job_id_of('sales')}/checkpoints/{savepoint}"))
    page = site.read(f"{FORK}?checkpoint_id={savepoint}")
    assert "copy of savepoint" in page.text
    assert "subsume" not in page.text


@pytest.mark.parametrize("template", ["", "12", "{{ params.one or params.other }}"])
def test_without_such_a_param_the_page_says_how_to_add_one(site: Site, page_of: str, template: str) -> None:
    site.templates["nightly", "features"] = template
    assert 'from_checkpoint="{{ params.from_checkpoint }}"' in fork_section(site.read(page_of))


def test_one_who_may_not_trigger_the_dag_is_told_nothing_of_forks(site: Site, page_of: str) -> None:
    site.templates["nightly", "features"] = TEMPLATE
    site.user.edits = ()
    page = site.read(page_of)
    assert not offers_fork(page)
    assert fork_section(page) == ""
    site.read(f"{FORK}?checkpoint_id=2", status=404)


def test_a_job_that_begins_anew_with_each_run_has_no_forks(site: Site) -> None:
    job = site.job("nightly/2026-01-01").begin()
    job.checkpoint()
    site.user.edits = ("nightly",)
    assert fork_section(site.read(f"/jobs/{job.attempt.job_id}/checkpoints/1")) == ""
    refused = site.read(f"/jobs/{job.attempt.job_id}/actions/fork?checkpoint_id=1")
    assert "a job that ends with its run" in refused.text


def test_a_removed_dag_has_no_forks(site: Site, page_of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "forking_task", lambda *task: None)
    assert fork_section(site.read(page_of)) == ""


def test_a_subsumed_checkpoint_is_no_fork_point(site: Site, page_of: str) -> None:
    site.templates["nightly", "features"] = TEMPLATE
    job = site.job().begin(num_retained=1)
    job.checkpoint()
    assert not offers_fork(site.read(page_of))


@pytest.mark.parametrize(
    ("template", "param"),
    [
        ("{{ params.start }}", "start"),
        ("{{ params['start'] }}", "start"),
        ("{{ params.start if params.start != 'x' else '' }}", "start"),
        ("{{ params.get('start') }}", "start"),
        ('{{ params.get("start", "") }}', "start"),
        ("{{ params.get(name) }}", None),
        ("{{ params.unknown }}", None),
        ("{{ params.one }}{{ params.two }}", None),
        ("{{ dag_run.conf['start'] }}", None),
    ],
)
def test_the_only_param_of_a_template_names_the_fork_point(template: str, param: str | None) -> None:
    assert param_of(template, ("start", "one", "two")) == param
