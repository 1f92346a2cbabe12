"""Airflow operators that submit applications and stages with ``spark-submit``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_provider_statecheck.checkpoint.ids import require_not_missing
from airflow_provider_statecheck.checkpoint.masking import require_no_credentials
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.checkpointed import PreparedStage
from airflow_provider_statecheck.operators.remote import SubmittedDriverMixin, refuse_useless_retry
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.driver.application import STAGE_APPLICATION

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_provider_statecheck.checkpoint.records import Transport
    from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage
    from airflow_provider_statecheck.hooks.spark import Shipping
    from airflow_provider_statecheck.hooks.submitted_stage import DriverAccess, SubmittedStage


class CheckpointedSparkSubmitOperator(SubmittedDriverMixin, SparkSubmitOperator):
    """
    Submit an application that saves its progress.

    The application calls :meth:`StageContext.current()
    <airflow_provider_statecheck.spark.context.StageContext.current>`. When it fails, the retry submits it again, and it
    restores the last completed checkpoint. A driver on a standalone cluster continues if its task dies; the retry
    reconnects to it, as with Airflow's Spark operator.

    Works in client mode, and in cluster mode on a standalone cluster, on YARN and on Kubernetes, Python applications
    included. Other arguments are those of ``SparkSubmitOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.SubmittedDriverMixin`.

    :param ship_package: Add this package to the Python files of the application. Not needed if the cluster has it
        installed.
    :param package_dir: For cluster mode: a directory for the added package, by default ``packages`` below
        ``checkpoint_dir``. On a standalone cluster, a local path that all workers share; the driver verifies the files
        there before it uses them. On YARN and Kubernetes, a URI of S3, Google Cloud Storage, Azure or HDFS, from which
        Spark loads the package; with another one, ``spark-submit`` uploads the package itself. (templated)
    :param transport: How the driver calls the coordinator: ``http`` with a token of its attempt, or ``mailbox`` through
        files in ``checkpoint_dir``, which the task relays, so that the driver needs neither a network path nor a token.
        The default is ``mailbox`` in cluster mode on YARN and Kubernetes, and ``http`` elsewhere.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        *SubmittedDriverMixin.checkpoint_template_fields,
        "package_dir",
    )

    _shipping: Shipping | None = None
    _scratch: Path

    def __init__(
        self,
        *,
        ship_package: bool = True,
        package_dir: str | None = None,
        transport: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ship_package = ship_package
        self.package_dir = package_dir
        self.transport = transport

    @override
    def execute(self, context: Context) -> Any:
        """
        Submit the application or reconnect to its driver, and wait until it ends.

        :raises AirflowFailException: if an error that a retry cannot fix.
        """
        # Airflow's Spark operator creates the hook after it has completed the settings.
        self._hook = None
        with self._attempt(context):
            return super().execute(context)

    @override
    def on_kill(self) -> None:
        """End the driver, if it was submitted, and interrupt the task wherever it waits, which closes the attempt."""
        if self._hook is not None:
            super().on_kill()
        else:
            self._interrupt()

    @override
    def _get_hook(self) -> SparkSubmitHook:
        from airflow_provider_statecheck.hooks.spark import CheckpointedSparkSubmitHook

        hook = super()._get_hook()
        if self._stage is None or self._shipping is None:
            return hook
        return CheckpointedSparkSubmitHook.taking_over(hook, self._stage, self._shipping)

    def _check_arguments(self) -> None:
        from airflow_provider_statecheck.hooks.spark_settings import checked_settings, checked_texts

        self.conf = checked_settings("conf", self.conf)
        self.env_vars = checked_settings("env_vars", self.env_vars)
        self.application_args = checked_texts("application_args", self.application_args)

    @override
    @contextmanager
    def _prepared(self, context: Context) -> Iterator[RelayedStage]:
        with tempfile.TemporaryDirectory() as scratch:
            self._scratch = Path(scratch)
            with super()._prepared(context) as stage:
                yield stage

    @override
    def _stage_of(self, access: DriverAccess, prepared: PreparedStage) -> RelayedStage:
        self._check_arguments()
        self._shipping = self._shipping_to(self._scratch, prepared)
        return super()._stage_of(access, prepared)

    def _shipping_to(self, scratch: Path, prepared: PreparedStage) -> Shipping:
        from airflow_provider_statecheck.checkpoint.ids import packages_uri
        from airflow_provider_statecheck.hooks.spark import Shipping
        from airflow_provider_statecheck.storage.uris import normalise_base

        require_not_missing("package_dir", self.package_dir)
        require_no_credentials("package_dir", str(self.package_dir or ""))
        storage = prepared.storage
        return Shipping(
            scratch=scratch,
            storage=storage,
            shared=normalise_base(self.package_dir or packages_uri(storage.base_uri), "package_dir"),
            is_package_shipped=self.ship_package,
            transport=self._transport(),
        )

    def _transport(self) -> Transport | None:
        from airflow_provider_statecheck.checkpoint.records import Transport

        if self.transport is None:
            return None
        chosen = str(self.transport).strip().lower()
        if chosen not in (Transport.HTTP, Transport.MAILBOX):
            raise InvalidConfigurationError(
                f"Expected transport to be http or mailbox, found {self.transport!r}; correct it.", key="transport"
            )
        return Transport(chosen)


class CheckpointedStageSubmitOperator(CheckpointedSparkSubmitOperator):
    """
    Submit a stateful stage.

    The submitted application is part of this package: it imports the stage and runs it. Pass the modules of the stage
    with ``py_files``, or install them on the driver and the executors.

    Other arguments are those of
    :class:`~airflow_provider_statecheck.operators.spark_submit.CheckpointedSparkSubmitOperator`, without
    ``application``, ``application_args`` and ``overhead_budget``; ``renamed_uids`` also names functions of the stage
    whose uid has changed.

    :param stage: Location of the stage as ``module:attribute``, which the driver imports. A callable there is called
        without arguments and returns the stage. (templated)
    :param uid: Name of the stage within its job. The default is the task id. (templated)
    :param parallelism: Number of subtasks. The default is that of the stage, or else the number of task slots of Spark.
    """

    template_fields: Sequence[str] = (*CheckpointedSparkSubmitOperator.template_fields, "stage")

    unused_arguments = ("overhead_budget",)

    def __init__(self, *, stage: str, parallelism: int | None = None, **kwargs: Any) -> None:
        super().__init__(application=STAGE_APPLICATION, **kwargs)
        self.stage = stage
        self.parallelism = parallelism

    @override
    def _get_hook(self) -> SparkSubmitHook:
        from airflow_provider_statecheck.hooks.spark import CheckpointedStageSubmitHook

        self.application_args = [self.stage]
        hook = super()._get_hook()
        if self._stage is None or self._shipping is None:
            return hook
        return CheckpointedStageSubmitHook.taking_over(hook, self._stage, self._shipping)

    @override
    @contextmanager
    def _closing(self, stage: SubmittedStage, context: Context) -> Iterator[None]:
        try:
            with super()._closing(stage, context):
                yield
                stage.require_end()
        except Exception as error:
            refuse_useless_retry(stage, error)
            raise
