"""Where the pipeline may run, as connections and arguments of operators."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.connect_server import ConnectServer
from tests.standalone_cluster import StandaloneCluster

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_SMALL = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2"}
_QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


@dataclass(frozen=True)
class Place:
    """A connection of Spark, and what the operator is given."""

    connection: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    is_submitted: bool = False


def local() -> Place:
    """Run Spark in the task."""
    return Place({"conn_type": "spark", "host": "local[2]"}, {"config_kwargs": _QUIET, "conn_id": "spark_default"})


def standalone_client(cluster: StandaloneCluster) -> Place:
    """Run the driver in the task and the executors on a cluster."""
    conf = _QUIET | _SMALL | {"spark.driver.host": "127.0.0.1", "spark.pyspark.python": sys.executable}
    return Place({"conn_type": "spark", "host": cluster.master}, {"config_kwargs": conf, "conn_id": "spark_default"})


def standalone_cluster(cluster: StandaloneCluster, work: Path) -> Place:
    """Submit an application whose driver runs on the cluster too."""
    host, port = cluster.master.rsplit(":", 1)
    extra = {"deploy-mode": "cluster", "rest-port": cluster.rest_port}
    arguments = {
        "application": str(HERE / "application.py"),
        "application_args": [str(work), str(ROOT)],
        "conf": _QUIET | _SMALL | {"spark.pyspark.python": sys.executable},
        "driver_memory": "512m",
        "package_dir": str(work / "packages"),
    }
    return Place({"conn_type": "spark", "host": host, "port": int(port), "extra": extra}, arguments, is_submitted=True)


def connect(server: ConnectServer) -> Place:
    """Be a client of a Spark Connect server."""
    connection = {"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": server.port}
    return Place(connection, {"conn_id": "spark_default"})
