"""What users with fewer permissions or only a keyboard meet on the pages, of a job whose names are markup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, StateSummary, StepSummary
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.browser.airflow_ui import AirflowUi
from tests.browser.job_pages import JobPages
from tests.live.deployment import ADMIN, READER, STRANGER, Deployment
from tests.messages import complete_checkpoint, make_owner, make_registration

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.live, pytest.mark.soak]

HOSTILE = """<img src=x onerror="window.hit=1"><script>window.hit=1</script>"&'"""
OVERHANG = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TASK = {"dag_id": "live_actions", "run_id": "run-1", "task_id": "work", "map_index": "-1"}


@pytest.fixture(scope="module")
def name(deployment: Deployment) -> str:
    """A failed job whose names, figures and messages are markup."""
    name = f"{HOSTILE} {new_key()}"
    coordinator = AttemptCoordinator(deployment.store())
    owner = make_owner(airflow=tuple(TASK.items()), label=f"{HOSTILE}, try 1", run_id="run-1")
    grant = coordinator.register(
        make_registration(job_name=name, uid=f"uid {HOSTILE}", owner=owner, num_retained=3, storage_base="file:///none")
    )
    summary = CheckpointSummary(
        steps=(StepSummary(name=f"step {HOSTILE}", outcome="computed", size_bytes=1 << 20),),
        states=(StateSummary(uid="f", name=f"state {HOSTILE}", kind="value", type=HOSTILE),),
        open_commits=(HOSTILE,),
    )
    for _ in range(3):
        complete_checkpoint(coordinator, grant.attempt, summary=summary, full_size_bytes=1 << 22)
    coordinator.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FAILED, message=f"message {HOSTILE}"))
    return name


@contextmanager
def window(chromium: Browser, deployment: Deployment, user: tuple[str, str], width: int = 1280) -> Iterator[AirflowUi]:
    """Open a window of a user who has logged in."""
    with AirflowUi.opened(chromium, deployment.api.url, deployment.folder) as ui:
        token = deployment.api.token_of(*user)
        ui.page.context.add_cookies([{"name": "_token", "value": token, "url": ui.url}])
        ui.page.set_viewport_size({"width": width, "height": 900})
        yield ui
        assert ui.errors == []


def paths(name: str) -> tuple[str, ...]:
    job = f"/statecheck/jobs/{job_id_of(name)}"
    return (
        "/statecheck/jobs",
        job,
        f"{job}/checkpoints",
        f"{job}/checkpoints/2",
        f"{job}/operators/{operator_id_of(f'uid {HOSTILE}')}",
        f"{job}/actions/restore?checkpoint_id=1",
        f"{job}/actions/fork?checkpoint_id=1",
        "/statecheck/dags/live_actions",
        "/statecheck/dags/live_actions/runs/run-1",
        "/statecheck/dags/live_actions/runs/run-1/tasks/work",
    )


def rows(deployment: Deployment, name: str) -> tuple[Any, ...]:
    view = deployment.job(name)
    return view.operators, view.attempts, view.checkpoints, view.requests, view.actions


def send(ui: AirflowUi, name: str, action: str, **message: Any) -> int:
    """Send the request of an action from the page, as its script does, and return the status."""
    script = """([url, action, body]) => fetch(url, {method: "POST", body,
        headers: {"Content-Type": "application/json", "X-Statecheck-Action": action}}).then((reply) => reply.status)"""
    url = f"/statecheck/ui/jobs/{job_id_of(name)}/{action}"
    body = ui.page.evaluate("JSON.stringify", {"request_key": new_key()} | message)
    return int(ui.page.evaluate(script, [url, action, body]))


REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("savepoint", {"operator_id": operator_id_of(f"uid {HOSTILE}")}),
    ("restore", {"checkpoint_id": 1}),
    ("fork", {"checkpoint_id": 1}),
    ("rewind", {"run_key": "2026-01-01"}),
    ("prune", {}),
)


