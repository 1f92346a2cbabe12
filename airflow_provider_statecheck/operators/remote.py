"""
Airflow operators whose Spark driver runs in another process, on whatever cluster.

:class:`SubmittedDriverMixin` is the task side of such a try: it registers or adopts the attempt, follows and closes it,
and hands the mailbox to the triggerer when the operator defers. :class:`RemoteDriverMixin` adds a mailbox to the job
that an operator of another provider submits.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.exceptions import (
    A_RETRY_CANNOT_HELP,
    InvalidConfigurationError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.operators.checkpointed import (
    CheckpointedOperator,
    PreparedStage,
    StageTerminatedError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage
    from airflow_provider_statecheck.hooks.submitted_stage import DriverAccess, SubmittedStage
    from airflow_provider_statecheck.payloads.additions import Additions
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


_DEFERRAL = "statecheck_deferral"
"""Argument of a resumed task with what it had deferred for."""


class SubmittedDriverMixin(CheckpointedOperator):
    """
    Mixin for an Airflow operator that waits for a driver in another process.

    :param mailbox_patience: Longest time that a driver with a mailbox waits for an answer, for instance while its task
        is retried. A bare number is milliseconds; text has a unit, such as ``30 min``.
    """

    external_id_key: str
    """Key of the id of the job in the state of the task, if the operator reconnects to its job."""

    _stage: RelayedStage | None = None
    _is_resumed = False

    def __init__(self, *, mailbox_patience: timedelta | str | int = "30 min", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mailbox_patience = mailbox_patience

    @override
    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """
        Continue after a deferral: complete as the provider's operator does, or let a new driver process begin.

        :raises TaskDeferred: if the driver goes on.
        :raises AirflowFailException: if an error that a retry cannot fix.
        """
        from airflow_provider_statecheck.triggers.mailbox import DRIVER_WAITS

        given = dict(next_kwargs or {})
        deferral = given.pop(_DEFERRAL, None)
        with self._attempt(context) as stage:
            stage.resume(None if deferral is None else deferral["mailbox"])
            if deferral is not None and given.get("event") == DRIVER_WAITS:
                stage.let_begin()
                raise _deferred_again(next_method, given, deferral)
            self._is_resumed = True
            try:
                return super().resume_execution(next_method, given, context)
            finally:
                self._is_resumed = False

    @override
    def on_kill(self) -> None:
        """
        End the driver, if it was submitted, and interrupt the task wherever it waits, which closes the attempt.

        A checkpoint that is on its way is waited for, two seconds at most.
        """
        try:
            self._let_complete()
            super().on_kill()
        finally:
            self._interrupt()

    def _let_complete(self) -> None:
        from airflow_provider_statecheck.hooks.submitted_stage import COMPLETION_SECONDS, within

        if self._stage is not None and self._is_interruptible:
            within(COMPLETION_SECONDS, self._stage.let_complete)

    @override
    def fail_after_end(self, error: BaseException) -> None:
        from airflow_provider_statecheck.checkpoint.records import AttemptStatus
        from airflow_provider_statecheck.hooks.transport import airflow_gateway, is_orm_open
        from airflow_provider_statecheck.spark.endings import message_of

        if self._stage is not None and self.kept is None:
            # The server of a task with access to the database has ended with the driver.
            gateway = airflow_gateway() if is_orm_open() else None
            self._stage.close(AttemptStatus.FAILED, message_of(error), gateway)

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Adopt the attempt of a driver that an earlier try submitted, and wait until the driver ends."""
        self.adopt_running()
        super().poll_until_complete(external_id, context)  # type: ignore[misc]

    def get_job_result(self, external_id: Any, context: Context) -> Any:
        """Adopt the attempt of a driver that ended while no task was running, and return its result."""
        self.adopt_running()
        return super().get_job_result(external_id, context)  # type: ignore[misc]

    @contextmanager
    def _attempt(self, context: Context) -> Iterator[RelayedStage]:
        """Return the attempt of this try, which is closed at the end of the block, unless the task defers."""
        from airflow_provider_statecheck.hooks.submitted_stage import repeatedly

        self._stage = self.kept = None
        try:
            with self._interruptible(), self._prepared(context) as stage:
                self._forget_driver_of_cleared_task(context, stage)
                try:
                    with repeatedly(stage.log_checkpoints), self._closing(stage, context), stage.relaying():
                        yield stage
                except TaskDeferred as deferred:
                    raise self._relayed(deferred, stage) from None
        except A_RETRY_CANNOT_HELP as error:
            raise AirflowFailException(masked(str(error))) from error

    @contextmanager
    def _prepared(self, context: Context) -> Iterator[RelayedStage]:
        from airflow_provider_statecheck.hooks.submitted_stage import driver_access

        prepared = self.prepare(context)
        with driver_access(prepared.registration.owner) as access:
            self._stage = self._stage_of(access, prepared)
            yield self._stage

    def _stage_of(self, access: DriverAccess, prepared: PreparedStage) -> RelayedStage:
        from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage

        return RelayedStage(
            access,
            prepared.registration,
            prepared.driver,
            prepared.on_overlap,
            storage=prepared.storage,
            patience_seconds=self._patience_seconds(),
        )

    @contextmanager
    def _closing(self, stage: SubmittedStage, context: Context) -> Iterator[None]:
        from airflow_provider_statecheck.checkpoint.records import AttemptStatus
        from airflow_provider_statecheck.spark.endings import message_of

        try:
            yield
            self._is_interruptible = False
            stage.close(AttemptStatus.FINISHED)
        except TaskDeferred:
            self._is_interruptible = False
            raise
        except BaseException as error:
            self._is_interruptible = False
            if self._is_left_to_retry(error, context):
                self.log.warning("The driver may still run; its attempt stays open, and the retry reconnects to it.")
            else:
                stage.close(AttemptStatus.FAILED, message_of(error))
            if isinstance(error, StageTerminatedError):
                # Its job was cancelled, and some services do not know a cancelled job any more.
                self._forget_driver(context)
            self.kept = stage.kept()
            refuse_retry_of_stopped(stage)
            raise

    def may_reconnect(self, context: Context) -> bool:
        """Return whether a retry would find the job of this try, which runs or whose state is unknown."""
        external_id = self._driver_id(context)
        if not external_id or getattr(self, "deferrable", False):
            return False
        operator: Any = self
        try:
            return bool(operator.is_job_active(operator.get_job_status(external_id, context)))
        except Exception as error:
            self.log.warning("The state of the job is unknown: %s", masked(str(error)))
            return True

    def _is_left_to_retry(self, error: BaseException, context: Context) -> bool:
        # A look at the job that failed, such as one with a lost reply, says nothing about its driver.
        is_final = isinstance(error, (AirflowFailException, *A_RETRY_CANNOT_HELP))
        if is_final or not isinstance(error, Exception) or not self.may_reconnect(context):
            return False
        ti: Any = context["ti"]
        return bool(ti.try_number <= ti.max_tries)

    def _relayed(self, deferred: TaskDeferred, stage: RelayedStage) -> TaskDeferred:
        """Return a deferral whose trigger also relays the calls of the driver."""
        from airflow_provider_statecheck.checkpoint.codec import encode
        from airflow_provider_statecheck.configuration import StatecheckSettings
        from airflow_provider_statecheck.triggers.mailbox import RelayingTrigger

        access = stage.relay_access()
        if access is None:
            return deferred
        settings = StatecheckSettings.from_airflow(**{name: getattr(self, name) for name in StatecheckSettings.names()})
        classpath, trigger_kwargs = deferred.trigger.serialize()
        trigger = RelayingTrigger(
            classpath=classpath,
            trigger_kwargs=trigger_kwargs,
            access=encode(access),
            storage_conn_id=settings.storage_conn_id,
        )
        deferral = {
            "classpath": classpath,
            "trigger_kwargs": trigger_kwargs,
            "deadline": _deadline(deferred.timeout),
            "mailbox": {"epoch": access.opened.epoch, "opened_by": access.registration.attempt_key},
        }
        return TaskDeferred(
            trigger=trigger,
            method_name=deferred.method_name,
            kwargs={**(deferred.kwargs or {}), _DEFERRAL: deferral},
            timeout=deferred.timeout,
        )

    def adopt_running(self) -> None:
        """Adopt the attempt of a driver that an earlier try submitted, if this try has none."""
        if self._stage is not None:
            self._stage.adopt_running()

    def _forget_driver_of_cleared_task(self, context: Context, stage: SubmittedStage) -> None:
        # Airflow stores the id of the driver across a clear, and would not submit a successful driver again.
        if self._driver_id(context) and stage.was_cleared():
            self.log.info("The task was cleared, or its job was removed; its application is submitted again.")
            self._forget_driver(context)

    def _driver_id(self, context: Context) -> Any:
        store, key = context.get("task_state_store"), getattr(self, "external_id_key", None)
        return None if store is None or key is None else store.get(key)

    def _forget_driver(self, context: Context) -> None:
        if self._driver_id(context):
            context["task_state_store"].delete(self.external_id_key)

    def _patience_seconds(self) -> float:
        from airflow_provider_statecheck.checkpoint.config_options import parse_duration

        patience = parse_duration("mailbox_patience", self.mailbox_patience).total_seconds()
        if patience <= 0:
            raise InvalidConfigurationError(
                f"Expected mailbox_patience above 0, found {self.mailbox_patience!r}; correct it.",
                key="mailbox_patience",
            )
        return patience


