from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.airflow_ui import AirflowUi
from tests.browser.chromium import CHROMIUM, NOT_RUN, running_chromium
from tests.live.deployment import ADMIN, Deployment, running_deployment

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(NOT_RUN)
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="package")  # gone when other tests want the machine
def deployment(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with running_deployment(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """
    Folder of the screenshots: that of the variable SCREENSHOTS, as ``docs/start/tour``, or else one that is forgotten.
    """
    return Path(os.environ.get("SCREENSHOTS", tmp_path))


@pytest.fixture
def ui(chromium: Browser, deployment: Deployment, pictures: Path) -> Iterator[AirflowUi]:
    """Airflow's UI in a window of the administrator, who has logged in."""
    with AirflowUi.opened(chromium, deployment.api.url, pictures) as ui:
        ui.log_in(*ADMIN)
        yield ui
