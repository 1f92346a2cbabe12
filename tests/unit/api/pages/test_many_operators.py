"""Pages of jobs with more operators than fit on one page."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.api.pages.operator_rows import OPERATORS_ON_PAGE
from airflow_provider_statecheck.api.pages.routes import LARGEST_SECTIONS
from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.metadata.tables import Caller
from tests.unit.api.pages.html import Page
from tests.unit.api.pages.site import ROOT, MadeJob, Site

CAPTION = "Operators of mapped"
RUN = "/dags/nightly/runs/run-1"


def mapped(site: Site, count: int) -> list[MadeJob]:
    """Return the operators of the instances of a mapped task; the first has failed, the second has finished."""
    tasks = [Caller(dag_id="nightly", run_id="run-1", task_id="load", map_index=index) for index in range(count)]
    operators = [site.job("mapped", uid=f"load[{task.map_index}]", task=task).begin() for task in tasks]
    operators[0].end(AttemptStatus.FAILED, "PlannedError: disk full")
    operators[1].checkpoint(full=7 << 20)
    operators[1].end()
    return operators


def page_of(site: Site, operators: list[MadeJob], query: str = "") -> Page:
    return site.read(f"/jobs/{operators[0].attempt.job_id}{query}")


def names(page: Page) -> list[str]:
    return [row["Operator"] for row in page.table(CAPTION)]


def test_many_operators_are_a_table_with_a_page_for_each(site: Site) -> None:
    operators = mapped(site, LARGEST_SECTIONS + 1)
    page = page_of(site, operators, "?sort=name")
    assert not page.all("section", class_="operator")
    failed, finished, running, *_ = page.table(CAPTION)
    assert (failed["Operator"], failed["Newest checkpoint"]) == ("load[0]", "\N{EN DASH}")
    assert failed["Status"].endswith("failed")
    assert failed["Last failure"].endswith("PlannedError: disk full")
    assert finished["Newest checkpoint"].startswith("1, ")
    assert finished["Size"] == "7.0 MiB"
    assert running["Status"].endswith("running")
    link = page.links()["load[1]"]
    assert link == f"{ROOT}/jobs/{operators[0].attempt.job_id}/operators/{operator_id_of('load[1]')}"
    shown = site.read(link.removeprefix(ROOT))
    assert [e.text for e in shown.all("h2")] == ["load[1] ✓ finished"]
    assert len(shown.table("Newest checkpoints of load[1]")) == 1


def test_few_operators_have_a_section_each_on_the_page_of_the_job(site: Site) -> None:
    page = page_of(site, mapped(site, LARGEST_SECTIONS))
    assert len(page.all("section", class_="operator")) == LARGEST_SECTIONS


def test_the_table_is_sorted_and_filtered_on_the_server_and_read_in_pages(site: Site) -> None:
    operators = mapped(site, OPERATORS_ON_PAGE + 2)
    first = page_of(site, operators)
    assert "52 operators, 1 failed, 1 finished, 50 running" in first.text
    assert names(first)[:3] == ["load[2]", "load[3]", "load[4]"], "running ones come first, in the order of the indexes"
    assert len(names(first)) == OPERATORS_ON_PAGE
    second = site.read(first.links()["Next page"].removeprefix(ROOT))
    assert names(second) == ["load[0]", "load[1]"]
    assert "Next page" not in second.links()
    assert site.read(second.links()["Previous page"].removeprefix(ROOT)).table(CAPTION) == first.table(CAPTION)
    by_size = site.read(first.links()["Size"].removeprefix(ROOT))
    assert names(by_size)[0] == "load[1]"
    assert by_size.one("th", aria_sort="descending").one("a").text == "Size"
    assert names(page_of(site, operators, "?name=D[1]")) == ["load[1]"]
    assert "No operator matches the filter." in page_of(site, operators, "?name=other").text


def test_the_page_of_a_run_is_the_same_table_over_all_its_jobs(site: Site) -> None:
    mapped(site, OPERATORS_ON_PAGE)
    site.job("sales").begin().checkpoint()
    page = site.read(f"{RUN}?sort=completed_at&descending=true")
    rows = page.table("Operators with attempts of this run")
    assert [(row["Job"], row["Operator"]) for row in rows[:2]] == [("sales", "aggregate"), ("mapped", "load[1]")]
    assert (
        len(site.read(page.links()["Next page"].removeprefix(ROOT)).table("Operators with attempts of this run")) == 1
    )


@pytest.mark.parametrize("query", ["page=0", "page=x", "sort=x"])
def test_an_unknown_page_of_the_table_is_not_found(site: Site, query: str) -> None:
    operators = mapped(site, 2)
    page_of(site, operators)
    site.read(f"/jobs/{operators[0].attempt.job_id}?{query}", status=404)


def test_an_operator_that_the_job_does_not_have_is_not_found(site: Site) -> None:
    operators = mapped(site, 2)
    site.read(f"/jobs/{operators[0].attempt.job_id}/operators/{operator_id_of('other')}", status=404)


def test_an_operator_of_an_unreadable_dag_is_not_found(site: Site) -> None:
    operators = mapped(site, 2)
    site.user.dag_ids = ()
    site.read(f"/jobs/{operators[0].attempt.job_id}/operators/{operator_id_of('load[1]')}", status=404)