class RemoteDriverMixin(SubmittedDriverMixin):
    """
    Mixin for an Airflow operator of another provider, which submits a Spark job to a service and waits for its end.

    Put it before the provider's operator, and say in :meth:`add_to_job` where the job's specification takes a mailbox:
    the functions of ``airflow_provider_statecheck.payloads`` change the specifications of many services. Arguments
    are those of the provider's operator and of
    :class:`~airflow_provider_statecheck.operators.remote.SubmittedDriverMixin`.

    :param stage: For a stage with state: its location as ``module:attribute``, which the driver imports, instead of a
        script in the job's specification. (templated)
    :param parallelism: Number of subtasks of the stage. The default is that of the stage, or else the number of task
        slots of Spark.
    :param ship_package: Add this package to the Python files of the job. Not needed if the cluster has it installed.
    """

    ships_wheel: ClassVar[bool] = False
    """Whether the service installs packages, instead of taking Python files."""

    _storage: CheckpointStorage

    def __init__(
        self, *, stage: str | None = None, parallelism: int | None = None, ship_package: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.stage = stage
        self.parallelism = parallelism
        self.ship_package = ship_package

    @abstractmethod
    def add_to_job(self, additions: Additions, submission: str) -> None:
        """
        Add the mailbox and the package to the specification of the job; called before each submission.

        :param submission: Name of the submission, the same for each repetition of it, for services that recognise one.
        :raises InvalidConfigurationError: if the job cannot take them.
        """

    def require_waiting(self) -> None:
        """
        Require that the operator waits for the end of its job, as its task relays the calls of the driver.

        :raises InvalidConfigurationError: if it does not.
        """

    @property
    def submits_later(self) -> bool:
        """Whether ``submit_job`` submits the job, which is not called if the operator reconnects to one."""
        return hasattr(super(), "submit_job") and not getattr(self, "deferrable", False)

    @override
    def execute(self, context: Context, *args: Any, **kwargs: Any) -> Any:
        """
        Submit the job or reconnect to it, and wait until it ends.

        :raises AirflowFailException: if an error that a retry cannot fix.
        """
        if self._is_resumed:
            # The provider's operator had deferred before it submitted the job.
            return self._submitted(context, *args, **kwargs)
        with self._attempt(context):
            return self._submitted(context, *args, **kwargs)

    def submit_job(self, context: Context) -> Any:
        """Open a mailbox for the driver, and submit the job."""
        self.hand_over()
        return super().submit_job(context)  # type: ignore[misc]

    def hand_over(self) -> None:
        """Open a mailbox for the driver, and add it to the specification of the job."""
        if self._stage is None:
            raise RuntimeError("Expected a call while the operator executes, found none.")
        mailbox = self._stage.open_mailbox()
        self.add_to_job(self._additions(mailbox), self._stage.submission)

    @override
    def _stage_of(self, access: DriverAccess, prepared: PreparedStage) -> RelayedStage:
        self.require_waiting()
        self._storage = prepared.storage
        return super()._stage_of(access, prepared)

    @override
    @contextmanager
    def _closing(self, stage: SubmittedStage, context: Context) -> Iterator[None]:
        try:
            with super()._closing(stage, context):
                yield
                if self.stage is not None:
                    stage.require_end()
        except Exception as error:
            if self.stage is not None:
                refuse_useless_retry(stage, error)
            raise

    def _submitted(self, context: Context, *args: Any, **kwargs: Any) -> Any:
        if not self.submits_later:
            self.hand_over()
        return super().execute(context, *args, **kwargs)

    def _additions(self, mailbox: str) -> Additions:
        from airflow_provider_statecheck.payloads.additions import Additions
        from airflow_provider_statecheck.spark.driver.shipped_files import (
            published_package,
            published_stage_application,
            published_wheel,
        )

        return Additions(
            mailbox=mailbox,
            package=published_package(self._storage) if self.ship_package else None,
            wheel=published_wheel(self._storage) if self.ship_package and self.ships_wheel else None,
            application=None if self.stage is None else published_stage_application(self._storage),
            arguments=() if self.stage is None else (self.stage,),
        )


def _deadline(timeout: timedelta | float | None) -> float | None:
    if timeout is None:
        return None
    return time.time() + (timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)


def _deferred_again(method_name: str, given: Mapping[str, Any], deferral: Mapping[str, Any]) -> TaskDeferred:
    deadline = deferral["deadline"]
    return TaskDeferred(
        trigger=resolve_name(deferral["classpath"])(**deferral["trigger_kwargs"]),
        method_name=method_name,
        kwargs={name: value for name, value in given.items() if name != "event"},
        timeout=None if deadline is None else timedelta(seconds=max(deadline - time.time(), 1.0)),
    )


def refuse_retry_of_stopped(stage: SubmittedStage) -> None:
    """
    Refuse the retry of a stage that a user has stopped.

    :raises StoppedWithSavepointError: if it was stopped with a savepoint.
    """
    pointer = stage.stopped_with()
    if pointer is not None:
        raise StoppedWithSavepointError(
            f"The stage was stopped with the savepoint {redact(pointer)}. Clear the task to resume from its last "
            f"checkpoint.",
            pointer=redact(pointer),
        )


def refuse_useless_retry(stage: SubmittedStage, error: Exception) -> None:
    """
    Raise the error of the driver of a stage, if a retry cannot fix it.

    The driver stores it in its attempt; Airflow sees only the end of the process.
    """
    name, _, text = stage.failure().partition(": ")
    for kind in A_RETRY_CANNOT_HELP:
        if kind.__name__ == name:
            raise kind(text) from error
