"""The pages of one job outside of Airflow's frame, with the dialogs of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from tests.browser.airflow_ui import AirflowUi

if TYPE_CHECKING:
    from playwright.sync_api import Locator


class JobPages:
    """
    The pages of a job in the window of a user.

    :param ui: The window.
    :param name: Name of the job.
    """

    def __init__(self, ui: AirflowUi, name: str) -> None:
        self.ui = ui
        self.path = f"/statecheck/jobs/{job_id_of(name)}"

    def open(self, checkpoint_id: int | None = None) -> None:
        """Open the page of the job, or of one of its checkpoints."""
        self.ui.open(self.path if checkpoint_id is None else f"{self.path}/checkpoints/{checkpoint_id}")

    def preview(self, verb: str) -> Locator:
        """Press the button of an action, and return the dialog with its preview."""
        self.ui.page.get_by_role("link", name=verb, exact=True).click()
        dialog = self.ui.page.get_by_role("dialog", name=verb)
        dialog.wait_for()
        return dialog

    def act(self, verb: str, *, told: str) -> None:
        """Press the button of an action, confirm its preview, and wait until the page tells what became of it."""
        dialog = self.preview(verb)
        dialog.get_by_role("button", name="Confirm").click()
        dialog.wait_for(state="hidden")
        self.ui.page.locator("#updates", has_text=told).wait_for()

    def request(self, verb: str, *, of: str) -> Locator:
        """Return the newest request of an action in a list with this caption."""
        return self.ui.page.get_by_role("table", name=of).get_by_role("row").filter(has_text=verb).first
