"""
Hooks for spark-submit and for Spark sessions.

:class:`CheckpointedSparkSubmitHook` registers an attempt and passes it to the submitted driver, with a token in its
environment or by a mailbox. :class:`SessionTarget`
describes the driver of a task that runs Spark in its own process.

On a standalone cluster, spark-submit refuses Python applications in cluster mode. The hook therefore submits an empty
jar with Spark's ``PythonRunner`` as the main class, which spark-submit itself uses for Python applications in client
mode. Python then runs the program of :mod:`~airflow_provider_statecheck.spark.driver.cluster_start`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook

from airflow_provider_statecheck.checkpoint.ids import require_not_missing
from airflow_provider_statecheck.checkpoint.masking import remember_secrets, secrets_in_settings
from airflow_provider_statecheck.checkpoint.records import Transport
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks.spark_settings import checked_settings, require_master, require_remote
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.driver.application import MAILBOX_PROPERTY, STAGE_APPLICATION
from airflow_provider_statecheck.spark.driver.cluster_start import arguments_of_python
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, hadoop_uri, redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

PYTHON_RUNNER = "org.apache.spark.deploy.PythonRunner"
_LOCAL_PREFIXES = ("file://", "local:", "file:")
_CONNECT_TYPE = "spark_connect"
_REMOTE = "spark.remote"
_MASTER = "spark.master"
_CONNECT_SCHEME = "sc://"
_SUPERVISE = "spark.driver.supervise"
_UPLOADS = "spark.kubernetes.file.upload.path"
_DEPLOY_MODE = "spark.submit.deployMode"
_CLIENT = "client"
_DEPLOY_MODES = (None, "", _CLIENT, "cluster")
_CONFIG = "config_kwargs"
_SETTING_PREFIX = "spark."
_REMEDY = (
    "correct it. Airflow takes the scheme of a connection that is given as a URI for its type: give such a connection "
    "as JSON, with the scheme in its host."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipping:
    """How the driver gets this package and its attempt."""

    scratch: Path
    """Temporary directory of the task, used in client mode."""
    storage: CheckpointStorage
    """Storage that writes to the shared directory."""
    shared: str
    """URI of a directory that every worker can read and that outlives the task, used in cluster mode."""
    is_package_shipped: bool = True
    transport: Transport | None = None
    """HTTP or a mailbox; ``None`` for a mailbox in cluster mode on YARN and Kubernetes, and HTTP elsewhere."""


class CheckpointedSparkSubmitHook(SparkSubmitHook):
    """Submit a driver for a registered attempt; create it with :meth:`taking_over`."""

    _stage: RelayedStage
    _shipping: Shipping
    _handover: dict[str, str]

    @classmethod
    def taking_over(cls, hook: SparkSubmitHook, stage: RelayedStage, shipping: Shipping) -> Self:
        """
        Return a hook with the settings of a ``SparkSubmitHook``.

        :param hook: Hook created by Airflow's Spark operator; copying it avoids repeating its constructor's arguments.
        :raises InvalidConfigurationError: if the deploy mode does not support a handover.
        """
        copy = cls.__new__(cls)
        vars(copy).update(vars(hook))
        copy._stage, copy._shipping, copy._handover = stage, shipping, {}
        # Airflow's Spark operator and the connection have added settings, and Airflow logs the command with them.
        remember_secrets(secrets_in_settings(copy._conf))
        copy._require_known_master()
        copy._refuse_unsafe_mode()
        return copy

    @override
    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """
        Register an attempt, then submit its driver.

        :param application: Path of a Python file or a jar.
        """
        submitted = self._prepare(application)
        if self._uses_mailbox:
            self._conf = {**self._conf, MAILBOX_PROPERTY: self._stage.open_mailbox()}
        else:
            self._handover = self._stage.register().environment()
        return super().submit(submitted, **kwargs)

    @override
    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = super()._build_spark_submit_command(application)
        if self._is_cluster and self._is_standalone and self._is_supervised:
            # On a standalone cluster, spark-submit replaces the property by its option, which Airflow does not pass.
            command.insert(1, "--supervise")
        # The parent sets _env while it builds the command. The env_vars argument is not usable: depending on the mode,
        # it puts the token on a command line or is rejected.
        self._env = {**self._python_of_local_mode(), **(self._env or {}), **self._handover}
        return command

    @property
    def _is_cluster(self) -> bool:
        return bool(self._connection["deploy_mode"] == "cluster")

    @property
    def _is_standalone(self) -> bool:
        return str(self._connection["master"]).startswith("spark://")

    @property
    def _is_supervised(self) -> bool:
        return str(self._conf.get(_SUPERVISE, "false")).strip().lower() == "true"

    @property
    def _uses_mailbox(self) -> bool:
        chosen = self._shipping.transport
        return chosen is Transport.MAILBOX or (chosen is None and self._is_cluster and not self._is_standalone)

    def _require_known_master(self) -> None:
        place = _of_connection(self._conn_id)
        require_master(str(self._connection["master"]), place, "correct its host and port.")
        mode = self._connection["deploy_mode"]
        if mode not in _DEPLOY_MODES:
            raise InvalidConfigurationError(
                f"Expected 'client' or 'cluster' as deploy_mode, or as deploy-mode in the extra of {place}, found "
                f"{mode!r}; correct it.",
                key="deploy_mode",
            )

    def _refuse_unsafe_mode(self) -> None:
        if self._is_cluster and not self._is_standalone and not self._uses_mailbox:
            raise InvalidConfigurationError(
                "Expected transport='mailbox' in cluster mode on YARN and Kubernetes, found 'http' on "
                f"{self._connection['master']!r}, where the driver's specification would expose its token; leave "
                "transport out.",
                key="transport",
            )
        if not self._is_cluster and self._conf.get(_DEPLOY_MODE) == "cluster":
            raise InvalidConfigurationError(
                f"Expected cluster mode in deploy_mode, found it in conf as {_DEPLOY_MODE}, which Airflow does not "
                "read; use deploy_mode='cluster'."
            )
        if not self._uses_mailbox and self._is_supervised:
            raise InvalidConfigurationError(
                f"Expected {_SUPERVISE} to be false, found true: a driver that Spark restarts would reuse the attempt "
                "of the failed driver; let Airflow retry the task, or set transport='mailbox', which gives it an "
                "attempt of its own."
            )

    def _prepare(self, application: str) -> str:
        if self._is_cluster and not self._uses_mailbox:
            self._conf = {**self._conf, _SUPERVISE: "false"}
        if not application.endswith(".py"):
            return application
        if self._is_cluster and self._is_standalone:
            return self._for_cluster(application)
        if self._shipping.is_package_shipped:
            package = self._package()
            self._py_files = f"{self._py_files},{package}" if self._py_files else package
        return application

    def _package(self) -> str:
        from airflow_provider_statecheck.spark.driver.shipped_files import published_package, write_package

        if self._is_published:
            return _known_to_spark(published_package(self._shipping.storage, self._shipping.shared))
        self._require_uploads("this package", ", or install the package in the image and set ship_package=False")
        return str(write_package(self._shipping.scratch).path)

    @property
    def _is_published(self) -> bool:
        """Whether the driver loads the files of this package from the shared directory."""
        return self._is_cluster and not self._is_standalone and hadoop_uri(self._shipping.shared) is not None

    def _require_uploads(self, files: str, remedy: str = "") -> None:
        if self._is_cluster and str(self._connection["master"]).startswith("k8s://") and _UPLOADS not in self._conf:
            raise InvalidConfigurationError(
                f"Expected {_UPLOADS} in conf, to which spark-submit uploads {files} for a driver on Kubernetes, "
                f"found none, and {redact(self._shipping.shared)!r} as the directory for packages, which Spark does "
                f"not read; set it, or package_dir to a directory such as s3://lake/packages{remedy}."
            )

    def _for_cluster(self, application: str) -> str:
        from airflow_provider_statecheck.spark.driver.shipped_files import write_launcher_jar, write_package

        require_cluster_paths(application, self._py_files)
        folder = self._shared_folder()
        launcher = write_launcher_jar(folder)
        self._application_args, self._files, self._conf = as_cluster_python(
            arguments_of_python(
                launcher,
                write_package(folder) if self._shipping.is_package_shipped else None,
                application,
                [str(each) for each in self._application_args or ()],
            ),
            py_files=self._py_files,
            files=self._files,
            conf=self._conf,
        )
        self._py_files, self._java_class = None, PYTHON_RUNNER
        return launcher.path.as_uri()

    def _shared_folder(self) -> Path:
        scheme, _, path = self._shipping.shared.partition("://")
        if scheme not in LOCAL_SCHEMES:
            raise InvalidConfigurationError(
                f"Expected a shared directory for the Python files of a driver in cluster mode, found "
                f"{redact(self._shipping.shared)!r}; set package_dir to a directory that every worker can read."
            )
        return Path(path)

    def _python_of_local_mode(self) -> dict[str, str]:
        is_local = str(self._connection["master"]).startswith("local")
        if not is_local or "PYSPARK_PYTHON" in os.environ or "spark.pyspark.python" in self._conf:
            return {}
        return {"PYSPARK_PYTHON": sys.executable}


class CheckpointedStageSubmitHook(CheckpointedSparkSubmitHook):
    """Submit the application of a stage, which cluster mode needs no file for."""

    @override
    def _prepare(self, application: str) -> str:
        if self._is_cluster and self._is_standalone:
            return super()._prepare(application)
        return super()._prepare(self._application())

    def _application(self) -> str:
        from airflow_provider_statecheck.spark.driver.shipped_files import (
            published_stage_application,
            write_stage_application,
        )

        if self._is_published:
            return _known_to_spark(published_stage_application(self._shipping.storage, self._shipping.shared))
        self._require_uploads("the application of the stage")
        return str(write_stage_application(self._shipping.scratch))


def _known_to_spark(uri: str) -> str:
    return hadoop_uri(uri) or uri


class ClusterPython(NamedTuple):
    """Arguments of ``PythonRunner`` that replace those of a Python application."""

    application_args: list[str]
    files: str | None
    conf: dict[str, Any]


def as_cluster_python(
    arguments: Sequence[str], *, py_files: str | None, files: str | None, conf: Mapping[str, Any]
) -> ClusterPython:
    """
    Return the arguments that run a program with ``PythonRunner``.

    :param arguments: The program and its arguments, as after Python's option ``-c``.
    :param py_files: Comma-separated Python files, readable by every worker.
    """
    python_files = _listed(py_files)
    return ClusterPython(
        # PythonRunner passes any first argument to Python where it expects a script.
        application_args=["-c", ",".join(python_files), *arguments],
        # PythonRunner adds the files to the driver's path only; files and spark.submit.pyFiles send them to executors.
        files=",".join(filter(None, (files, *python_files))) or None,
        conf={**conf, **({"spark.submit.pyFiles": ",".join(python_files)} if python_files else {})},
    )


def require_cluster_paths(application: str, py_files: str | None) -> None:
    """
    Check that workers find the Python files of an application.

    :param py_files: Comma-separated Python files.
    :raises InvalidConfigurationError: if a path is relative or on another filesystem, which workers do not fetch.
    """
    for path in _listed(py_files) if application == STAGE_APPLICATION else (application, *_listed(py_files)):
        _require_path(path)


def _listed(py_files: str | None) -> list[str]:
    return [path for path in (py_files or "").split(",") if path]


def _require_path(path: str) -> None:
    bare = path
    for prefix in _LOCAL_PREFIXES:
        bare = bare.removeprefix(prefix)
    if not Path(bare).is_absolute() or "://" in bare:
        raise InvalidConfigurationError(
            "Expected the Python files of an application in cluster mode at absolute paths that every worker can "
            f"read, found {path!r}; move it to a shared filesystem, or use client mode."
        )


@dataclass(frozen=True, slots=True)
class SessionTarget:
    """Spark driver in this process, or a Spark Connect server."""

    conf: Mapping[str, str] = field(repr=False)
    """Spark's settings, which may contain secrets; includes the master or the address of the server, if it is known."""
    is_connect: bool

    @classmethod
    def of(cls, conn_id: str | None, config: Any) -> Self:
        """
        Read a Spark connection with the same rules as Airflow's Spark operator.

        :param conn_id: Connection of type ``spark`` or ``spark_connect``. With ``None`` the master comes from
            ``config``, ``PYSPARK_SUBMIT_ARGS`` or ``spark-defaults.conf``, and is local by default.
        :param config: Settings with precedence over those of the connection.
        :raises InvalidConfigurationError: if a setting has no value, or the master is missing or unknown to Spark.
        """
        require_not_missing("conn_id", conn_id)
        given = checked_settings(_CONFIG, config)
        connection = BaseHook.get_connection(conn_id) if conn_id else None
        extra = {} if connection is None else _extra_of(connection, str(conn_id))
        conf = {name: str(value) for name, value in {**extra, **given}.items()}
        if connection is not None:
            conf = {**_address_of(connection, str(conn_id), conf), **conf}
        is_of_config = connection is None or bool({_MASTER, _REMOTE} & set(given))
        _require_address(conf, _CONFIG if is_of_config else _of_connection(conn_id))
        return cls(conf, is_connect=_REMOTE in conf)

    def check_environment(self) -> None:
        """
        Check Java and the installed Spark packages before Spark starts.

        :raises EnvironmentNotReadyError: if a requirement is missing or has an incompatible version.
        """
        from airflow_provider_statecheck.spark.driver.readiness import check_environment

        check_environment(needs_java=not self.is_connect)

    def start(self, app_name: str) -> Any:
        """
        Start the session: in a driver JVM with a process session of its own, or on a Spark Connect server.

        :param app_name: Name of the application, unless the settings have one.
        """
        from airflow_provider_statecheck.spark.driver.session import launch_jvm, open_session

        if not self.is_connect:
            launch_jvm(self.conf)
        return open_session({"spark.app.name": app_name, **self.conf})


