"""How the pages render figures and texts."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.api.pages import charts
from airflow_provider_statecheck.api.pages.charts import BARS, CHART_HEIGHT, LANES, readable_duration
from airflow_provider_statecheck.api.pages.rendering import Addresses, relative_time
from airflow_provider_statecheck.checkpoint.checkpoint_summary import (
    CheckpointSummary,
    LoopSummary,
    SourceSummary,
    StateSummary,
    StepSummary,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, TaskCoordinates
from airflow_provider_statecheck.checkpoint.store import JobView
from tests.messages import make_owner, present
from tests.unit.api.pages.html import Element, Page
from tests.unit.api.pages.site import ROOT, MadeJob, Site

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


def test_a_task_that_is_not_mapped_has_no_index_in_its_address() -> None:
    task, instance = TaskCoordinates("nightly", "run-1", "features"), TaskCoordinates("nightly", "run-1", "features", 0)
    assert "map" not in f"{Addresses('').task(task)}{Addresses('').airflow_task(task, 2)}"
    assert str(Addresses("").task(instance)).endswith("/tasks/features?map_index=0")
    assert str(Addresses("").airflow_task(instance, 2)).endswith("/tasks/features/mapped/0?try_number=2")


def test_an_owner_without_a_task_has_no_address() -> None:
    made_up = make_owner(airflow=())
    assert Addresses("").task(made_up.task) is None
    assert Addresses("").airflow_task(made_up.task) is None


NOTHING = "\N{EN DASH}"
HOSTILE = "<script>alert('x')<b>\"'&amp;"
SUMMARY = CheckpointSummary(
    steps=(
        StepSummary(name="raw", outcome="restored", seconds=185, size_bytes=3 << 20, rows=12345),
        StepSummary(name="sessions", outcome="computed", seconds=2.5, size_bytes=1024),
    ),
    loops=(
        LoopSummary(name="days", finished=3, total=12, seconds=75),
        LoopSummary(name="rank", finished=7, is_iteration=True),
    ),
    sources=(SourceSummary(uid="clicks", finished_splits=5, total_splits=20, remaining_seconds=600),),
    states=(StateSummary(uid="visits", name="count", kind="value", type="int64", keys=1234567, size_bytes=2 << 20),),
    open_commits=("orders: 2",),
    seconds_saved=185,
    snapshot_seconds=12,
    write_seconds=0.02,
    commit_seconds=3,
)


def tables(page: Page, part: str) -> dict[str, list[dict[str, str]]]:
    """The tables of a part of a page by the first word of their caption."""
    (found,) = [each for each in page.all(class_="part") if each.attributes["id"].endswith(part)]
    captions = [table.one("caption").text for table in found.all("table")]
    return {caption.split()[0]: page.table(caption) for caption in captions}


@pytest.fixture
def job(site: Site) -> MadeJob:
    job = site.job().begin()
    job.checkpoint(summary=SUMMARY)
    return job


@pytest.mark.parametrize(("place", "part"), [("", "-holds"), ("/checkpoints/1", "checkpoint")])
def test_a_checkpoint_is_shown_with_what_it_holds(site: Site, job: MadeJob, place: str, part: str) -> None:
    page = site.read(f"/jobs/{job.attempt.job_id}{place}")
    assert not page.all("h4"), "a page of a checkpoint has no third level"
    held = tables(page, part)
    raw, sessions = held["Steps"]
    assert [*raw.values()] == ["raw", "↺ restored", "3 min 5 s", "3.0 MiB", "12,345", "3 min 5 s"]
    assert [*sessions.values()] == ["sessions", "+ computed", "2.5 s", "1.0 KiB", NOTHING, NOTHING]
    days, rank = held["Loops"]
    assert (days["Done"], days["To do"], days["Duration"]) == ("3 items", "9", "1 min 15 s")
    assert days["Progress"].endswith("25 %")
    assert [*rank.values()][1:] == ["7 iterations", NOTHING, NOTHING, NOTHING]
    (clicks,) = held["Sources"]
    assert (clicks["Splits read"], clicks["Remaining"]) == ("5 of 20", "about 10 min")
    assert [*held["States"][0].values()] == ["visits", "count", "value", "int64", "1,234,567", "2.0 MiB"]
    (found,) = [each for each in page.all(class_="part") if each.attributes["id"].endswith(part)]
    durations = {e.one("dt").text: e.one("dd").text for e in found.all("dl")[-1].all("div")}
    assert durations == {
        "Time saved": "3 min 5 s",
        "Snapshots and state written in": "12 s",
        "Metadata written in": "20 ms",
        "Output committed in": "3.0 s",
    }


def test_a_step_in_parts_is_shown_with_its_progress(site: Site) -> None:
    job = site.job().begin()
    parted = StepSummary(name="scored", outcome="computed", parts=12, share=0.617, bad_parts=1)
    job.checkpoint(summary=CheckpointSummary(steps=(parted,)))
    page = site.read(f"/jobs/{job.attempt.job_id}/checkpoints/1")
    assert tables(page, "checkpoint")["Steps"][0]["Outcome"] == "+ computed 12 parts, 61 %, 1 failed"


def test_what_an_attempt_restored_is_shown_with_the_time_saved(site: Site, job: MadeJob) -> None:
    job.end()
    job.begin().restore(SUMMARY)
    page = site.read(f"/jobs/{job.attempt.job_id}")
    assert tables(page, "-restored")["Steps"][0]["Time saved"] == "3 min 5 s"
    newest, first = page.table("Attempts of aggregate, newest first")
    assert "3 min 5 s saved" in newest["Restored from"]
    assert "saved" not in first["Restored from"]


def test_a_restore_has_no_time_of_writing(site: Site, job: MadeJob) -> None:
    job.end()
    job.begin().restore(CheckpointSummary(steps=SUMMARY.steps, seconds_saved=185))
    page = site.read(f"/jobs/{job.attempt.job_id}")
    (restored,) = [each for each in page.all(class_="part") if each.attributes["id"].endswith("-restored")]
    assert [e.text for e in restored.all("dt")] == ["Time saved"]


def test_entries_that_were_left_out_are_counted(site: Site) -> None:
    job = site.job().begin()
    steps = tuple(StepSummary(name=f"step {n} {'x' * 100}", outcome="computed") for n in range(500))
    job.checkpoint(summary=CheckpointSummary(steps=steps))
    page = site.read(f"/jobs/{job.attempt.job_id}")
    shown = tables(page, "-holds")["Steps"]
    assert shown[-1]["Step"].startswith("step 499"), "the newest are shown"
    assert f"(and {500 - len(shown)} earlier)" in page.text


def test_a_checkpoint_without_figures_has_no_empty_tables(site: Site) -> None:
    job = site.job().begin()
    job.checkpoint()
    ids = [each.attributes["id"] for each in site.read(f"/jobs/{job.attempt.job_id}").all(class_="part")]
    assert not [each for each in ids if each.endswith(("-holds", "-restored"))]


def test_names_in_figures_are_text(site: Site) -> None:
    kinds: dict[str, Any] = {
        "steps": (StepSummary(name=HOSTILE, outcome=HOSTILE),),
        "loops": (LoopSummary(name=HOSTILE, finished=1, total=2),),
        "sources": (SourceSummary(uid=HOSTILE, finished_splits=1, total_splits=0),),
        "states": (StateSummary(uid=HOSTILE, name=HOSTILE, kind=HOSTILE, type=HOSTILE),),
        "open_commits": (HOSTILE,),
    }
    job = site.job().begin()
    job.checkpoint(summary=CheckpointSummary(**kinds))
    page = site.read(f"/jobs/{job.attempt.job_id}")
    assert page.text.count(HOSTILE) >= 8
    assert len(page.all("script")) == 3
    assert not page.all("b")


def _view(job: MadeJob) -> JobView:
    return job.coordinator.describe(job.attempt.job_id)


def test_bars_have_the_height_of_their_size_and_of_its_new_part(site: Site) -> None:
    job = site.job().begin()
    job.checkpoint(new=256, full=1024)
    job.checkpoint(new=0, full=2048)
    job.decline("fails")
    chart = present(charts.size_chart(_view(job).checkpoints))
    assert [bar.checkpoint_id for bar in chart.bars] == [1, 2], "a failed one has no size"
    assert [bar.height for bar in chart.bars] == [CHART_HEIGHT / 2, CHART_HEIGHT]
    assert [bar.inner_height for bar in chart.bars] == [CHART_HEIGHT / 8, 0]
    assert all(bar.y + bar.height == CHART_HEIGHT for bar in chart.bars)
    assert chart.summary == "Size of the newest 2 completed checkpoints: 1.0 KiB to 2.0 KiB, newest 2.0 KiB"
    assert chart.bars[0].title == "Checkpoint 1: 1.0 KiB, 256 B new"


def test_a_chart_shows_the_newest_checkpoints_within_its_width(site: Site) -> None:
    job = site.job().begin(num_retained=100)
    for _ in range(BARS + 5):
        job.checkpoint(seconds=0)
    chart = present(charts.duration_chart(_view(job).checkpoints))
    assert [bar.checkpoint_id for bar in chart.bars] == list(range(6, BARS + 6))
    assert all(bar.x >= 0 and bar.x + bar.width <= 100 for bar in chart.bars)
    assert all(a.x + a.width < b.x for a, b in zip(chart.bars, chart.bars[1:], strict=False))
    assert all(0 < bar.height < 3 for bar in chart.bars), "a bar of nothing can be seen, and stays low"


def test_there_is_no_chart_without_completed_checkpoints(site: Site) -> None:
    view = _view(site.job().begin())
    assert charts.size_chart(view.checkpoints) is None
    assert charts.timeline((), (), site.clock.now()) is None


def test_a_timeline_has_attempts_newest_first_with_their_checkpoints_inside(site: Site) -> None:
    job = site.job().begin()
    job.checkpoint()
    job.end(AttemptStatus.FAILED)
    site.clock.advance(60)
    job.begin().restore()
    job.checkpoint()
    view = _view(job)
    shown = present(charts.timeline(view.attempts, view.checkpoints, view.read_at))
    second, first = shown.lanes
    assert (second.epoch, second.status, first.epoch, first.status) == (2, "running", 1, "failed")
    assert first.x == 0
    assert second.x + second.width == 100, "it runs until now"
    assert first.x + first.width < second.x
    for lane in (first, second):
        ((position, title),) = lane.marks
        assert lane.x <= position <= lane.x + lane.width
        assert title == f"Checkpoint {lane.epoch}"
    assert "restored from checkpoint 1" in shown.summary


def test_a_timeline_of_a_moment_and_one_of_many_attempts_fit(site: Site) -> None:
    job = site.job().begin()
    view = _view(job)
    assert 0 < present(charts.timeline(view.attempts, view.checkpoints, view.read_at)).lanes[0].width <= 100
    for _ in range(LANES + 3):
        job.end(AttemptStatus.FAILED)
        site.clock.advance(timedelta(days=1).total_seconds())
        job.begin()
    view = _view(job)
    many = present(charts.timeline(view.attempts, view.checkpoints, view.read_at))
    assert [lane.epoch for lane in many.lanes] == list(range(LANES + 4, 4, -1))
    assert all(lane.x + lane.width <= 100.001 for lane in many.lanes)
