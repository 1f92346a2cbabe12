from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_statecheck.api.pages.addresses import Addresses
from airflow_provider_statecheck.api.pages.rendering import readable_duration, relative_time
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.unit.api.pages.html import Element, Page
from tests.unit.api.pages.site import ROOT, Site

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0.0 s"),
        (0, "0.0 s"),
        (0.0042, "4 ms"),
        (1.26, "1.3 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (185, "3 min 5 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (7890, "2 h 11 min"),
        (200000, "2 d 7 h"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert readable_duration(seconds) == readable_duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (59, "59 s ago"), (3599, "59 min ago"), (7200, "2 h ago"), (200000, "2 d ago"), (-90, "in 1 min")],
)
def test_ages_have_one_unit(seconds: float, text: str) -> None:
    assert relative_time(NOW - timedelta(seconds=seconds), NOW) == text


def test_a_page_loads_its_own_files_alone_and_may_stand_in_airflows_frame(site: Site) -> None:
    reply = site.client.get(f"{ROOT}/jobs")
    policy = dict(each.split(" ", 1) for each in reply.headers["Content-Security-Policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'self'",
    }


def test_files_are_served_with_their_types_and_revalidated(site: Site) -> None:
    for name, kind in (("pages.css", "text/css"), ("pages.js", "javascript"), ("checkpoints.svg", "image/svg+xml")):
        reply = site.client.get(f"{ROOT}/static/{name}")
        assert kind in reply.headers["content-type"]
        assert reply.headers["Cache-Control"] == "no-cache"
        again = site.client.get(f"{ROOT}/static/{name}", headers={"If-None-Match": reply.headers["etag"]})
        assert again.status_code == 304
    assert site.client.get(f"{ROOT}/static/../routes.py").status_code == 404
    assert site.client.get(f"{ROOT}/static/%2e%2e/routes.py").status_code == 404


def _pages(site: Site) -> dict[str, Page]:
    job = site.job().begin()
    key = job.request_savepoint()
    job.checkpoint(serves=key, savepoint_dir="memory://savepoints")
    job.checkpoint()
    job.decline("no space")
    job.end(AttemptStatus.FAILED, "broken")
    job.begin()
    path = f"/jobs/{job.attempt.job_id}"
    task = "/dags/nightly/runs/run-1/tasks/features"
    paths = ("/jobs", path, f"{path}/checkpoints", f"{path}/checkpoints/1", "/dags/nightly", task, f"{task}2")
    return {each: site.read(each) for each in paths} | {"absent": site.read("/jobs/x", status=404)}


def test_pages_have_nothing_inline(site: Site) -> None:
    for path, page in _pages(site).items():
        for element in page.all():
            assert not [name for name in element.attributes if name == "style" or name.startswith("on")], path
            assert element.tag != "style", path
            assert element.tag != "script" or not element.text, path


def test_headings_go_down_one_level_at_a_time(site: Site) -> None:
    for path, page in _pages(site).items():
        levels = [int(e.tag[1]) for e in page.all() if e.tag in ("h1", "h2", "h3", "h4")]
        assert levels[0] == 1, path
        assert levels.count(1) == 1, path
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), path


def test_what_is_read_aloud_has_names(site: Site) -> None:
    for path, page in _pages(site).items():
        assert page.one("html").attributes["lang"] == "en"
        assert page.one("head").one("title").text, path
        for table in page.all("table"):
            assert table.one("caption").text, path
        for cell in page.all("th"):
            assert cell.attributes["scope"] in ("col", "row"), path
        for svg in page.all("svg"):
            assert svg.attributes["role"] == "img", path
            assert svg.attributes["aria-label"], path
        for control in (*page.all("select"), *page.all("input")):
            assert control.attributes.get("type") == "hidden" or _is_labelled(control), path
        for control in (*page.all("button"), *page.all("a")):
            assert control.text or control.attributes.get("aria-label"), path
        names = [each.attributes["aria-label"] for each in page.all("nav")]
        assert len({*names}) == len(names), path


def test_ids_are_unique_and_what_refers_to_them_finds_them(site: Site) -> None:
    for path, page in _pages(site).items():
        ids = [e.attributes["id"] for e in page.all() if "id" in e.attributes]
        assert len({*ids}) == len(ids), path
        for part in page.all(class_="part"):
            assert part.attributes["id"], path
        for element in page.all():
            assert element.attributes.get("aria-labelledby", ids[0]) in ids
            if element.attributes.get("href", "").startswith("#"):
                assert element.attributes["href"][1:] in ids


def _is_labelled(control: object) -> bool:
    parent = control.parent  # type: ignore[attr-defined]
    return parent is not None and (parent.tag == "label" or _is_labelled(parent))


def test_every_status_is_in_a_part_that_an_update_replaces(site: Site) -> None:
    for path, page in _pages(site).items():
        for status in page.one("main").all("span"):
            if status.attributes.get("class", "").startswith("status "):
                assert _has_part(status), path


def _has_part(element: Element | None) -> bool:
    return element is not None and ("part" in element.attributes.get("class", "").split() or _has_part(element.parent))


def test_a_status_is_told_by_words_and_not_by_colour_alone(site: Site) -> None:
    for page in _pages(site).values():
        for status in page.all("span"):
            name = status.attributes.get("class", "")
            if name.startswith("status "):
                assert name.removeprefix("status status-") in status.text


def test_an_owner_without_a_map_index_is_a_task_that_is_not_mapped() -> None:
    task = (("dag_id", "nightly"), ("run_id", "run-1"), ("task_id", "features"))
    whole = (*task, ("map_index", "-1"))
    assert Addresses("").task(task) == Addresses("").task(whole)
    assert Addresses("").airflow_task(task, 2) == Addresses("").airflow_task(whole, 2)


def test_an_owner_without_a_task_has_no_address() -> None:
    made_up = (("dag_id", "nightly"), ("map_index", "-1"))
    assert Addresses("").task(made_up) is None
    assert Addresses("").airflow_task(made_up) is None
