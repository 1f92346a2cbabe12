"""Where the session of a PySpark task will run, as its connection and settings say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow.sdk import BaseHook

_CONNECT_TYPE = "spark_connect"
_REMOTE = "spark.remote"
_MASTER = "spark.master"
_CONNECT_SCHEME = "sc://"


@dataclass(frozen=True, slots=True)
class SessionTarget:
    """A driver of this process, or a Spark Connect server."""

    conf: Mapping[str, str] = field(repr=False)
    """Spark's settings, which may be secrets; the master is one of them where it is known."""
    is_connect: bool

    @classmethod
    def of(cls, conn_id: str | None, config: Mapping[str, Any]) -> Self:
        """
        Read a Spark connection as Spark's own operator does.

        :param conn_id: Connection of the type ``spark`` or ``spark_connect``; ``None`` leaves the master to ``config``,
            ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf``; without any of them Spark is local.
        :param config: Settings that come before those of the connection.
        """
        connection = BaseHook.get_connection(conn_id) if conn_id else None
        extra = connection.extra_dejson if connection else {}
        conf = {str(key): str(value) for key, value in {**extra, **config}.items()}
        is_connect = _REMOTE in conf or (connection is not None and _leads_to_connect(connection))
        if connection is not None and connection.host and not is_connect:
            conf.setdefault(_MASTER, _master_of(connection))
        return cls(conf, is_connect)

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return an operator's settings with the master among them.

        A JVM that runs has a master already, and Spark's own operator would take that one for the connection's.
        """
        return {**config, _MASTER: self.conf[_MASTER]} if _MASTER in self.conf else dict(config)

    def check_environment(self) -> None:
        """
        Refuse to start where Spark would fail later and less clearly.

        :raises EnvironmentNotReadyError: naming what is missing or does not fit.
        """
        from airflow_provider_statecheck.spark.driver.versions import check_environment

        check_environment(needs_java=not self.is_connect)

    def start(self) -> None:
        """Start the driver JVM in a session of its own; a Spark Connect server has its own."""
        from airflow_provider_statecheck.spark.driver.session import launch_jvm

        if not self.is_connect:
            launch_jvm(self.conf)


def _master_of(connection: Any) -> str:
    return f"{connection.host}:{connection.port}" if connection.port else str(connection.host)


def _leads_to_connect(connection: Any) -> bool:
    return connection.conn_type == _CONNECT_TYPE or str(connection.host or "").startswith(_CONNECT_SCHEME)