def test_one_who_may_only_read_has_no_buttons_and_triggers_nothing(
    chromium: Browser, deployment: Deployment, name: str
) -> None:
    before, runs = rows(deployment, name), deployment.api.runs("live_actions")
    with window(chromium, deployment, READER) as ui:
        for path in paths(name)[:5]:
            ui.open(path)
            ui.page.get_by_text(name).first.wait_for()
            assert ui.page.locator("a[data-preview]").count() == 0
            assert ui.page.locator("main img, main script, header img, header script").count() == 0
            assert ui.page.evaluate("window.hit") is None
        assert [send(ui, name, action, **message) for action, message in REQUESTS] == [403] * len(REQUESTS)
        ui.open(paths(name)[5])
        ui.page.get_by_role("heading", name="Not found").wait_for()
    with window(chromium, deployment, ADMIN) as ui:
        ui.open(paths(name)[1])
        assert ui.page.locator("a[data-preview]").count() > 0, "others have the buttons"
    assert rows(deployment, name) == before
    assert deployment.api.runs("live_actions") == runs


def test_one_who_may_not_read_finds_no_trace(chromium: Browser, deployment: Deployment, name: str) -> None:
    before, missing = rows(deployment, name), f"no such job {new_key()}"
    with window(chromium, deployment, STRANGER) as ui:
        ui.open("/statecheck/jobs")
        ui.page.get_by_role("heading", name="No checkpoints").wait_for()
        ui.open("/statecheck/jobs?name=img")
        ui.page.get_by_text("0 jobs").wait_for()
        assert HOSTILE not in ui.page.locator("body").inner_text()
        texts = []
        for job in (name, missing):
            ui.open(JobPages(ui, job).path)
            texts.append(ui.page.locator("body").inner_text().replace(job_id_of(job), "JOB"))
        assert texts[0] == texts[1]
        for path in paths(name)[1:]:
            reply = ui.page.goto(f"{ui.url}{path}")
            assert reply is not None
            assert reply.status == 404, path
            assert HOSTILE not in ui.page.locator("body").inner_text()
        assert [send(ui, name, action, **message) for action, message in REQUESTS] == [404] * len(REQUESTS)
    assert rows(deployment, name) == before


@pytest.mark.parametrize("width", [360, 400])
def test_narrow_pages_show_markup_as_text_and_do_not_scroll_sideways(
    chromium: Browser, deployment: Deployment, name: str, width: int
) -> None:
    with window(chromium, deployment, ADMIN, width=width) as ui:
        for path in paths(name):
            ui.open(path)
            ui.page.locator("main").wait_for()
            assert HOSTILE in ui.page.locator("body").inner_text(), path
            assert ui.page.locator("main img, main script, header img, header script").count() == 0, path
            assert ui.page.evaluate("window.hit") is None
            assert ui.page.evaluate(OVERHANG) <= 0, path
        pages = JobPages(ui, name)
        pages.open(1)
        dialog = pages.preview("Fork from here")
        assert ui.page.evaluate(OVERHANG) <= 0
        assert dialog.evaluate("each => each.scrollWidth - each.clientWidth") <= 0
        assert dialog.locator("img, script").count() == 0
        assert ui.page.evaluate("window.hit") is None


def test_an_action_is_confirmed_with_the_keyboard_alone(chromium: Browser, deployment: Deployment, name: str) -> None:
    with window(chromium, deployment, ADMIN) as ui:
        pages, press = JobPages(ui, name), ui.page.keyboard.press
        pages.open()
        focused = "document.activeElement.textContent.trim()"
        for _ in range(40):
            press("Tab")
            if ui.page.evaluate(focused) == "Take a savepoint":
                break
        assert ui.page.evaluate(focused) == "Take a savepoint"
        press("Enter")
        dialog = ui.page.get_by_role("dialog", name="Take a savepoint")
        dialog.wait_for()
        press("Escape")
        dialog.wait_for(state="hidden")
        assert ui.page.evaluate(focused) == "Take a savepoint", "the focus returns after Escape"
        assert deployment.job(name).requests == ()
        press("Enter")
        dialog.wait_for()
        assert dialog.evaluate("each => each.contains(document.activeElement)")
        for _ in range(10):
            if ui.page.evaluate(focused) == "Confirm":
                break
            press("Tab")
        press("Enter")
        dialog.wait_for(state="hidden")
        ui.page.locator("#updates", has_text="Request queued").wait_for()
        assert ui.page.evaluate(focused) == "Take a savepoint", "the focus returns after the request"
        [request] = deployment.job(name).requests
        assert request.requested_by
