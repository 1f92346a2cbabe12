"""Airflow operators that submit applications and stages with ``spark-submit``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_statecheck.checkpoint.ids import require_not_missing
from airflow_provider_statecheck.checkpoint.masking import masked, require_no_credentials
from airflow_provider_statecheck.exceptions import (
    A_RETRY_CANNOT_HELP,
    InvalidConfigurationError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator, PreparedStage
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.driver.stage_application import STAGE_APPLICATION
from airflow_provider_statecheck.spark.endings import message_of
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage
    from airflow_provider_statecheck.hooks.spark import Shipping, Transport
    from airflow_provider_statecheck.hooks.submitted_stage import SubmittedStage


_PACKAGES = "packages"


class CheckpointedSparkSubmitOperator(SparkSubmitOperator, CheckpointedOperator):
    """
    Submit an application that saves its progress.

    The application calls :meth:`StageContext.current()
    <airflow_provider_statecheck.spark.context.StageContext.current>`. When it fails, the retry submits it again, and it
    restores the last completed checkpoint. A driver on a standalone cluster continues if its task dies; the retry
    reconnects to it, as with Airflow's Spark operator.

    Works in client mode, and in cluster mode on a standalone cluster, on YARN and on Kubernetes, Python applications
    included. Other arguments are those of ``SparkSubmitOperator`` and of
    :class:`~airflow_provider_statecheck.operators.checkpointed.CheckpointedOperator`.

    :param ship_package: Add this package to the Python files of the application. Not needed if the cluster has it
        installed.
    :param package_dir: For cluster mode: a directory shared by all workers for the added package. The default is below
        ``checkpoint_dir`` if that is a local path. The driver verifies the files there before it uses them. (templated)
    :param transport: How the driver calls the coordinator: ``http`` with a token of its attempt, or ``mailbox`` through
        files in ``checkpoint_dir``, which the task relays, so that the driver needs neither a network path nor a token.
        The default is ``mailbox`` in cluster mode on YARN and Kubernetes, and ``http`` elsewhere.
    :param mailbox_patience: Longest time that a driver with a mailbox waits for an answer, for instance while its task
        is retried. A bare number is milliseconds; text has a unit, such as ``30 min``.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        *CheckpointedOperator.checkpoint_template_fields,
        "package_dir",
    )

    _stage: RelayedStage | None = None
    _shipping: Shipping | None = None

    def __init__(
        self,
        *,
        ship_package: bool = True,
        package_dir: str | None = None,
        transport: str | None = None,
        mailbox_patience: timedelta | str | int = "30 min",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ship_package = ship_package
        self.package_dir = package_dir
        self.transport = transport
        self.mailbox_patience = mailbox_patience

    @override
    def execute(self, context: Context) -> Any:
        """
        Submit the application or reconnect to its driver, and wait until it ends.

        :raises AirflowFailException: if an error that a retry cannot fix.
        """
        from airflow_provider_statecheck.hooks.submitted_stage import repeatedly

        # Airflow's Spark operator creates the hook after it has completed the settings.
        self._hook = self._stage = self.kept = None
        try:
            with self._interruptible(), self._prepared(context) as stage:
                self._check_arguments()
                self._forget_driver_of_cleared_task(context, stage)
                with repeatedly(stage.log_checkpoints), self._closing(stage), stage.relaying():
                    return super().execute(context)
        except A_RETRY_CANNOT_HELP as error:
            raise AirflowFailException(masked(str(error))) from error

    @override
    def on_kill(self) -> None:
        """End the driver, if it was submitted, and interrupt the task wherever it waits, which closes the attempt."""
        try:
            if self._hook is not None:
                super().on_kill()
        finally:
            self._interrupt()

    @override
    def fail_after_end(self, error: BaseException) -> None:
        from airflow_provider_statecheck.checkpoint.records import AttemptStatus
        from airflow_provider_statecheck.hooks.transport import airflow_gateway, is_orm_open

        if self._stage is not None and self.kept is None:
            # The server of a task with access to the database has ended with the driver.
            gateway = airflow_gateway() if is_orm_open() else None
            self._stage.close(AttemptStatus.FAILED, message_of(error), gateway)

    @override
    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Adopt the attempt of a driver that an earlier try submitted, and wait until the driver ends."""
        self._adopt_running()
        super().poll_until_complete(external_id, context)

    @override
    def get_job_result(self, external_id: Any, context: Context) -> None:
        """Adopt the attempt of a driver that ended while no task was running, and return its result."""
        self._adopt_running()
        super().get_job_result(external_id, context)

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

    def _adopt_running(self) -> None:
        if self._stage is not None:
            self._stage.adopt_running()

    @contextmanager
    def _prepared(self, context: Context) -> Iterator[RelayedStage]:
        from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage
        from airflow_provider_statecheck.hooks.submitted_stage import driver_access

        prepared = self.prepare(context)
        registration = prepared.registration
        with driver_access(registration.owner) as access, tempfile.TemporaryDirectory() as scratch:
            self._shipping = self._shipping_to(Path(scratch), prepared)
            self._stage = RelayedStage(
                access,
                registration,
                prepared.driver,
                prepared.on_overlap,
                storage=prepared.storage,
                patience_seconds=self._patience_seconds(),
            )
            yield self._stage

    @contextmanager
    def _closing(self, stage: SubmittedStage) -> Iterator[None]:
        from airflow_provider_statecheck.checkpoint.records import AttemptStatus

        try:
            yield
            self._is_interruptible = False
            stage.close(AttemptStatus.FINISHED)
        except BaseException as error:
            self._is_interruptible = False
            stage.close(AttemptStatus.FAILED, message_of(error))
            self.kept = stage.kept()
            _refuse_retry_of_stopped(stage)
            raise

    def _forget_driver_of_cleared_task(self, context: Context, stage: SubmittedStage) -> None:
        # Airflow stores the id of the driver across a clear, and would not submit a successful driver again.
        store = context.get("task_state_store")
        if store is not None and store.get(self.external_id_key) and stage.was_cleared():
            self.log.info("The task was cleared, or its job was removed; its application is submitted again.")
            store.delete(self.external_id_key)

    def _shipping_to(self, scratch: Path, prepared: PreparedStage) -> Shipping:
        from airflow_provider_statecheck.hooks.spark import Shipping
        from airflow_provider_statecheck.storage.uris import normalise_base

        require_not_missing("package_dir", self.package_dir)
        require_no_credentials("package_dir", str(self.package_dir or ""))
        shared = normalise_base(self.package_dir or f"{prepared.storage.base_uri}/{_PACKAGES}", "package_dir")
        return Shipping(
            scratch=scratch, shared=shared, is_package_shipped=self.ship_package, transport=self._transport()
        )

    def _transport(self) -> Transport | None:
        from airflow_provider_statecheck.checkpoint.config_options import one_of
        from airflow_provider_statecheck.hooks.spark import Transport

        return None if self.transport is None else one_of(Transport, str)("transport", self.transport)

    def _patience_seconds(self) -> float:
        from airflow_provider_statecheck.checkpoint.config_options import parse_duration

        patience = parse_duration("mailbox_patience", self.mailbox_patience).total_seconds()
        if patience <= 0:
            raise InvalidConfigurationError(
                f"Expected mailbox_patience above 0, found {self.mailbox_patience!r}; correct it.",
                key="mailbox_patience",
            )
        return patience


def _refuse_retry_of_stopped(stage: SubmittedStage) -> None:
    pointer = stage.stopped_with()
    if pointer is not None:
        raise StoppedWithSavepointError(
            f"The stage was stopped with the savepoint {redact(pointer)}. Clear the task to resume from its last "
            f"checkpoint.",
            pointer=redact(pointer),
        )


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
    def _closing(self, stage: SubmittedStage) -> Iterator[None]:
        try:
            with super()._closing(stage):
                yield
                stage.require_end()
        except Exception as error:
            _refuse_useless_retry(stage, error)
            raise


def _refuse_useless_retry(stage: SubmittedStage, error: Exception) -> None:
    # The driver stores its error in the attempt; Airflow sees only the exit status of the process.
    name, _, text = stage.failure().partition(": ")
    for kind in A_RETRY_CANNOT_HELP:
        if kind.__name__ == name:
            raise kind(text) from error
