from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi import FastAPI

from tests.isolated_network import CAN_ISOLATE, WHY_NOT
from tests.services.drivers import SubmittedDrivers
from tests.services.lost_work import HEAD, record, row_of
from tests.services.operated import OperatedTask
from tests.services.server import served
from tests.services.task import Task
from tests.tables import table_of

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


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Callable[[OperatedTask, str], None]:
    """Report what a task with some trouble has lost."""
    rows = table_of(pytestconfig, "work lost on services", HEAD)

    def report(task: OperatedTask, trouble: str) -> None:
        deferred = ", deferred" if task.arguments["deferrable"] else ""
        case = task.operator, trouble + deferred, task.lost
        rows.append(row_of(*case))
        record(*case)

    return report


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
        self.set(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))

    def set(self, name: str, value: str) -> None:
        """Set a variable of this process and of those that it starts."""
        self._patch.setenv(name, value)

    def close(self) -> None:
        """End the servers."""
        self._stack.close()


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connections]:
    made = Connections(monkeypatch)
    yield made
    made.close()
