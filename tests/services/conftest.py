from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi import FastAPI

from tests.isolated_network import CAN_ISOLATE, WHY_NOT
from tests.services.drivers import SubmittedDrivers
from tests.services.server import served
from tests.services.task import Task

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.skipif(not CAN_ISOLATE, reason=WHY_NOT))


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[SubmittedDrivers]:
    started = SubmittedDrivers(tmp_path)
    yield started
    started.close()


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


class Connections:
    """Addresses of stand-ins, in Airflow's connections."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._stack = ExitStack()

    def serve(self, app: FastAPI) -> str:
        """Serve a stand-in, and return its address."""
        return self._stack.enter_context(served(app))

    def name(self, conn_id: str, **connection: object) -> None:
        """Name an address in a connection."""
        self._patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))

    def close(self) -> None:
        """End the servers."""
        self._stack.close()


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connections]:
    made = Connections(monkeypatch)
    yield made
    made.close()
