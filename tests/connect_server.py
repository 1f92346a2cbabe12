"""A Spark Connect server from the pip package, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.standalone_cluster import LIMIT_SECONDS, SPARK_HOME, daemon_environment, free_port, wait_for

CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.artifact.isolation.enabled": "true",
}


@dataclass
class ConnectServer:
    """One process that ends with the test, by its id."""

    folder: Path
    master: str = "local[2]"
    conf: dict[str, str] = field(default_factory=dict)
    around: Sequence[str] = ()
    """A command that runs the server as its own, to hide something from it for instance."""
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return what a client connects to."""
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, on the port that it had before."""
        self.folder.mkdir(exist_ok=True)
        self.port = self.port or free_port()
        log = self.folder / "server.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*self.around, *self._command()],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=daemon_environment()
                | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "1g"},
                cwd=self.folder,
            )
        wait_for(log, "(Spark Connect server started)")

    def stop(self) -> None:
        """End the server and wait for its end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(LIMIT_SECONDS)

    @property
    def pid(self) -> int:
        """Return the id of the server's process."""
        assert self._process is not None
        return self._process.pid

    def wait(self) -> None:
        """Wait until the server was killed."""
        assert self._process is not None
        self._process.wait(LIMIT_SECONDS)

    def _command(self) -> list[str]:
        conf = CONF | self.conf | {"spark.connect.grpc.binding.port": str(self.port)}
        settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        service = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        return [
            str(SPARK_HOME / "bin" / "spark-submit"),
            *service,
            "--master",
            self.master,
            *settings,
            "spark-internal",
        ]
