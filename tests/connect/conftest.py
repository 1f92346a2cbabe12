"""A Spark Connect server, and this process as its client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connect_server import ConnectServer

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    running = ConnectServer(tmp_path_factory.mktemp("connect"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(autouse=True)
def _as_connect_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pyspark sets in a process whose session is remote; a classic session may be waiting in this one."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")


def connect(url: str) -> Any:
    """Return a new session of a server."""
    from pyspark.sql.connect.session import SparkSession

    return SparkSession.builder.remote(url).create()


@pytest.fixture
def spark(server: ConnectServer) -> Iterator[Any]:
    session = connect(server.url)
    yield session
    session.stop()
