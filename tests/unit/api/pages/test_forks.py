"""What the page of a checkpoint says about forks, and the param that it names."""

from __future__ import annotations

import json

import pytest

from airflow_provider_statecheck.api.action_routes import param_of
from airflow_provider_statecheck.api.pages import routes
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, JobAction
from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary, StepSummary
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.actions import JobActions
from airflow_provider_statecheck.maintenance.rewind import JobRewinding
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from tests.unit.api.pages.html import Page
from tests.unit.api.pages.site import Site

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
        summary=SnapshotSummary(steps=(StepSummary(name="sessions", outcome="computed", size_bytes=1 << 20),))
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
    assert "newer checkpoints of the job may subsume this one" in page.text
    (field,) = page.all("textarea")
    assert json.loads(field.text) == {"month": 12, "output": "<i>here</i>"}
    assert page.all("i") == []
    (button,) = [each for each in page.all("button") if "data-confirm" in each.attributes]
    message = json.loads(button.attributes["data-message"])
    assert message.keys() == {"checkpoint_id", "request_key"}


def test_the_job_lists_the_fork_with_a_link_to_its_run(site: Site, page_of: str) -> None:
    actions = JobActions(site.store, JobSavepoints(site.store), JobRewinding(site.store, UnknownLiveness()))
    job_id = job_id_of("sales")
    wanted = UserAction(
        job_id=job_id, action=JobAction.FORK, checkpoint_id=2, request_key=new_key(), requested_by="ann"
    )
    actions.fork(wanted, lambda point: "fork__1")
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
