"""Tokens and secrets of real tasks, looked for while they are in use and after they have ended."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.pool import NullPool

from tests import leaks
from tests.live.deployment import Deployment
from tests.live.rest import wait_until
from tests.live.runs import StageRun

pytestmark = [pytest.mark.live, pytest.mark.soak]

APPLICATION = Path(__file__).with_name("application.py")
KINDS = ("log", "row", "command line", "page")
# A trigger's arguments have to hold its token; Airflow shows them to nobody.
NOT_SHOWN = {"trigger"}


def _places(deployment: Deployment, pages: Iterable[str]) -> Iterator[tuple[str, leaks.Place]]:
    folder, engine = deployment.folder, create_engine(deployment.postgres.url, poolclass=NullPool)
    yield from (("log", place) for place in leaks.files(folder / "home" / "logs", folder / "checkpoints"))
    yield from (("log", leaks.Place(path.name, path.read_bytes())) for path in folder.glob("*.log"))
    tables = set(inspect(engine).get_table_names()) - NOT_SHOWN
    yield from (("row", place) for place in leaks.rows(engine, tables))
    yield from (("command line", place) for place in leaks.command_lines())
    yield from (("page", place) for url in pages for place in leaks.page(url))


def test_no_token_is_where_others_can_read_it_and_a_planted_one_is_found(deployment: Deployment) -> None:
    deployment.ensure_running()
    run = StageRun(deployment, "live_leaks", "leaks")
    shutil.copy(APPLICATION, run.folder)
    planted = secrets.token_urlsafe(32)
    conf = {"control": str(run.folder), "planted": planted}
    deployment.api.trigger(run.dag_id, run.run_id, run.logical_date.isoformat(), conf)
    try:
        pages = [page for driver in ("stage", "submit") for page in _pages(run, driver)]
        wait_until("the sensor to be deferred", lambda: _states(run).get("sensor") == "deferred")
        wait_until("the reading task", lambda: _states(run).get("reads") == "success")
        places = list(_places(deployment, pages))
        travelled = _travelled(deployment)
        assert len(travelled) >= 2 * 4, "each of the four tasks had a secret and a token"
        assert [kind for kind in KINDS if leaks.find([planted], (p for k, p in places if k == kind))] == list(KINDS)
        assert leaks.find(travelled, (place for _, place in places)) == []
    finally:
        run.release()
    assert run.wait_for_end() == "success", _states(run)
    assert leaks.find(_travelled(deployment), (place for _, place in _places(deployment, []))) == []


def _pages(run: StageRun, driver: str) -> list[str]:
    said = run.folder / driver
    wait_until(f"the driver of {driver}", said.exists)
    return said.read_text().split()


def _states(run: StageRun) -> dict[str, str]:
    return {ti["task_id"]: ti["state"] for ti in run.deployment.api.tasks(run.dag_id, run.run_id)}


def _travelled(deployment: Deployment) -> list[str]:
    return sorted(set((deployment.folder / "secrets").read_text().split()))
