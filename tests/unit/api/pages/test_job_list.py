from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.metadata.tables import Caller
from tests.unit.api.pages.site import ROOT, Site

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