def _extra_of(connection: Any, conn_id: str) -> dict[str, Any]:
    extra = connection.extra_dejson
    # Airflow's form of a connection may leave other fields of the extra empty.
    ours = {name: value for name, value in extra.items() if str(name).startswith(_SETTING_PREFIX)}
    others = {name: value for name, value in extra.items() if name not in ours and value is not None}
    return others | checked_settings(f"the extra of {_of_connection(conn_id)}", ours)


def _address_of(connection: Any, conn_id: str, conf: Mapping[str, str]) -> dict[str, str]:
    host = str(connection.host or "").strip()
    is_of_connect = connection.conn_type == _CONNECT_TYPE
    if not host and (is_of_connect or not {_MASTER, _REMOTE} & set(conf)):
        raise InvalidConfigurationError(
            f"Expected the host of {_of_connection(conn_id)}, found none; enter the master or the server there"
            f"{'' if is_of_connect else f', or set {_CONFIG}[{_MASTER!r}]'}.",
            key="conn_id",
        )
    if is_of_connect:
        return {_REMOTE: _connect_url(conn_id)}
    address = f"{host}:{connection.port}" if connection.port else host
    if address.startswith(_CONNECT_SCHEME):
        return {_REMOTE: address}
    return {} if {_MASTER, _REMOTE} & set(conf) else {_MASTER: address}


def _connect_url(conn_id: str) -> str:
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    try:
        return str(SparkConnectHook(conn_id).get_connection_url())
    except ValueError:
        raise InvalidConfigurationError(
            f"Expected a host without a path in {_of_connection(conn_id)}, found one with a path; remove it.",
            key="conn_id",
        ) from None


def _require_address(conf: Mapping[str, str], place: str) -> None:
    if _MASTER in conf and _REMOTE in conf:
        raise InvalidConfigurationError(
            f"Expected {_MASTER} or {_REMOTE}, found both in {place} and the connection; leave one out.", key=_MASTER
        )
    if _MASTER in conf:
        require_master(conf[_MASTER], place, _REMEDY)
    if _REMOTE in conf:
        require_remote(conf[_REMOTE], place)
    if conf.get(_DEPLOY_MODE, _CLIENT) != _CLIENT:
        raise InvalidConfigurationError(
            f"Expected the driver in this task, found {_DEPLOY_MODE}={conf[_DEPLOY_MODE]!r}; remove it, or submit an "
            f"application with CheckpointedSparkSubmitOperator.",
            key=_DEPLOY_MODE,
        )


def _of_connection(conn_id: str | None) -> str:
    return f"the connection {conn_id!r}"
