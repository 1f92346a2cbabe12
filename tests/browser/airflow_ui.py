"""Airflow's UI as a user works with it, in a window of Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FrameLocator, Locator, Page, ViewportSize

LIMIT_MILLISECONDS = 120_000
"""How long a page may take on a busy machine."""

_SIZE: ViewportSize = {"width": 1280, "height": 900}


@dataclass
class AirflowUi:
    """
    A window of one user.

    :param page: The page of the browser.
    :param url: The root of the api-server.
    :param pictures: Folder for screenshots.
    """

    page: Page
    url: str
    pictures: Path
    errors: list[str] = field(default_factory=list)
    """Errors of scripts, on all pages of the window."""

    @classmethod
    @contextmanager
    def opened(cls, browser: Browser, url: str, pictures: Path) -> Iterator[AirflowUi]:
        """Open a window without cookies."""
        context = browser.new_context(viewport=_SIZE, color_scheme="light")
        context.set_default_timeout(LIMIT_MILLISECONDS)
        context.set_default_navigation_timeout(LIMIT_MILLISECONDS)
        ui = cls(context.new_page(), url, pictures)
        ui.page.on("pageerror", lambda error: ui.errors.append(str(error)))
        try:
            yield ui
        finally:
            context.close()

    def open(self, path: str) -> None:
        """Open a page by its path."""
        self.page.goto(f"{self.url}{path}")

    def log_in(self, user: str, password: str) -> None:
        """Log in on Airflow's page, and wait for the first page after it."""
        self.open("/")
        self.page.get_by_label("Username").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("link", name="Dags", exact=True).first.wait_for()

    def open_checkpoints(self) -> None:
        """Open the list of jobs from Airflow's navigation."""
        self.page.get_by_role("button", name="Browse").click()
        self.page.get_by_role("menuitem", name="Checkpoints").click()
        self.frame.get_by_role("heading", name="Checkpoints", exact=True).wait_for()

    def open_job(self, name: str) -> None:
        """Open the page of a job from a list of jobs."""
        self.frame.get_by_role("link", name=name, exact=True).first.click()
        self.frame.get_by_role("heading", name=name).wait_for()

    def row(self, name: int | str, text: str, *, of: str) -> Locator:
        """Return the rows of an attempt, checkpoint or step that show a text, in the tables with a caption."""
        rows = self.frame.get_by_role("table", name=of).get_by_role("row")
        header = self.frame.get_by_role("rowheader", name=str(name), exact=True)
        return rows.filter(has=header).filter(has_text=text)

    def screenshot(self, name: str) -> None:
        """Save a picture of the window, for the documentation."""
        self.page.screenshot(path=self.pictures / f"{name}.png", animations="disabled")

    @property
    def frame(self) -> FrameLocator:
        """The frame with the provider's page."""
        return self.page.frame_locator("iframe")
