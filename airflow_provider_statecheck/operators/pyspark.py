"""Airflow operators for PySpark functions and stages, which resume from the last checkpoint."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.exceptions import A_RETRY_CANNOT_HELP, InvalidConfigurationError
from airflow_provider_statecheck.operators.callables import CHECKPOINT_PARAMETER, SPARK_PARAMETER, stage_function, takes
from airflow_provider_statecheck.operators.checkpointed import (
    CheckpointedOperator,
    PreparedStage,
)
from airflow_provider_statecheck.overriding import override

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.attempt import StageAttempt
    from airflow_provider_statecheck.spark.stages.stage import Stage


log = logging.getLogger(__name__)


class DriverLostError(AirflowException):
    """The driver JVM or the Spark Connect server was lost while the stage was running."""


class StageCallable(CheckpointedOperator, PythonOperator):
    """
    Mixin that calls the user's function with ``checkpoint`` in an interruptible thread.

    The Airflow operator creates the session and calls :meth:`execute_callable` of this class.
    """

    _prepared: PreparedStage | None = None
    _attempt: StageAttempt | None = None

    @override
    def execute_callable(self) -> Any:
        """Register an attempt, run the stage, and close the attempt."""
        from airflow_provider_statecheck.spark.driver.readiness import make_ready

        spark = self.op_kwargs[SPARK_PARAMETER]
        prepared = self._require_prepared()
        self._run_interruptibly(spark, functools.partial(make_ready, spark, prepared.storage))
        try:
            self._attempt = self._open_attempt(prepared)
            with self._attempt.ending():
                return self._work(spark, self._attempt, prepared)
        except BaseException:
            self.kept = None if self._attempt is None else self._attempt.kept()
            raise
        finally:
            self._is_interruptible = False

    @override
    def fail_after_end(self, error: BaseException) -> None:
        if self._attempt is not None and self.kept is None:
            self._attempt.fail(error)
            self.kept = self._attempt.kept()

    def _work(self, spark: Any, attempt: StageAttempt, prepared: PreparedStage) -> Any:
        """Restore, run the function, and close the attempt."""
        from airflow_provider_statecheck.spark.context import StageContext

        with StageContext(spark, attempt, **prepared.driver.pacing) as checkpoint:
            self._add_parameter(checkpoint)
            return self._run_interruptibly(spark, super().execute_callable)

    def _run_interruptibly(self, spark: Any, work: Callable[[], Any]) -> Any:
        from airflow_provider_statecheck.spark.driver.session import run_interruptibly

        try:
            return run_interruptibly(spark, work)
        except BaseException as error:
            _raise_if_driver_lost(error)
            raise

    @override
    def on_kill(self) -> None:
        """
        Interrupt the task: the error wakes the main thread, which cancels the Spark jobs and closes the attempt.

        Airflow calls this method in its signal handler, where py4j must not be used. The main thread therefore waits
        for Spark, also for its start, in other threads. It calls it again after a timeout, when the stage has already
        ended.
        """
        self._interrupt()

    def _add_parameter(self, checkpoint: Any) -> None:
        if takes(self.python_callable, CHECKPOINT_PARAMETER):
            self.op_kwargs = {**self.op_kwargs, CHECKPOINT_PARAMETER: checkpoint}

    def _require_prepared(self) -> PreparedStage:
        if self._prepared is None:
            raise InvalidConfigurationError("Expected the stage to run inside a task; call execute(context).")
        return self._prepared

    def _open_attempt(self, prepared: PreparedStage) -> StageAttempt:
        from airflow_provider_statecheck.hooks.transport import airflow_gateway
        from airflow_provider_statecheck.spark.driver.attempts import attempt_of

        gateway = airflow_gateway()
        return attempt_of(gateway, prepared.storage, prepared.registration, prepared.driver, prepared.on_overlap)


def _raise_if_driver_lost(error: BaseException) -> None:
    from airflow_provider_statecheck.spark.driver.session import has_jvm_died, is_server_lost

    if not isinstance(error, Exception):
        return
    if is_server_lost(error):
        raise DriverLostError(
            f"The Spark Connect server was lost while the stage was running ({type(error).__name__}); check whether it "
            f"was stopped or restarted. A retry opens a new session."
        ) from error
    if has_jvm_died(wait_seconds=1.0):
        raise DriverLostError(
            f"The driver's JVM died while the stage was running ({type(error).__name__}); check for an out-of-memory "
            "kill or a crash file. A retry starts a new JVM."
        ) from error


class CheckpointedPySparkOperator(PySparkOperator, StageCallable):  # type: ignore[misc]
    """
    Run a PySpark callable that saves its progress.

    The callable takes ``spark`` and ``checkpoint``, a
    :class:`~airflow_provider_statecheck.spark.context.StageContext`. When the task fails, its retry skips the work that
    a completed checkpoint contains. Spark runs locally, on a cluster whose driver is the task, or on a Spark Connect
    server; other arguments are those of
    :class:`~airflow_provider_statecheck.operators.checkpointed.CheckpointedOperator`.

    :param python_callable: Function to call.
    :param conn_id: Connection of type ``spark`` or ``spark_connect``. Without it, the master is taken from
        ``config_kwargs``, ``PYSPARK_SUBMIT_ARGS`` or ``spark-defaults.conf``; if none of them names a master, Spark
        runs locally. (templated)
    :param config_kwargs: Spark settings. (templated)
    """

    template_fields: Sequence[str] = (
        *PySparkOperator.template_fields,
        *CheckpointedOperator.checkpoint_template_fields,
    )

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(python_callable=stage_function(python_callable, kwargs), **kwargs)

    @override
    def execute(self, context: Mapping[str, Any]) -> Any:
        """
        Check the environment and run the stage.

        :raises AirflowFailException: if an error that a retry cannot fix.
        """
        from airflow_provider_statecheck.hooks.spark import SessionTarget

        self._attempt = self.kept = None
        try:
            with self._interruptible():
                self._prepared = self.prepare(context)
                self.session_target = SessionTarget.of(self.conn_id, self.config_kwargs)
                self.session_target.check_environment()
                return super().execute(context)
        except A_RETRY_CANNOT_HELP as error:
            raise AirflowFailException(masked(str(error))) from error

    @override
    def execute_callable(self) -> Any:
        """
        Start Spark and run the stage, with the same settings of Spark as Airflow's Spark operator.

        Airflow's Spark operator would start it in the main thread, which a signal could not interrupt.
        """
        with self._session() as spark:
            self.op_kwargs = {**self.op_kwargs, SPARK_PARAMETER: spark}
            return StageCallable.execute_callable(self)

    @contextmanager
    def _session(self) -> Iterator[Any]:
        from airflow_provider_statecheck.spark.driver.session import run_interruptibly

        spark = run_interruptibly(None, self.session_target.start, f"{self.dag_id}-{self.task_id}")
        try:
            yield spark
        finally:
            try:
                spark.stop()
            except Exception as error:
                # The attempt is closed. With a lost driver, this error would hide the one of the stage.
                log.warning("The Spark session could not be stopped: %s", type(error).__name__)


class CheckpointedStageOperator(CheckpointedPySparkOperator):
    """
    Run a stateful stage.

    The stage processes its source increment by increment. When the task fails, its retry restores the state of all
    functions, the position of the source and the staged output of the sink, and continues with the next increment. With
    ``job=`` the state continues across Dag runs.

    Other arguments are those of :class:`~airflow_provider_statecheck.operators.pyspark.CheckpointedPySparkOperator`,
    such as ``conn_id``, ``config_kwargs`` and ``checkpoint_dir``, without ``overhead_budget``; ``renamed_uids`` also
    names functions of the stage whose uid has changed.

    :param stage: The stage, or its location as ``module:attribute``, which is imported when the task runs. A callable
        there is called without arguments and returns the stage.
    :param uid: Name of the stage within its job. The default is the task id, regardless of the stage's name.
        (templated)
    :param parallelism: Number of subtasks. The default is that of the stage, or else the number of task slots of Spark.
    """

    unused_arguments = ("overhead_budget",)

    def __init__(self, *, stage: str | Stage, parallelism: int | None = None, **kwargs: Any) -> None:
        super().__init__(python_callable=_placeholder, **kwargs)
        self.stage = stage
        self.parallelism = parallelism

    @override
    def execute(self, context: Mapping[str, Any]) -> Any:
        """
        Check the environment and run the stage.

        :return: Number of increments and rows, and the id of the last checkpoint.
        :raises AirflowFailException: if an error that a retry cannot fix.
        """
        from airflow_provider_statecheck.spark.stages.planning import load_stage
        from airflow_provider_statecheck.state.backends import directories_of

        try:
            self._stage = load_stage(self.stage, parallelism=self.parallelism)
            for name, uri in directories_of(self._stage.state_backend, {}).items():
                setattr(self, name, uri)
        except InvalidConfigurationError as error:
            raise AirflowFailException(masked(str(error))) from error
        return super().execute(context)

    @override
    def _work(self, spark: Any, attempt: StageAttempt, prepared: PreparedStage) -> Any:
        from airflow_provider_statecheck.spark.stages.stage_run import StageRun

        run = StageRun(spark, attempt, self._stage, prepared.driver)
        result = run.run(lambda work: self._run_interruptibly(spark, work))
        return {"increments": result.increments, "rows": result.rows, "checkpoint_id": result.checkpoint_id}


def _placeholder(spark: Any = None, checkpoint: Any = None) -> None:
    raise InvalidConfigurationError("Expected the Airflow operator to run the stage, found a call of its placeholder.")
