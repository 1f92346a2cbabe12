"""What the page of a checkpoint says about forks, and the param that it names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from airflow.models.dagbag import DBDagBag
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_statecheck import CheckpointedPySparkOperator
from airflow_provider_statecheck.api.pages import forks
from airflow_provider_statecheck.api.pages.forks import param_of
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.unit.api.pages.html import Page
from tests.unit.api.pages.site import Site

from_checkpoint_of = forks.from_checkpoint_of


def fork_section(page: Page) -> str:
    return page.text.partition(" Fork ")[2]


@pytest.fixture
def page_of(site: Site) -> str:
    """The page of the second checkpoint of a job with a name of its own."""
    job = site.job().begin()
    job.checkpoint()
    job.checkpoint()
    job.end(AttemptStatus.FAILED)
    site.user.edits = ("nightly",)
    return f"/jobs/{job_id_of('sales')}/checkpoints/2"


def test_the_page_names_the_dag_and_the_param_of_the_fork(site: Site, page_of: str) -> None:
    site.templates["nightly", "features"] = "{{ '' if params.restore_from == 'latest' else params.restore_from }}"
    page = site.read(page_of)
    assert "with the param restore_from set to the pointer above" in fork_section(page)
    assert page.links()["nightly"] == "/dags/nightly"


@pytest.mark.parametrize("template", ["", "12", "{{ params.one or params.other }}"])
def test_without_such_a_param_the_page_says_how_to_add_one(site: Site, page_of: str, template: str) -> None:
    site.templates["nightly", "features"] = template
    assert 'from_checkpoint="{{ params.from_checkpoint }}"' in fork_section(site.read(page_of))


def test_one_who_may_not_trigger_the_dag_is_told_nothing_of_forks(site: Site, page_of: str) -> None:
    site.user.edits = ()
    assert fork_section(site.read(page_of)) == ""


def test_a_job_that_begins_anew_with_each_run_has_no_forks(site: Site) -> None:
    job = site.job("nightly/2026-01-01").begin()
    job.checkpoint()
    site.user.edits = ("nightly",)
    assert fork_section(site.read(f"/jobs/{job.attempt.job_id}/checkpoints/1")) == ""


def test_a_removed_dag_has_no_forks(site: Site, page_of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "from_checkpoint_of", lambda *task: None)
    assert fork_section(site.read(page_of)) == ""


def test_a_pending_checkpoint_is_no_fork_point(site: Site, page_of: str) -> None:
    job = site.job().begin(num_retained=1)
    job.checkpoint()
    assert fork_section(site.read(page_of)) == "", "it is subsumed"


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


def test_the_argument_is_read_from_the_serialized_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    with DAG("nightly", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None, params={"start": ""}) as dag:
        CheckpointedPySparkOperator(
            task_id="features",
            python_callable=lambda checkpoint: None,
            job="sales",
            from_checkpoint="{{ params.start }}",
        )
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))

    @contextmanager
    def no_session() -> Iterator[None]:
        yield None

    found = {"nightly": stored}
    monkeypatch.setattr(DBDagBag, "get_latest_version_of_dag", lambda _, dag_id, session: found.get(dag_id))
    monkeypatch.setattr(forks, "create_session", no_session)
    assert from_checkpoint_of("nightly", "features") == ("{{ params.start }}", frozenset({"start"}))
    assert from_checkpoint_of("nightly", "gone") == ("", frozenset({"start"}))
    assert from_checkpoint_of("gone", "features") is None
