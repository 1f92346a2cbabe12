"""The trigger form of an example Dag: what a user enters is the configuration of the run, and what it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.airflow_ui import AirflowUi
from tests.live.deployment import Deployment
from tests.live.rest import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.live, pytest.mark.soak]

DAG = "example_trigger_form"


@pytest.fixture
def form(ui: AirflowUi) -> Iterator[Locator]:
    """The form, opened from the page of the Dag."""
    ui.open(f"/dags/{DAG}")
    ui.page.get_by_role("button", name="Trigger").first.click()
    form = ui.page.get_by_role("dialog")
    form.locator("input[name=element_restore_from]").wait_for()
    yield form
    assert ui.errors == []


def enter(form: Locator, choice: str) -> None:
    field = form.locator("input[name=element_restore_from]")
    field.fill(choice)
    field.blur()
    form.get_by_test_id("trigger-dag-submit").click()


def runs(deployment: Deployment) -> list[dict[str, Any]]:
    return deployment.api.runs(DAG)


def test_what_is_entered_is_what_the_run_restores_or_fails_for(
    ui: AirflowUi, form: Locator, deployment: Deployment
) -> None:
    ui.screenshot("form")
    known = {run["dag_run_id"] for run in runs(deployment)}
    enter(form, "before:2013-04-01")
    new = wait_until("the run", lambda: [run for run in runs(deployment) if run["dag_run_id"] not in known])
    [run] = new
    assert run["conf"]["restore_from"] == "before:2013-04-01"
    assert run["conf"]["savepoint_at_end"] is False
    ended = wait_until("its end", lambda: deployment.api.run_state(DAG, run["dag_run_id"]) == "failed")
    assert ended
    [task] = deployment.api.tasks(DAG, run["dag_run_id"])
    assert task["try_number"] == 1
    ui.open(f"/dags/{DAG}/runs/{run['dag_run_id']}/tasks/route_delays")
    ui.page.get_by_text("There is no job 'route_delays'").first.wait_for()


def test_an_entry_that_is_no_choice_starts_no_run(ui: AirflowUi, form: Locator, deployment: Deployment) -> None:
    known = runs(deployment)
    enter(form, "newest")
    ui.page.get_by_text("'newest' does not match").first.wait_for()
    assert runs(deployment) == known
