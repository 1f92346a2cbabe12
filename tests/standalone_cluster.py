"""A Spark standalone cluster from the pip package: a master and two workers on distinct loopback addresses."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
LIMIT_SECONDS = 120
_KEPT_VARIABLES = ("PATH", "HOME", "JAVA_HOME", "LANG")


@dataclass
class StandaloneCluster:
    """Processes that end with the cluster, by their ids."""

    folder: Path
    master: str = ""
    rest_port: int = 0
    pages: list[str] = field(default_factory=list)
    around: Sequence[str] = ()
    """A command that runs each process as its own, such as in another network."""
    around_workers: Sequence[str] = ()
    """A command that runs a worker as its own, to hide something from it for instance."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment of each process, and so of drivers and executors."""
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start a master and two workers on free ports."""
        # A number, for the master derives its own address from it when an application comes over REST.
        self.rest_port = free_port()
        options = f"-Dspark.master.rest.port={self.rest_port} -Dspark.port.maxRetries=0"
        log = self._spawn("master.Master", "127.0.0.1", SPARK_MASTER_OPTS=options)
        self.master = wait_for(log, r"Starting Spark master at (spark://\S+)")
        wait_for(log, "(REST server for submitting applications)")
        self.pages.append(_page(log))
        for host in ("127.0.0.2", "127.0.0.3"):
            log = self._spawn(
                "worker.Worker", host, "--cores", "2", "--memory", "3g", self.master, SPARK_LOCAL_DIRS=self._local(host)
            )
            wait_for(log, "(Successfully registered with master)")
            self.pages.append(_page(log))

    def stop(self) -> None:
        """End every process that was started here, drivers and executors with their workers."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(LIMIT_SECONDS)

    def _local(self, host: str) -> str:
        return str(self.folder / f"local-{host}")

    def _spawn(self, kind: str, host: str, *arguments: str, **variables: str) -> Path:
        log = self.folder / f"{kind}-{host}.log"
        is_worker = kind.startswith("worker")
        work = ["--work-dir", str(self.folder / f"work-{host}")] if is_worker else []
        around = self.around_workers if is_worker else ()
        command = [*self.around, *around, str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--host", host, "--port", "0", "--webui-port", "0", *work, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**daemon_environment(), "SPARK_LOCAL_IP": host, **self.variables, **variables},
                cwd=self.folder,
            )
        self._processes.append(process)
        return log


def daemon_environment() -> dict[str, str]:
    """Return the environment of a machine that knows nothing of the task's."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return kept | {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _page(log: Path) -> str:
    return wait_for(log, r"(?:MasterWebUI|WorkerWebUI): Bound \w+ to \S+, and started at (http://\S+)")


def wait_for(log: Path, pattern: str) -> str:
    """Wait until a line appears in a log, and return its first group."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text()) if log.exists() else None
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise TimeoutError(f"{pattern} did not appear in:\n{log.read_text()}")
