"""The page of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.api.pages.job_figures import OPERATORS_ON_PAGE
from airflow_provider_statecheck.api.pages.routes import LARGEST_SECTIONS
from airflow_provider_statecheck.checkpoint import messages
from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.fencing import SILENCE
from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnClear, Transport
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.metadata.tables import Caller
from tests.messages import make_owner
from tests.sqlite_rows import write_bad_value
from tests.unit.api.pages.html import Page
from tests.unit.api.pages.site import ROOT, MadeJob, Site

HOSTILE = "<script>alert('x')<b>\"'&amp;"
NOTHING = "\N{EN DASH}"
HISTORY = "Newest checkpoints of aggregate"
ATTEMPTS = "Attempts of aggregate, newest first"


def path_of(job: MadeJob) -> str:
    return f"/jobs/{job.attempt.job_id}"


@pytest.fixture
def retried(site: Site) -> MadeJob:
    """A job whose second try runs, after three checkpoints and a failure."""
    job = site.job().begin()
    for _ in range(3):
        job.checkpoint()
    job.decline("the disk is full")
    job.end(AttemptStatus.FAILED, "PlannedError: disk full")
    return job.begin().restore()


def test_attempts_are_listed_newest_first_with_what_they_restored(site: Site, retried: MadeJob) -> None:
    second, first = site.read(path_of(retried)).table(ATTEMPTS)
    assert (second["Attempt"], first["Attempt"]) == ("2", "1")
    assert second["Status"].endswith("running")
    assert first["Status"].endswith("failed")
    assert (second["Restored from"], first["Restored from"]) == ("Checkpoint 3", NOTHING)
    assert second["Start"] == "retry after an attempt that failed"
    assert first["Message"] == "PlannedError: disk full"


def tiles(page: Page) -> dict[str, str]:
    """Return the text of each tile after its name, by name."""
    found = (tile for tile in page.all("div") if tile.all("dt"))
    names = ((tile.all("dt")[0].text, tile.text) for tile in found)
    return {name: text.removeprefix(name).strip() for name, text in names}


def test_the_overview_names_the_work_its_rate_and_the_share_of_checkpointing(site: Site, retried: MadeJob) -> None:
    retried.clock.advance(400)
    restored = CheckpointSummary(seconds_saved=90.0, computing="days[2026-01-02]/sessions", computing_after=100.0)
    retried.report(replace(restored, rows_per_second=23456.7, checkpoint_share=0.0312))
    shown = tiles(site.read(path_of(retried)))
    assert shown["Computing now"].startswith("days[2026-01-02]/sessions since 5 min ago")
    assert shown["Rows per second"] == "23,457 of attempt 2"
    assert shown["Checkpointing"] == "3.1 % of the time of the task"
    assert shown["Time saved"].startswith("1 min 30 s"), "what it restored stays"


def test_a_checkpoint_tells_the_next_work_and_the_end_ends_it(site: Site, retried: MadeJob) -> None:
    retried.report(CheckpointSummary(computing="increment 1", rows_per_second=5.0))
    retried.checkpoint(summary=CheckpointSummary(computing="increment 2", rows_per_second=9.0, checkpoint_share=0.5))
    shown = tiles(site.read(path_of(retried)))
    assert shown["Computing now"].startswith("increment 2 since")
    assert shown["Rows per second"].startswith("9 ")
    assert shown["Checkpointing"].startswith("50.0 %")
    retried.end(AttemptStatus.FAILED, "lost")
    assert "Computing now" not in tiles(site.read(path_of(retried)))


@pytest.mark.parametrize("seconds", [1e10, 9e15, float("inf"), float("nan"), -1.0])
def test_a_page_is_shown_whatever_number_a_driver_sends(site: Site, retried: MadeJob, seconds: float) -> None:
    numbers: dict[str, Any] = {"computing_after": seconds, "rows_per_second": seconds, "checkpoint_share": seconds}
    retried.report(CheckpointSummary(computing="increment 1", **numbers))
    assert tiles(site.read(path_of(retried)))["Computing now"].startswith("increment 1")


@pytest.mark.parametrize(
    ("transport", "shown"),
    [
        (Transport.IN_PROCESS, " in process"),
        (Transport.HTTP, " over HTTP"),
        (Transport.MAILBOX, " through a mailbox"),
        (None, ""),
    ],
)
def test_the_age_of_the_last_answer_and_the_way_of_the_calls_are_shown_until_the_attempt_ends(
    site: Site, transport: Transport | None, shown: str
) -> None:
    job = site.job().begin(transport=transport)
    job.clock.advance(60)
    job.report(CheckpointSummary(computing="increment 1"))
    job.clock.advance(600)
    page = site.read(path_of(job))
    assert tiles(page)["Last answer"].startswith("10 min ago")
    assert tiles(page)["Last answer"].endswith(shown)
    assert shown in page.table(ATTEMPTS)[0]["Airflow"]
    job.end(AttemptStatus.FAILED, "lost")
    assert "Last answer" not in tiles(site.read(path_of(job)))


def test_what_a_silent_attempt_was_computing_is_not_said_to_go_on(site: Site, retried: MadeJob) -> None:
    retried.report(CheckpointSummary(computing="increment 1"))
    retried.clock.advance(SILENCE.total_seconds() + 60)
    assert "Computing now" not in tiles(site.read(path_of(retried)))


def test_each_attempt_links_to_its_try_in_airflow_with_the_plain_address_beside_it(
    site: Site, retried: MadeJob
) -> None:
    page = site.read(path_of(retried))
    for number in (1, 2):
        (row,) = [
            row for row in page.all("tr") if row.attributes.get("id", "").endswith(f"-{number}") and row.all("td")
        ]
        address = f"/dags/nightly/runs/run-1/tasks/features?try_number={number}"
        link = row.one("a", data_airflow="")
        assert link.attributes["href"] == row.one("span", class_="address").text == address
        assert link.attributes["target"] == "_top"
        assert row.all("a")[1].attributes["href"] == f"{ROOT}/dags/nightly/runs/run-1/tasks/features"


def test_checkpoints_show_kind_trigger_duration_sizes_and_pointer_or_failure(site: Site, retried: MadeJob) -> None:
    failed, third, *_ = site.read(path_of(retried)).table(HISTORY)
    assert [failed[name] for name in ("Id", "Kind", "Trigger", "Attempt")] == ["4", "checkpoint", "stage", "1"]
    assert failed["Pointer or failure"] == "io exception: the disk is full"
    assert failed["Duration"] == "1.0 s"
    assert [third[name] for name in ("Duration", "New size", "Size")] == ["2.0 s", "1.0 MiB", "4.0 MiB"]
    assert f"{retried.attempt.job_id}/chk-3" in third["Pointer or failure"]
    assert "2026-05-01 12:01:34 UTC" in third["Triggered"]


def test_a_pointer_is_copied_by_a_button_that_says_of_what(site: Site, retried: MadeJob) -> None:
    page = site.read(path_of(retried))
    button = page.one("button", aria_label="Copy the pointer of checkpoint 3")
    assert button.attributes["data-copy"].endswith("/chk-3")
    subsumed = site.job("small").begin(num_retained=1)
    subsumed.checkpoint()
    subsumed.checkpoint()
    assert len(site.read(path_of(subsumed)).all("button", class_="copy")) == 1, "the subsumed one has none"


def test_a_location_of_an_earlier_version_is_shown_without_its_password(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "require_no_credentials", lambda name, uri: None)
    job = site.job("small").begin(storage_base="sftp://me:planted@host/lake")
    job.checkpoint()
    job.decline("the disk is full")
    for path in (path_of(job), f"{path_of(job)}/checkpoints", f"{path_of(job)}/checkpoints/1"):
        text = site.client.get(f"{ROOT}{path}").text
        assert "sftp://***@host/lake" in text
        assert "planted" not in text


def test_the_overview_counts_failures_and_names_the_latest_with_its_cause(site: Site, retried: MadeJob) -> None:
    text = site.read(path_of(retried)).one("div", id=f"operator-{operator_id_of('aggregate')}-overview").text
    assert "Completed 3" in text
    assert "Failed 1 io exception 1" in text
    assert "Restored 1 last from 3" in text
    assert "Latest failed checkpoint: 4 of attempt 1" in text
    assert "io exception: the disk is full" in text


def test_a_failed_attempt_is_shown_with_what_the_next_try_restores(site: Site) -> None:
    job = site.job().begin()
    job.end(AttemptStatus.FAILED, "PlannedError")
    alert = site.read(path_of(job)).one("div", class_="alert").text
    assert "Attempt 1 failed" in alert
    assert "PlannedError" in alert
    assert "the next try starts from the beginning" in alert
    job.begin().checkpoint()
    job.end(AttemptStatus.FAILED, "PlannedError")
    assert "restores checkpoint 1" in site.read(path_of(job)).one("div", class_="alert").text


def test_after_a_clear_with_a_fresh_start_no_older_checkpoint_is_said_to_be_restored(
    site: Site, retried: MadeJob
) -> None:
    cleared = make_owner(logical_task="nightly/features", run_id="run-1", clear_marker="4/0")
    retried.begin(owner=replace(cleared, airflow=retried.task.pairs), on_clear=OnClear.RESTART)
    assert retried.grant.candidates == ()
    retried.end(AttemptStatus.FAILED, "PlannedError")
    page = site.read(path_of(retried))
    assert "the next try starts from the beginning" in page.one("div", class_="alert").text
    assert page.one("dl", class_="tiles").text.startswith("Newest checkpoint none")
    assert retried.begin().grant.candidates == ()


def test_sizes_and_durations_have_the_words_of_the_field(site: Site, retried: MadeJob) -> None:
    rows = site.read(path_of(retried)).table("Sizes and durations of completed checkpoints and savepoints")
    assert [*rows[0]] == ["", "Total", "Min", "Median", "p95", "Max"]
    assert rows[0] == {"": "New size", "Total": "3.0 MiB", **dict.fromkeys(("Min", "Median", "p95", "Max"), "1.0 MiB")}
    assert rows[2] == {"": "Duration", "Total": "6.0 s", **dict.fromkeys(("Min", "Median", "p95", "Max"), "2.0 s")}


def test_savepoints_are_shown_with_their_requests(site: Site, retried: MadeJob) -> None:
    key = retried.request_savepoint("ann", target="memory://archive")
    retried.checkpoint(serves=key, savepoint_dir="memory://savepoints")
    retried.request_savepoint("bob")
    page = site.read(path_of(retried))
    open_, served = page.table("Newest requests for savepoints of aggregate")
    assert [open_[name].split()[-1] for name in ("By", "Status", "Savepoint")] == ["bob", "queued", NOTHING]
    assert [served[name].split()[-1] for name in ("By", "Status", "Savepoint")] == ["ann", "completed", "5"]
    assert served["Target or failure"] == "memory://archive"
    (savepoint,) = page.table("Savepoints of aggregate")
    assert (savepoint["Kind"], savepoint["Trigger"], savepoint["Owner"]) == ("savepoint", "request of ann", "user")


def test_each_operator_has_its_own_rows_and_only_its_newest_savepoints(site: Site) -> None:
    other = site.job(uid="load").begin()
    other.checkpoint()
    job = site.job().begin()
    for _ in range(17):
        job.checkpoint(serves=job.request_savepoint(), savepoint_dir="memory://savepoints")
    page = site.read(path_of(job))
    assert [row["Id"] for row in page.table("Savepoints of aggregate")] == [str(n) for n in range(18, 3, -1)]
    assert [row["Id"] for row in page.table("Newest checkpoints of load")] == ["1"]
    assert [len(page.table(f"Attempts of {uid}, newest first")) for uid in ("aggregate", "load")] == [1, 1]


def test_a_page_updates_itself_while_an_attempt_runs_and_no_longer(site: Site, retried: MadeJob) -> None:
    assert int(site.read(path_of(retried)).one("main").attributes["data-refresh-seconds"]) > 0
    retried.end()
    assert "data-refresh-seconds" not in site.read(path_of(retried)).one("main").attributes


def test_a_page_updates_itself_for_an_hour_after_a_failure_for_the_retry_that_may_follow(
    site: Site, retried: MadeJob
) -> None:
    retried.end(AttemptStatus.FAILED, "PlannedError: disk full")
    for path in (path_of(retried), "/jobs"):
        assert "data-refresh-seconds" in site.read(path).one("main").attributes
    site.clock.advance(3601)
    for path in (path_of(retried), "/jobs"):
        assert "data-refresh-seconds" not in site.read(path).one("main").attributes


def test_a_page_does_not_wait_for_an_attempt_that_has_given_no_sign_of_life(site: Site, retried: MadeJob) -> None:
    paths = (path_of(retried), "/jobs", "/dags/nightly/runs/run-1")
    site.clock.advance(SILENCE.total_seconds())
    for path in paths:
        page = site.read(path)
        assert "data-refresh-seconds" in page.one("main").attributes, path
        assert "no sign of life" not in page.text.lower(), path
    site.clock.advance(1)
    for path in paths:
        page = site.read(path)
        assert "data-refresh-seconds" not in page.one("main").attributes, path
        assert "no sign of life" in page.text.lower(), path
    retried.checkpoint()
    for path in paths:
        assert "data-refresh-seconds" in site.read(path).one("main").attributes, path


def test_the_history_is_read_in_pages_with_a_filter(site: Site) -> None:
    job = site.job().begin()
    for _ in range(60):
        job.checkpoint()
    job.decline("no space")
    caption = "Checkpoints of sales, newest first"
    history = f"{path_of(job)}/checkpoints"
    first = site.read(history)
    assert [row["Id"] for row in first.table(caption)] == [str(n) for n in range(61, 11, -1)]
    second = site.read(first.links()["Older"].removeprefix(ROOT))
    assert [row["Id"] for row in second.table(caption)] == [str(n) for n in range(11, 0, -1)]
    assert "Older" not in second.links()
    assert second.links()["Newest"] == ROOT + history
    failed = site.read(f"{history}?status=aborted&operator_id={operator_id_of('aggregate')}")
    assert [row["Id"] for row in failed.table(caption)] == ["61"]
    assert "No checkpoints." in site.read(f"{history}?operator_id={operator_id_of('other')}").text
    (selected,) = [e.text for e in failed.one("select", name="status").all("option", selected="")]
    assert selected == "aborted"


def test_an_empty_filter_of_the_form_is_no_filter(site: Site, retried: MadeJob) -> None:
    page = site.read(f"{path_of(retried)}/checkpoints?operator_id=&status=")
    assert len(page.table("Checkpoints of sales, newest first")) == 4


def test_a_checkpoint_has_a_page_that_says_whether_it_may_be_deleted(site: Site, retried: MadeJob) -> None:
    page = site.read(f"{path_of(retried)}/checkpoints/3")
    facts = {each.one("dt").text: each.one("dd").text for each in page.one("dl").all("div")}
    assert page.one("h1").text == "Checkpoint 3 ✓ completed"
    assert facts["Safe to delete"] == "no: a running attempt was restored from it"
    assert facts["Restored by"] == "attempt 2"
    assert facts["Operator"] == "aggregate"
    failed = site.read(f"{path_of(retried)}/checkpoints/4")
    assert "io exception: the disk is full" in failed.one("pre").text


@pytest.mark.parametrize("place", ["/checkpoints/99", "/checkpoints/0", "/checkpoints/x", "/checkpoints?status=x"])
def test_what_a_job_does_not_have_is_not_found(site: Site, retried: MadeJob, place: str) -> None:
    assert site.read(path_of(retried) + place, status=404).one("h1").text == "Not found"


def test_what_users_wrote_is_text_in_every_place(site: Site) -> None:
    hostile = Caller(dag_id=HOSTILE, run_id=HOSTILE, task_id=HOSTILE)
    site.user.dag_ids = (HOSTILE,)
    job = site.job(HOSTILE, uid=HOSTILE, task=hostile).begin(storage_base=f"memory://{HOSTILE}")
    key = job.request_savepoint(HOSTILE, target=f"memory://{HOSTILE}")
    job.checkpoint(serves=key, savepoint_dir="memory://savepoints")
    job.checkpoint()
    job.decline(HOSTILE)
    job.end(AttemptStatus.FAILED, HOSTILE)
    job.begin().request_savepoint(HOSTILE)
    task = site.read(path_of(job)).all("a", class_="note")[0].attributes["href"].removeprefix(ROOT)
    dag, run = task.split("/runs/")[0], task.split("/tasks/")[0]
    pages = [path_of(job), f"{path_of(job)}/checkpoints", f"{path_of(job)}/checkpoints/3", "/jobs", task, run, dag]
    for path in pages:
        page = site.read(path)
        scripts = [e.attributes.get("src") for e in page.all("script")]
        assert scripts == [f"{ROOT}/static/{name}.js" for name in ("theme", "pages", "actions")]
        assert " ".join(HOSTILE.split()) in page.text, path
        assert all(name in _EXPECTED for e in page.all() for name in e.attributes), path


_EXPECTED = frozenset(
    [
        *("lang", "charset", "name", "content", "rel", "href", "src", "defer", "class", "id", "role", "aria-live"),
        *("aria-label", "aria-labelledby", "aria-hidden", "tabindex", "data-refresh-seconds", "datetime"),
        *("data-relative", "type", "data-copy", "data-label", "data-airflow", "data-try", "target", "scope", "x"),
        *("y", "width", "height", "rx", "cx", "cy", "r", "method", "value", "selected", "maxlength", "aria-sort"),
        *("max", "title"),
    ]
)
"""Attributes of the templates: a value that ended its attribute would make another one."""


def test_an_unstorable_id_is_refused_on_a_page(site: Site) -> None:
    assert site.read("/dags/%00", status=400).one("h1").text == "This page cannot be shown"
    with pytest.raises(InvalidConfigurationError):
        operator_id_of("")


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


@pytest.mark.parametrize("place", ["?page=0", "?page=x", "?sort=x", f"/operators/{operator_id_of('other')}"])
def test_an_unknown_page_of_the_table_or_operator_is_not_found(site: Site, place: str) -> None:
    site.read(f"/jobs/{mapped(site, 2)[0].attempt.job_id}{place}", status=404)


def test_an_operator_of_an_unreadable_dag_is_not_found(site: Site) -> None:
    operators = mapped(site, 2)
    site.user.dag_ids = ()
    site.read(f"/jobs/{operators[0].attempt.job_id}/operators/{operator_id_of('load[1]')}", status=404)


def test_a_row_that_cannot_be_read_is_told_on_the_pages_of_its_job_its_run_and_all_jobs(site: Site) -> None:
    bad, good = site.job("sales").begin(), site.job("orders").begin()
    good.checkpoint()
    statement = "UPDATE statecheck_job SET seen_at = 'yesterday' WHERE job_id = :job"
    write_bad_value(bad.store, "sales", statement)
    told = "column seen_at of table statecheck_job"

    listed = site.read("/jobs").text
    assert told in listed
    assert "orders" in listed
    for path in ("/dags/nightly/runs/run-1", "/dags/nightly/runs/run-1/tasks/features"):
        page = site.read(path).text
        assert told in page
        assert "aggregate" in page
    assert told in site.client.get(f"{ROOT}{path_of(bad)}").text


class TestOperatorWithoutCheckpoint:
    """What the page says depends on what has happened, and a button is offered only for what can succeed."""

    def test_of_a_finished_task_says_that_its_checkpoints_are_no_longer_needed(self, site: Site) -> None:
        job = site.job().begin()
        for _ in range(4):
            job.checkpoint()
        job.end()
        write_bad_value(
            site.store, job.name, "UPDATE statecheck_checkpoint SET status = 'subsumed' WHERE job_id = :job"
        )
        page = site.read(path_of(job))
        assert "its 4 completed checkpoints are no longer needed" in page.text
        assert "A retry starts" not in page.text

    def test_of_a_running_task_says_where_a_retry_starts(self, site: Site) -> None:
        assert "A retry starts from the beginning." in site.read(path_of(site.job().begin())).text

    def test_offers_a_savepoint_only_while_an_attempt_runs(self, site: Site) -> None:
        site.user.edits = ("nightly",)
        job = site.job().begin()
        assert "Take a savepoint" in site.read(path_of(job)).text
        job.end()
        page = site.read(path_of(job))
        assert "Take a savepoint" not in page.text
        assert "The task succeeded without a checkpoint" in page.text


def test_output_is_listed_as_unpublished_only_until_it_is_published(site: Site) -> None:
    job = site.job().begin()
    summary = CheckpointSummary(open_commits=("output of checkpoint 1: 2 pieces",))
    number = job.checkpoint(summary=summary, has_commit=True)
    pages = (path_of(job), f"{path_of(job)}/checkpoints/{number}")
    assert all("output of checkpoint 1" in site.read(page).text for page in pages)
    job.coordinator.confirm_commits(job.attempt, (number,))
    assert not any("output of checkpoint 1" in site.read(page).text for page in pages)
