from __future__ import annotations

from datetime import timedelta

from airflow_provider_statecheck.api.pages import charts
from airflow_provider_statecheck.api.pages.charts import BARS, CHART_HEIGHT, LANES
from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.store import JobView
from tests.unit.api.pages.site import MadeJob, Site


def _view(job: MadeJob) -> JobView:
    return job.coordinator.describe(job.attempt.job_id)


def test_bars_have_the_height_of_their_size_and_of_its_new_part(site: Site) -> None:
    job = site.job().begin()
    job.checkpoint(new=256, full=1024)
    job.checkpoint(new=0, full=2048)
    job.decline("fails")
    chart = charts.size_chart(_view(job).checkpoints, readable_size)
    assert chart is not None
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
    chart = charts.duration_chart(_view(job).checkpoints, lambda seconds: f"{seconds} s")
    assert chart is not None
    assert [bar.checkpoint_id for bar in chart.bars] == list(range(6, BARS + 6))
    assert all(bar.x >= 0 and bar.x + bar.width <= 100 for bar in chart.bars)
    assert all(a.x + a.width < b.x for a, b in zip(chart.bars, chart.bars[1:], strict=False))
    assert all(0 < bar.height < 3 for bar in chart.bars), "a bar of nothing can be seen, and stays low"


def test_there_is_no_chart_without_completed_checkpoints(site: Site) -> None:
    view = _view(site.job().begin())
    assert charts.size_chart(view.checkpoints, readable_size) is None
    assert charts.timeline((), (), site.clock.now()) is None


def test_a_timeline_has_attempts_newest_first_with_their_checkpoints_inside(site: Site) -> None:
    job = site.job().begin()
    job.checkpoint()
    job.end(AttemptStatus.FAILED)
    site.clock.advance(60)
    job.begin().restore()
    job.checkpoint()
    view = _view(job)
    shown = charts.timeline(view.attempts, view.checkpoints, view.read_at)
    assert shown is not None
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
    moment = charts.timeline(view.attempts, view.checkpoints, view.read_at)
    assert moment is not None
    assert 0 < moment.lanes[0].width <= 100
    for _ in range(LANES + 3):
        job.end(AttemptStatus.FAILED)
        site.clock.advance(timedelta(days=1).total_seconds())
        job.begin()
    view = _view(job)
    many = charts.timeline(view.attempts, view.checkpoints, view.read_at)
    assert many is not None
    assert [lane.epoch for lane in many.lanes] == list(range(LANES + 4, 4, -1))
    assert all(lane.x + lane.width <= 100.001 for lane in many.lanes)
