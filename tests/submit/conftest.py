from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_statecheck.checkpoint.store import JobView
from tests.served_rows import job_in
from tests.standalone_cluster import SPARK_HOME, StandaloneCluster

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LIMIT_SECONDS = 300
JOB = "dag/run"
SMALL = {"executor_memory": "512m", "driver_memory": "512m", "executor_cores": 1, "total_executor_cores": 2}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@dataclass
class Pipeline:
    """One task over its tries: where it runs, what it computed, what the coordinator knows."""

    work: Path
    url: str
    connection: dict[str, Any]
    conf: dict[str, Any]
    trouble: str = "none"
    output: str = ""
    max_tries: int = 2
    drivers_of_a_try: ClassVar[int] = 1
    _tries: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self) -> subprocess.Popen[str]:
        """Start the next try."""
        request = {"try_number": len(self._tries) + 1, "max_tries": self.max_tries, "operator": self._operator()}
        with self._log_file(len(self._tries) + 1).open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.submit.task_process", str(self.work), json.dumps(request)],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                env=self._environment(),
                start_new_session=True,
            )
        self._tries.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> int:
        """Wait for a try."""
        status = process.wait(self.drivers_of_a_try * LIMIT_SECONDS)
        self.output = self._log(self._tries.index(process) + 1)
        return status

    def run(self) -> int:
        """Run the next try and return its exit status."""
        return self.finish(self.start())

    def computed(self) -> list[str]:
        """Return what was really computed so far, over all tries."""
        log = self.work / "computed.log"
        return log.read_text().splitlines() if log.exists() else []

    def job(self) -> JobView:
        """Return the rows of the job."""
        return job_in(self.work, JOB)

    def go(self, *items: str) -> None:
        """Let the application go on with items where it waits."""
        for item in items:
            (self.work / f"go-{item}").touch()

    def wait_until(self, what: Callable[[], Any]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + LIMIT_SECONDS
        is_running = self._tries[-1].poll() is None
        while not what():
            assert time.monotonic() < deadline, self._log(len(self._tries))
            assert not is_running or self._tries[-1].poll() is None, self._log(len(self._tries))
            time.sleep(0.1)

    def close(self) -> None:
        """End what still runs."""
        for process in self._tries:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.wait(LIMIT_SECONDS)

    def _log(self, number: int) -> str:
        return self._log_file(number).read_text()

    def _log_file(self, number: int) -> Path:
        return self.work / f"try-{number}.log"

    def _operator(self) -> dict[str, Any]:
        is_cluster = self.connection.get("extra", {}).get("deploy-mode") == "cluster"
        conf = self.conf | ({"spark.pyspark.python": sys.executable} if is_cluster else {})
        return {
            "application": str(HERE / "application.py"),
            "application_args": [str(self.work), self.trouble],
            "checkpoint_dir": str(self.work / "checkpoints"),
            "conf": conf,
            **(SMALL if "spark:" in self.connection["host"] else {"driver_memory": "512m"}),
        }

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{SPARK_HOME / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(self.connection),
            "AIRFLOW_CONN_STATECHECK_DEFAULT": json.dumps({"conn_type": "statecheck", "host": self.url}),
        }


@pytest.fixture
def pipeline(request: pytest.FixtureRequest, api: str, tmp_path: Path) -> Iterator[Callable[..., Pipeline]]:
    """
    Make the task of a test.

    On ``local``, on the cluster by a ``client``, with its driver in the ``cluster``, or the same submitted over
    ``rest``.
    """
    made: list[Pipeline] = []

    def make(mode: str, trouble: str, kind: type[Pipeline] = Pipeline) -> Pipeline:
        where = _local() if mode == "local" else _standalone(request.getfixturevalue("cluster"), mode)
        made.append(kind(tmp_path, api, *where, trouble=trouble))
        return made[0]

    yield make
    for each in made:
        each.close()


def _local() -> tuple[dict[str, Any], dict[str, Any]]:
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    return {"conn_type": "spark", "host": "local[2]"}, conf


def _standalone(cluster: StandaloneCluster, mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    host, port = cluster.master.rsplit(":", 1)
    extra = {"deploy-mode": "client" if mode == "client" else "cluster", "rest-port": cluster.rest_port}
    conf = {"spark.ui.port": "0"} | ({"spark.driver.host": "127.0.0.1"} if mode == "client" else {})
    if mode == "rest":
        port, conf = str(cluster.rest_port), conf | {"spark.master.rest.enabled": "true"}
    return {"conn_type": "spark", "host": host, "port": int(port), "extra": extra}, conf
