"""The lists of jobs, the pages of tasks, runs and Dags, and what a user may see of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_statecheck.checkpoint import registration
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus
from airflow_provider_statecheck.exceptions import (
    ConcurrentAttemptError,
    CorruptRowError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StaleAttemptError,
)
from airflow_provider_statecheck.metadata.tables import Caller
from airflow_provider_statecheck.plugins.statecheck import StatecheckPlugin
from tests.messages import make_owner
from tests.soak import rest_in_soak
from tests.unit.api.pages.html import Page
from tests.unit.api.pages.site import ROOT, MadeJob, Site, open_site

TASK = "/dags/nightly/runs/run-1/tasks/features"
MAPPED = Caller(dag_id="nightly", run_id="run-1", task_id="features", map_index=2)


def headings(site: Site, path: str) -> list[str]:
    return [each.text for each in site.read(path).all("h2")]


def test_a_task_shows_its_own_operators_alone(site: Site) -> None:
    site.job("shared", uid="features").begin()
    other = Caller(dag_id="nightly", run_id="run-1", task_id="report")
    site.job("shared", uid="report", task=other).begin()
    assert headings(site, TASK) == ["features ▶ running"]
    assert headings(site, "/dags/nightly/runs/run-1/tasks/report") == ["report ▶ running"]


@pytest.mark.parametrize("query", ["", "?map_index=%7BMAP_INDEX%7D", "?map_index=-1"])
def test_a_task_that_is_not_mapped_has_the_placeholder_of_the_ui_in_its_address(site: Site, query: str) -> None:
    site.job("plain").begin()
    site.job("mapped", uid="features[2]", task=MAPPED).begin()
    assert headings(site, TASK + query) == ["aggregate ▶ running"]
    assert headings(site, f"{TASK}?map_index=2") == ["features[2] ▶ running"]


@pytest.mark.parametrize("digits", [10, 11, 5000])
def test_an_index_that_no_mapped_task_has_is_refused(site: Site, digits: int) -> None:
    assert (
        "Expected map_index to be a whole number of 32 bits"
        in site.read(f"{TASK}?map_index={'9' * digits}", status=400).text
    )


def test_attempts_of_the_task_carry_the_number_of_their_try(site: Site) -> None:
    job = site.job(uid="features").begin()
    job.end()
    job.task = Caller(dag_id="nightly", run_id="run-2", task_id="features")
    job.begin()
    assert [e.attributes["data-try"] for e in site.read(TASK).all("tr") if "data-try" in e.attributes] == ["1"]


def test_a_task_without_checkpoints_says_how_to_have_them(site: Site) -> None:
    page = site.read(TASK)
    assert page.one("h1").text == "nightly.features"
    assert (
        "has not begun to take checkpoints. If the coordinator refused the task, the last lines of its log say why"
        in page.text
    )
    assert "@task.checkpointed_spark" in page.one("pre").text
    assert page.links()["features"] == TASK


@pytest.mark.parametrize(("state", "updates"), [("running", True), ("up_for_retry", True), ("success", False)])
def test_a_task_that_may_register_soon_is_looked_at_again(site: Site, state: str, updates: bool) -> None:
    site.states[Caller(dag_id="nightly", run_id="run-1", task_id="features")] = state
    page = site.read(TASK)
    assert ("data-refresh-seconds" in page.one("main").attributes) is updates
    assert ("yet" in page.one("section").text) is updates


def test_a_run_lists_its_operators_and_links_to_their_jobs(site: Site) -> None:
    job = site.job("sales").begin()
    job.checkpoint()
    site.job("old", task=Caller(dag_id="nightly", run_id="run-0", task_id="features")).begin()
    page = site.read("/dags/nightly/runs/run-1")
    (row,) = page.table("Operators with attempts of this run")
    assert (row["Job"], row["Operator"], row["Size"]) == ("sales", "aggregate", "4.0 MiB")
    assert page.links()["sales"] == f"{ROOT}/jobs/{job.attempt.job_id}"
    assert page.links()["run-1"] == "/dags/nightly/runs/run-1"


def test_a_dag_lists_its_jobs(site: Site) -> None:
    site.user.dag_ids = ("nightly", "hourly")
    site.job("sales").begin()
    site.job("clicks", task=Caller(dag_id="hourly", run_id="run-1", task_id="clicks")).begin()
    assert [row["Job"] for row in site.read("/dags/hourly").table("Jobs of this Dag")] == ["clicks"]
    assert {row["Job"] for row in site.read("/jobs").table("Jobs")} == {"sales", "clicks"}


def test_ids_with_other_characters_lead_to_their_pages(site: Site) -> None:
    task = Caller(dag_id="nightly", run_id="manual__2026-01-01T00:00:00+00:00/a b", task_id="tâche.x")
    site.job("odd", task=task).begin()
    page = site.read(f"/dags/nightly/runs/{quote(task.run_id, safe='')}/tasks/{quote(task.task_id, safe='')}")
    assert page.one("h1").text == "nightly.tâche.x"
    assert [each.text for each in page.all("h2")] == ["aggregate ▶ running"]
    own = page.links()["Checkpoints of this task"]
    assert site.read(own.removeprefix(ROOT)).one("h1").text == "nightly.tâche.x"


class TestPermission:
    """A user who may not read every Dag of a job finds no trace of it."""

    @pytest.fixture
    def secret(self, site: Site) -> str:
        """A job of two Dags. The user may read only one of them."""
        job = site.job("secret sales").begin()
        job.checkpoint()
        job.task = Caller(dag_id="private", run_id="run-1", task_id="features")
        job.uid = "other"
        job.begin()
        return str(job.attempt.job_id)

    @pytest.mark.parametrize("place", ["", "/checkpoints", "/checkpoints/1"])
    def test_its_pages_are_those_of_a_job_that_does_not_exist(self, site: Site, secret: str, place: str) -> None:
        refused = site.client.get(f"{ROOT}/jobs/{secret}{place}")
        absent = site.client.get(f"{ROOT}/jobs/{job_id_of('nothing')}{place}")
        assert refused.status_code == absent.status_code == 404
        assert refused.text == absent.text

    @pytest.mark.parametrize("path", ["/jobs", "/dags/nightly", "/dags/nightly/runs/run-1", TASK])
    def test_no_list_has_it(self, site: Site, secret: str, path: str) -> None:
        page = site.read(path)
        assert "secret" not in page.text
        assert secret not in str(page.links())
        assert page.all("h2")[0].text == "No checkpoints"

    def test_no_count_has_it(self, site: Site, secret: str) -> None:
        site.job("public").begin()
        for path in ("/jobs", "/dags/nightly", "/jobs?status=running", "/jobs?name=l", "/jobs?dag_id=nightly"):
            page = site.read(path)
            assert "1 job, 1 running" in page.one("main").text, path
            assert "secret" not in page.text
        assert "0 jobs" in site.read("/jobs?dag_id=private").text

    @pytest.mark.parametrize("path", ["/dags/private", "/dags/private/runs/run-1", "/dags/private/runs/r/tasks/t"])
    def test_a_dag_that_may_not_be_read_is_not_found(self, site: Site, secret: str, path: str) -> None:
        site.read(path, status=404)
        site.user.dag_ids = ("nightly", "private")
        site.read(path)

    def test_it_is_shown_as_soon_as_the_user_may_read_all_dags(self, site: Site, secret: str) -> None:
        site.user.dag_ids = ("nightly", "private")
        assert site.read(f"/jobs/{secret}").one("h1").text == "secret sales"
        assert "secret sales" in site.read("/jobs").text

    def test_a_job_without_a_dag_is_shown_to_nobody(self, site: Site) -> None:
        job = site.job("script").begin(owner=make_owner(logical_task="script/x", label="script x"))
        site.read(f"/jobs/{job.attempt.job_id}", status=404)
        assert "script" not in site.read("/jobs").one("main").text

    def test_the_auth_manager_is_asked_once_for_each_dag(self, site: Site) -> None:
        for number in range(3):
            site.job(f"sales {number}").begin()
        site.read("/dags/nightly/runs/run-1")
        assert site.manager.asked == [("GET", "nightly"), ("PUT", "nightly")]


class TestViews:
    """The views of the plugin in Airflow's UI."""

    @pytest.fixture(params=["/", "https://example.com/airflow/"])
    def root(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", request.param)
        return "/airflow" if "airflow" in request.param else ""

    def test_each_leads_to_a_page_when_the_ui_has_filled_in_the_placeholders(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled = {"{DAG_ID}": "nightly", "{RUN_ID}": "run-1", "{TASK_ID}": "features", "{MAP_INDEX}": "2"}
        known = {
            "nav": set(),
            "dag": {"{DAG_ID}"},
            "dag_run": {"{DAG_ID}", "{RUN_ID}"},
            "task_instance": {*filled},
        }
        with open_site(monkeypatch, f"{root}{ROOT}") as site:
            for view in StatecheckPlugin().external_views:
                href = view["href"]
                assert {each for each in filled if each in href} == known[view["destination"]]
                for placeholder, value in filled.items():
                    href = href.replace(placeholder, value)
                assert site.client.get(href).status_code == 200, href
                for icon in (view["icon"], view["icon_dark_mode"]):
                    assert site.client.get(icon).headers["content-type"] == "image/svg+xml"

    def test_their_routes_are_unique(self) -> None:
        routes = [view["url_route"] for view in StatecheckPlugin().external_views]
        assert len({*routes}) == len(routes) == 4
        assert all(route.startswith("statecheck-") for route in routes)


@pytest.mark.parametrize("root", rest_in_soak(["", "/airflow"], "/airflow"))
def test_every_link_leads_to_a_page_below_the_path_of_the_server(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    with open_site(monkeypatch, f"{root}{ROOT}") as site:
        job = site.job().begin()
        key = job.request_savepoint()
        job.checkpoint(serves=key, savepoint_dir="memory://savepoints")
        job.checkpoint()
        start, seen = f"{root}{ROOT}/jobs", set[str]()
        todo = [start]
        while todo:
            path = todo.pop()
            if path in seen:
                continue
            seen.add(path)
            reply = site.client.get(path)
            assert reply.status_code == 200, path
            page = Page(reply.text)
            for link in page.all("a"):
                href = link.attributes["href"]
                if "data-airflow" in link.attributes:
                    assert href.startswith(f"{root}/dags/nightly")
                elif not href.startswith("#"):
                    todo.append(href.partition("#")[0])
            files = [e.attributes.get("src") or e.attributes["href"] for e in (*page.all("script"), *page.all("link"))]
            assert all(site.client.get(each).status_code == 200 for each in files)
        assert any(each.endswith("/tasks/features") for each in seen)
        assert any(each.endswith("/checkpoints/2") for each in seen)


HOSTILE = "<script>alert('x')<b>\"'&amp;"


@pytest.fixture
def jobs(site: Site) -> Site:
    """Four jobs: of two Dags, growing, shrinking, failed and without a checkpoint."""
    site.user.dag_ids = ("nightly", "hourly")
    growing = site.job("growing").begin()
    growing.checkpoint(full=1 << 20)
    growing.checkpoint(full=3 << 20)
    shrinking = site.job("shrinking", task=Caller(dag_id="hourly", run_id="run-1", task_id="x")).begin()
    shrinking.checkpoint(full=5 << 20)
    shrinking.checkpoint(full=4 << 20)
    shrinking.end()
    failed = site.job("failed job").begin()
    failed.end(AttemptStatus.FAILED, "PlannedError: " + HOSTILE)
    site.job("new").begin()
    return site


def names(site: Site, path: str = "/jobs") -> list[str]:
    return [row["Job"] for row in site.read(path).table("Jobs")]


def test_jobs_are_listed_with_status_age_size_trend_and_last_failure(jobs: Site) -> None:
    rows = {row["Job"]: row for row in jobs.read("/jobs").table("Jobs")}
    assert [*rows] == ["growing", "new", "failed job", "shrinking"], "what runs comes first, then what failed"
    assert rows["growing"]["Size"] == "3.0 MiB ↑ 2.0 MiB more"
    assert rows["shrinking"]["Size"] == "4.0 MiB ↓ 1.0 MiB less"
    assert rows["growing"]["Newest checkpoint"].startswith("2, ")
    assert "2026-05-01 12:01:04 UTC" in rows["growing"]["Newest checkpoint"]
    assert rows["failed job"]["Last failure"].endswith("PlannedError: " + HOSTILE)
    assert rows["failed job"]["Status"] == "✕ failed"
    assert rows["shrinking"]["Dags"] == "hourly"
    assert rows["new"]["Newest checkpoint"] == "\N{EN DASH}"


@pytest.mark.parametrize(
    ("heading", "first", "reversed_"),
    [
        ("Job", "failed job", "shrinking"),
        ("Size", "shrinking", "growing"),
        ("Newest checkpoint", "shrinking", "growing"),
    ],
)
def test_headings_sort_the_list_and_reverse_it(jobs: Site, heading: str, first: str, reversed_: str) -> None:
    link = jobs.read("/jobs").links()[heading].removeprefix(ROOT)
    page = jobs.read(link)
    assert names(jobs, link)[0] == first
    (column,) = [each for each in page.all("th") if "aria-sort" in each.attributes]
    assert column.text.startswith(heading)
    assert names(jobs, page.links()[heading].removeprefix(ROOT))[0] == reversed_


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("?name=OW", ["growing"]),
        ("?status=failed", ["failed job"]),
        ("?dag_id=hourly", ["shrinking"]),
        ("?name=&status=&dag_id=&sort=name", ["failed job", "growing", "new", "shrinking"]),
    ],
)
def test_the_list_is_filtered(jobs: Site, query: str, found: list[str]) -> None:
    assert names(jobs, f"/jobs{query}") == found


def test_the_form_keeps_the_order_and_what_was_typed(jobs: Site) -> None:
    form = jobs.read("/jobs?name=%22%3E%3Cb%3E&sort=size&descending=true&status=failed").one("form")
    values = {e.attributes["name"]: e.attributes["value"] for e in form.all("input")}
    assert values == {"name": '"><b>', "dag_id": "", "sort": "size", "descending": "true"}
    assert [e.text for e in form.all("option", selected="")] == ["failed"]
    assert "No job matches the filter." in jobs.read("/jobs?name=%22%3E%3Cb%3E").text


def test_counts_lead_to_the_jobs_of_a_status(jobs: Site) -> None:
    page = jobs.read("/jobs?sort=name")
    assert "4 jobs," in page.text
    assert names(jobs, page.links()["2 running"].removeprefix(ROOT)) == ["growing", "new"]


def test_the_page_of_a_dag_asks_for_no_dags_but_those_of_its_jobs(jobs: Site) -> None:
    jobs.job("growing", task=Caller(dag_id="weekly", run_id="run-1", task_id="x")).begin()
    jobs.manager.asked.clear()
    jobs.read("/dags/nightly")
    assert sorted(jobs.manager.asked) == [("GET", "nightly"), ("GET", "weekly")]


@pytest.mark.parametrize("start", ["/jobs?sort=name&name=many", "/dags/nightly?sort=name&name=many"])
def test_pages_lead_through_all_jobs_with_their_filter(site: Site, start: str) -> None:
    for number in range(120):
        site.job(f"many {number:03}").begin()
    site.job("another").begin()
    pages = [site.read(start)]
    while "Next page" in pages[-1].links():
        pages.append(site.read(pages[-1].links()["Next page"].removeprefix(ROOT)))
    caption = "Jobs" if start.startswith("/jobs") else "Jobs of this Dag"
    seen = [row["Job"] for page in pages for row in page.table(caption)]
    assert seen == [f"many {number:03}" for number in range(120)]
    assert len(pages) == 3
    assert ["First page" in page.links() for page in pages] == [False, True, True]


def test_the_list_updates_itself_while_a_job_on_it_runs(jobs: Site) -> None:
    jobs.clock.advance(3601)  # A job that failed long ago does not count.
    assert "data-refresh-seconds" in jobs.read("/jobs").one("main").attributes
    assert "data-refresh-seconds" not in jobs.read("/jobs?status=failed").one("main").attributes


@pytest.mark.parametrize(("query", "status"), [("?after=x", 400), ("?sort=x", 404), ("?status=x", 404)])
def test_an_address_that_is_not_of_a_list_is_refused(site: Site, query: str, status: int) -> None:
    site.read(f"/jobs{query}", status=status)


def test_a_refused_task_shows_the_reason_and_the_remedy_and_so_does_its_job(site: Site) -> None:
    holder = site.job("balances").begin()
    holder.checkpoint()
    twin = Caller(dag_id="nightly", run_id="run-1", task_id="twin")
    refused = site.job("balances", task=twin)
    with pytest.raises(InvalidConfigurationError):
        refused.begin(dag_uids={"features": ("aggregate",)})
    with pytest.raises(InvalidConfigurationError) as error:
        refused.begin(dag_uids={"features": ("aggregate",)})
    tab = site.read("/dags/nightly/runs/run-1/tasks/twin")
    assert str(error.value) in tab.one("pre").text
    assert "takes no checkpoints" not in tab.text
    assert "has not begun" not in tab.text
    of_job = site.read(f"/jobs/{holder.attempt.job_id}")
    assert [" ".join(each.text.split()) for each in of_job.one("details").all("pre")] == [
        " ".join(str(error.value).split())
    ]
    other = site.read("/dags/nightly/runs/run-1/tasks/never")
    assert str(error.value) not in other.text


def refused_twin(site: Site, dag_id: str) -> tuple[MadeJob, MadeJob, str]:
    """Return the holder of a uid, the task of a Dag that was refused beside it, and the error."""
    holder = site.job("balances").begin()
    holder.checkpoint()
    twin = site.job("balances", task=Caller(dag_id=dag_id, run_id="run-of-twin", task_id="twin"))
    twin.coordinator = AttemptCoordinator(site.store, EveryTaskRuns())
    with pytest.raises(ConcurrentAttemptError) as error:
        twin.begin()
    return holder, twin, str(error.value)


class EveryTaskRuns(UnknownLiveness):
    """Airflow as it is while no task has ended."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Return that a task runs."""
        return True


@pytest.mark.parametrize(("dag_id", "is_shown"), [("nightly", True), ("secret", False)])
def test_a_refused_task_of_a_dag_that_the_user_may_not_read_is_not_shown(
    site: Site, dag_id: str, is_shown: bool
) -> None:
    holder, _, error = refused_twin(site, dag_id)
    page = site.read(f"/jobs/{holder.attempt.job_id}")
    assert ("run-of-twin" in page.text, "Refused tasks" in page.text) == (is_shown, is_shown)
    assert "run-of-twin" in error


def test_a_refusal_goes_when_its_task_registers(site: Site) -> None:
    holder, twin, _ = refused_twin(site, "nightly")
    other = site.job("balances", task=replace(twin.task, task_id="other"))
    other.coordinator = twin.coordinator
    with pytest.raises(ConcurrentAttemptError):
        other.begin()
    holder.end()
    twin.begin()
    page = site.read(f"/jobs/{holder.attempt.job_id}")
    assert "Refused tasks (1)" in page.text


def test_only_conflicts_are_shown_and_no_text_of_the_database_and_no_process_that_was_replaced(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = site.job("balances").begin()
    holder.checkpoint()
    for error in (
        StaleAttemptError("A later try has replaced it."),
        CorruptRowError("connection to db.internal"),
        EnvironmentNotReadyError("relation does not exist"),
    ):

        def fails(*_: Any, raised: Exception = error) -> None:
            raise raised

        monkeypatch.setattr(registration, "register", fails)
        with pytest.raises(type(error)):
            holder.begin()
    assert "Refused tasks" not in site.read(f"/jobs/{holder.attempt.job_id}").text
