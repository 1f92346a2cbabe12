"""The pages of the wheel in an empty environment, in which ``airflow standalone`` runs a stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from tests.browser.airflow_ui import AirflowUi
from tests.browser.chromium import CHROMIUM, NOT_RUN, running_chromium
from tests.live.rest import wait_until
from tests.packaging.environment import ROOT, Environment, built_wheel, requirement
from tests.packaging.standalone import DAG, Standalone, running_standalone

pytestmark = [pytest.mark.soak, pytest.mark.live]

RUN = "first"
LOGICAL_DATE = "2026-01-02T00:00:00+00:00"
JOB = "numbers_of_the_wheel"
STATIC = ROOT / "airflow_provider_statecheck" / "api" / "pages" / "static"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("wheel")
    environment = Environment(folder)
    environment.install(requirement(built_wheel(folder / "dist"), "pyspark"))
    return environment


@pytest.fixture(scope="module")
def standalone(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """An Airflow in which a run of the stage has ended well."""
    with running_standalone(tmp_path_factory.mktemp("standalone"), environment) as standalone:
        api = standalone.api
        api.trigger(DAG, RUN, LOGICAL_DATE, {})
        state = wait_until("the end of the run", lambda: ended(api.run_state(DAG, RUN)))
        assert state == "success", standalone.story()
        yield standalone


def ended(state: str) -> str | None:
    return state if state in ("success", "failed") else None


def test_the_package_is_the_one_of_the_wheel(environment: Environment) -> None:
    place = Path(environment.run("import airflow_provider_statecheck as package; print(package.__file__)"))

    assert place.is_relative_to(environment.python.parents[1])


def test_the_plugin_has_its_views_with_icons(standalone: Standalone) -> None:
    [plugin] = [each for each in standalone.api.plugins() if each["name"] == "statecheck"]

    views = plugin["external_views"]
    assert {view["destination"] for view in views} == {"nav", "dag", "dag_run", "task_instance"}
    for icon in {view[name] for view in views for name in ("icon", "icon_dark_mode")}:
        assert standalone.api.page(urlsplit(icon).path.removeprefix("/statecheck")).text.lstrip().startswith("<svg")


def test_the_list_of_jobs_and_the_page_of_the_job_have_their_contents(standalone: Standalone) -> None:
    address = f"/jobs/{job_id_of(JOB)}"

    assert f'href="/statecheck{address}">{JOB}<' in standalone.api.page("/jobs").text
    assert all(step in standalone.api.page(address).text for step in ("numbers", "doubled"))


def test_the_static_files_are_those_of_the_package(standalone: Standalone) -> None:
    for file in STATIC.iterdir():
        assert standalone.api.page(f"/static/{file.name}").content == file.read_bytes()


def test_the_button_of_the_task_opens_its_page(standalone: Standalone) -> None:
    url = standalone.api.links(DAG, RUN, "work")["Checkpoints"]

    assert JOB in standalone.api.page(url.removeprefix(f"{standalone.api.url}/statecheck")).text


def test_a_user_finds_the_job_and_its_steps_in_the_frame(standalone: Standalone, tmp_path: Path) -> None:
    if not CHROMIUM.exists():
        pytest.skip(NOT_RUN)
    with running_chromium() as browser, AirflowUi.opened(browser, standalone.api.url, tmp_path) as ui:
        ui.log_in(*standalone.login)
        ui.open_checkpoints()
        ui.open_job(JOB)
        ui.row("doubled", "computed", of="Steps of checkpoint").wait_for()
        assert ui.errors == []
