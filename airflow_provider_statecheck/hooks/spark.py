"""
Spark hooks: sessions, and submissions that register an attempt.

The refusal is for applications whose name ends in ``.py``. So a jar without a class is submitted instead, with Spark's own
``PythonRunner`` as the main class: it is what spark-submit starts for a Python application in client mode.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook
from typing_extensions import override

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.hooks.submitted_stage import SubmittedStage


PYTHON_RUNNER = "org.apache.spark.deploy.PythonRunner"
_LOCAL_PREFIXES = ("file://", "local:", "file:")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPython:
    """What takes the place of a Python application's own arguments."""

    application_args: list[str]
    files: str | None
    conf: dict[str, Any]


def as_cluster_python(
    application: str,
    application_args: Sequence[Any] | None,
    *,
    py_files: str | None,
    files: str | None,
    conf: Mapping[str, Any],
) -> ClusterPython:
    """
    Return how ``PythonRunner`` takes an application.

    :param application: The script, at a path that every worker sees.
    :param py_files: Comma-separated Python files, at such paths too.
    :raises InvalidConfigurationError: for a path on another filesystem, from which a worker does not fetch it.
    """
    python_files = [path for path in (py_files or "").split(",") if path]
    for path in (application, *python_files):
        _require_path(path)
    return ClusterPython(
        application_args=[application, ",".join(python_files), *map(str, application_args or ())],
        # PythonRunner gives the files to the driver alone; these two give them to the executors.
        files=",".join(filter(None, (files, *python_files))) or None,
        conf={**conf, **({"spark.submit.pyFiles": ",".join(python_files)} if python_files else {})},
    )


def _require_path(path: str) -> None:
    bare = path
    for prefix in _LOCAL_PREFIXES:
        bare = bare.removeprefix(prefix)
    if not Path(bare).is_absolute() or "://" in bare:
        raise InvalidConfigurationError(
            f"Expected the Python files of an application in cluster mode at absolute paths that every worker sees, found "
            f"{path!r}; put it on a filesystem that they share, or use client mode."
        )


_SUPERVISE = "spark.driver.supervise"
_DEPLOY_MODE = "spark.submit.deployMode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipping:
    """Where this package is put for the driver and the executors."""

    scratch: Path
    """A folder of the task; it need last no longer than a driver in client mode."""
    shared: str
    """URI of a folder that every worker sees and that outlives the task."""
    is_package_shipped: bool = True


class CheckpointedSparkSubmitHook(SparkSubmitHook):
    """Submits a driver that speaks for a registered attempt; made by :meth:`taking_over`."""

    _stage: SubmittedStage
    _shipping: Shipping
    _handover: dict[str, str]

    @classmethod
    def taking_over(cls, hook: SparkSubmitHook, stage: SubmittedStage, shipping: Shipping) -> Self:
        """
        Return a hook with all the settings of another.

        :param hook: As Spark's operator makes it; its many arguments are Spark's affair.
        :param stage: The stage that is submitted.
        :param shipping: Where the package goes.
        :raises InvalidConfigurationError: for a mode in which an attempt cannot be handed over.
        """
        mine = cls.__new__(cls)
        vars(mine).update(vars(hook))
        mine._stage, mine._shipping, mine._handover = stage, shipping, {}
        mine._refuse_unsafe_mode()
        return mine

    @override
    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """
        Register an attempt, then submit its driver.

        :param application: The application, a Python file or a jar.
        """
        submitted = self._prepare(application)
        self._handover = self._stage.register().environment()
        return super().submit(submitted, **kwargs)

    @override
    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = super()._build_spark_submit_command(application)
        # Only here, for the command's own settings replace the environment. Spark's env_vars would put the token on a
        # command line or refuse it, depending on the mode.
        self._env = {**self._python_of_local_mode(), **(self._env or {}), **self._handover}
        return command

    @property
    def _is_cluster(self) -> bool:
        return bool(self._connection["deploy_mode"] == "cluster")

    def _refuse_unsafe_mode(self) -> None:
        master = str(self._connection["master"])
        if self._is_cluster and not master.startswith("spark://"):
            raise InvalidConfigurationError(
                f"Expected client mode, or cluster mode on a standalone cluster, found cluster mode on {master!r}, where "
                f"the driver's token would be readable in its specification; use deploy_mode='client'."
            )
        if not self._is_cluster and self._conf.get(_DEPLOY_MODE) == "cluster":
            raise InvalidConfigurationError(
                f"Expected cluster mode to be asked for by deploy_mode, found it in conf as {_DEPLOY_MODE}, which Airflow "
                f"does not see; use deploy_mode='cluster'."
            )
        if str(self._conf.get(_SUPERVISE, "false")).strip().lower() == "true":
            raise InvalidConfigurationError(
                f"Expected {_SUPERVISE} to be off, found it on: a driver that Spark starts again would speak for the "
                f"attempt of the one before; let Airflow retry the task."
            )

    def _prepare(self, application: str) -> str:
        if self._is_cluster:
            self._conf = {**self._conf, _SUPERVISE: "false"}
        if not application.endswith(".py"):
            return application
        if self._shipping.is_package_shipped:
            self._ship_package()
        return self._for_cluster(application) if self._is_cluster else application

    def _ship_package(self) -> None:
        from airflow_provider_statecheck.spark.driver.readiness import write_package

        package = str(write_package(self._folder()))
        self._py_files = f"{self._py_files},{package}" if self._py_files else package

    def _for_cluster(self, application: str) -> str:
        from airflow_provider_statecheck.spark.driver.readiness import write_launcher_jar

        python = as_cluster_python(
            application, self._application_args, py_files=self._py_files, files=self._files, conf=self._conf
        )
        self._application_args, self._files, self._conf = python.application_args, python.files, python.conf
        self._py_files, self._java_class = None, PYTHON_RUNNER
        return write_launcher_jar(self._folder()).as_uri()

    def _folder(self) -> Path:
        if not self._is_cluster:
            return self._shipping.scratch
        scheme, _, path = self._shipping.shared.partition("://")
        if scheme not in LOCAL_SCHEMES:
            raise InvalidConfigurationError(
                f"Expected a folder that every worker sees for the Python files of a driver in cluster mode, found "
                f"{redact(self._shipping.shared)!r}; give one as package_dir."
            )
        return Path(path)

    def _python_of_local_mode(self) -> dict[str, str]:
        is_local = str(self._connection["master"]).startswith("local")
        if not is_local or "PYSPARK_PYTHON" in os.environ or "spark.pyspark.python" in self._conf:
            return {}
        return {"PYSPARK_PYTHON": sys.executable}


class CheckpointedStageSubmitHook(CheckpointedSparkSubmitHook):
    """Writes the application to where the driver finds it, and submits it."""

    @override
    def _prepare(self, application: str) -> str:
        from airflow_provider_statecheck.spark.driver.stage_application import write_stage_application

        return super()._prepare(str(write_stage_application(self._folder())))


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
        from airflow_provider_statecheck.spark.driver.readiness import check_environment

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
