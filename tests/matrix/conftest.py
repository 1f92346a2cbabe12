from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.store import JobView
from tests.connect_server import ConnectServer
from tests.matrix import places
from tests.matrix.places import ROOT, Place
from tests.served_rows import job_in
from tests.standalone_cluster import SPARK_HOME

HERE = Path(__file__).parent
LIMIT_SECONDS = 300
JOB = "dag/run"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@dataclass
class Task:
    """One task over its tries."""

    work: Path
    url: str
    place: Place
    checkpoint_dir: str
    storage: dict[str, Any] | None
    output: str = ""
    tries: int = 0

    def run(self) -> int:
        """Run the next try and return its exit status."""
        return self.finish(self.start())

    def start(self) -> subprocess.Popen[str]:
        """Start the next try."""
        self.tries += 1
        return subprocess.Popen(
            [sys.executable, "-m", "tests.matrix.task_process", str(self.work), json.dumps(self._request())],
            cwd=ROOT,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> int:
        """Wait for a try, and return its exit status."""
        try:
            self.output, _ = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
        return process.returncode

    def computed(self) -> list[str]:
        """Return what was really computed so far, over all tries."""
        return (self.work / "computed.log").read_text().splitlines()

    def result(self) -> str:
        """Return what the pipeline wrote at its end."""
        return (self.work / "result.txt").read_text()

    def job(self) -> JobView:
        """Return the rows of the job."""
        return job_in(self.work, JOB)

    def _request(self) -> dict[str, Any]:
        where = {"checkpoint_dir": self.checkpoint_dir}
        if self.storage is not None:
            where["storage_conn_id"] = "bucket"
        return {
            "try_number": self.tries,
            "is_submitted": self.place.is_submitted,
            "operator": self.place.arguments | where,
        }

    def _environment(self) -> dict[str, str]:
        bucket = {"conn_type": "generic", "extra": {"storage_options": self.storage or {}}}
        return {
            **os.environ,
            "PATH": f"{SPARK_HOME / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(self.place.connection),
            "AIRFLOW_CONN_BUCKET": json.dumps(bucket),
            "AIRFLOW_CONN_STATECHECK_DEFAULT": json.dumps({"conn_type": "statecheck", "host": self.url}),
        }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConnectServer]:
    running = ConnectServer(tmp_path / "server")
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def task(request: pytest.FixtureRequest, api: str, tmp_path: Path) -> Callable[[str, str], Task]:
    """Make the task of a place and a store."""

    def make(place: str, store: str) -> Task:
        checkpoint_dir, storage = _store(request, store, tmp_path)
        return Task(tmp_path, api, _place(request, place, tmp_path), checkpoint_dir, storage)

    return make


def _place(request: pytest.FixtureRequest, name: str, work: Path) -> Place:
    if name == "local":
        return places.local()
    if name == "connect":
        return places.connect(request.getfixturevalue("server"))
    cluster = request.getfixturevalue("cluster")
    return places.standalone_client(cluster) if name == "client" else places.standalone_cluster(cluster, work)


def _store(request: pytest.FixtureRequest, name: str, work: Path) -> tuple[str, dict[str, Any] | None]:
    if name == "files":
        return str(work / "checkpoints"), None
    store = request.getfixturevalue("object_store")
    return f"s3://{store.bucket}/{work.name}", store.storage_options
