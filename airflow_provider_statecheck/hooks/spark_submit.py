"""The hook that registers an attempt with each real submission and hands it to the driver."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from typing_extensions import override

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks.cluster_python import PYTHON_RUNNER, as_cluster_python
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.hooks.submitted_stage import SubmittedStage

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
        from airflow_provider_statecheck.spark.driver.package_zip import write_package

        package = str(write_package(self._folder()))
        self._py_files = f"{self._py_files},{package}" if self._py_files else package

    def _for_cluster(self, application: str) -> str:
        from airflow_provider_statecheck.spark.driver.package_zip import write_launcher_jar

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
