"""Operators for PySpark functions and stateful stages that resume from the last checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_pyspark import SPARK_CONTEXT_KEYS, PySparkOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.checkpointed import A_RETRY_CANNOT_HELP, CheckpointedOperator, PreparedStage
from airflow_provider_statecheck.overriding import override

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.attempt import StageAttempt
    from airflow_provider_statecheck.spark.stages.stage import Stage


CHECKPOINT_PARAMETER = "checkpoint"


class StageTerminatedError(AirflowException):
    """The task was terminated while its stage was running."""


class DriverLostError(AirflowException):
    """The driver JVM or the Spark Connect server was lost while the stage was running."""


class StageCallable(CheckpointedOperator, PythonOperator):
    """
    Mixin that calls the user's function with ``checkpoint`` in an interruptible thread.

    Use it together with ``PySparkOperator``, which creates the session and calls :meth:`execute_callable` of this class.
    """

    _prepared: PreparedStage | None = None
    _is_stage_running = False

    @override
    def execute_callable(self) -> Any:
        """Register an attempt and run the stage."""
        from airflow_provider_statecheck.spark.driver.readiness import make_ready

        spark = self.op_kwargs["spark"]
        prepared = self._require_prepared()
        make_ready(spark, prepared.storage)
        attempt = self._register(prepared)
        try:
            return self._work(spark, attempt, prepared)
        except BaseException:
            self.kept = attempt.kept()
            raise

    def _work(self, spark: Any, attempt: StageAttempt, prepared: PreparedStage) -> Any:
        """Restore, run the function, and close the attempt."""
        from airflow_provider_statecheck.spark.context import StageContext

        driver = prepared.driver
        with StageContext(
            spark,
            attempt,
            overhead_budget=driver.overhead_budget,
            checkpoint_interval=driver.checkpoint_interval,
            min_pause=driver.min_pause_ms,
        ) as checkpoint:
            self._add_parameter(checkpoint)
            return self._run_interruptibly(spark, super().execute_callable)

    def _run_interruptibly(self, spark: Any, work: Callable[[], Any]) -> Any:
        from airflow_provider_statecheck.spark.driver.session import run_interruptibly

        self._is_stage_running = True
        try:
            return run_interruptibly(spark, work)
        except BaseException as error:
            _raise_if_driver_lost(error)
            raise
        finally:
            self._is_stage_running = False

    @override
    def on_kill(self) -> None:
        """
        Interrupt the stage: the error wakes the main thread, which cancels the Spark jobs and closes the attempt.

        Airflow calls this method in its signal handler, where py4j must not be used. It calls it again after a timeout,
        when the stage has already ended.
        """
        if self._is_stage_running:
            self._is_stage_running = False
            raise StageTerminatedError(
                "The task was terminated; its attempt is closed, and a retry resumes from the last checkpoint."
            )

    def _add_parameter(self, checkpoint: Any) -> None:
        if CHECKPOINT_PARAMETER in inspect.signature(self.python_callable).parameters:
            self.op_kwargs = {**self.op_kwargs, CHECKPOINT_PARAMETER: checkpoint}

    def _require_prepared(self) -> PreparedStage:
        if self._prepared is None:
            raise InvalidConfigurationError("Expected the stage to run inside a task; call execute(context).")
        return self._prepared

    def _register(self, prepared: PreparedStage) -> StageAttempt:
        # Registration may wait for another run, and must be interruptible.
        self._is_stage_running = True
        try:
            return self._open_attempt(prepared)
        finally:
            self._is_stage_running = False

    def _open_attempt(self, prepared: PreparedStage) -> StageAttempt:
        from airflow_provider_statecheck.hooks.transport import airflow_gateway
        from airflow_provider_statecheck.spark.attempt import StageAttempt

        return StageAttempt(
            airflow_gateway(),
            prepared.storage,
            prepared.registration,
            tolerable_failed_checkpoints=prepared.driver.tolerable_failed_checkpoints,
            savepoint_dir=prepared.driver.savepoint_dir,
            data_inline_threshold=prepared.driver.data_inline_threshold,
            on_overlap=prepared.on_overlap,
        )


def _raise_if_driver_lost(error: BaseException) -> None:
    from airflow_provider_statecheck.spark.driver.session import has_jvm_died, is_server_lost

    if isinstance(error, StageTerminatedError) or not isinstance(error, Exception):
        return
    if is_server_lost(error):
        raise DriverLostError(
            f"The Spark Connect server was lost while the stage was running ({type(error).__name__}); check whether it "
            f"was stopped or restarted. A retry opens a new session."
        ) from error
    if has_jvm_died(wait_seconds=1.0):
        raise DriverLostError(
            f"The driver's JVM died while the stage was running ({type(error).__name__}); check for an out-of-memory kill "
            f"or a crash file. A retry starts a new JVM."
        ) from error


def with_optional_parameters(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """
    Make parameters of a function optional in its signature, with which Airflow binds arguments before the task runs.

    The optional parameters and all parameters after them become keyword-only.

    :param names: Parameters that are supplied when the function runs.
    """
    signature = inspect.signature(function)
    parameters: list[inspect.Parameter] = []
    by_name_only = False
    for parameter in signature.parameters.values():
        is_optional = parameter.name in names
        by_name_only = by_name_only or is_optional
        default = None if is_optional else parameter.default
        parameters.append(parameter.replace(default=default, kind=_kind(parameter, by_name_only=by_name_only)))
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def _kind(parameter: inspect.Parameter, *, by_name_only: bool) -> Any:
    is_plain = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter.KEYWORD_ONLY if by_name_only and is_plain else parameter.kind


class CheckpointedPySparkOperator(PySparkOperator, StageCallable):  # type: ignore[misc]
    """
    Run a PySpark callable that saves its progress.

    The callable takes ``spark`` and ``checkpoint``, a
    :class:`~airflow_provider_statecheck.spark.context.StageContext`. When the task fails, its retry skips the work that a
    completed checkpoint contains. Spark runs locally, on a cluster whose driver is the task, or on a Spark Connect server;
    other arguments are those of :class:`~airflow_provider_statecheck.operators.checkpointed.CheckpointedOperator`.

    :param python_callable: Function to call.
    :param conn_id: Connection of type ``spark`` or ``spark_connect``. Without it, the master is taken from ``config_kwargs``,
        ``PYSPARK_SUBMIT_ARGS`` or ``spark-defaults.conf``; if none of them names a master, Spark runs locally. (templated)
    :param config_kwargs: Spark settings. (templated)
    """

    template_fields: Sequence[str] = (
        *PySparkOperator.template_fields,
        *CheckpointedOperator.checkpoint_template_fields,
    )

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(
            python_callable=with_optional_parameters(python_callable, CHECKPOINT_PARAMETER, *SPARK_CONTEXT_KEYS),
            **kwargs,
        )

    @override
    def execute(self, context: Mapping[str, Any]) -> Any:
        """
        Check the environment and run the stage.

        :raises AirflowFailException: An error that a retry cannot fix.
        """
        from airflow_provider_statecheck.hooks.spark import SessionTarget

        try:
            self._prepared = self.prepare(context)
            self._target = SessionTarget.of(self.conn_id, self.config_kwargs)
            self._target.check_environment()
            self.config_kwargs = self._target.complete(self.config_kwargs)
            return super().execute(context)
        except A_RETRY_CANNOT_HELP as error:
            raise AirflowFailException(str(error)) from error

    @override
    def execute_callable(self) -> Any:
        """Start the driver JVM in a new process session if it is local, then let Spark's operator create the session."""
        self._target.start()
        try:
            return super().execute_callable()  # type: ignore[no-untyped-call]
        except Exception as error:
            # Spark's operator stops the session; with a lost driver this also fails and hides the first error.
            lost = _find_driver_lost(error)
            if lost is not None:
                raise lost from lost.__cause__
            raise


def _find_driver_lost(error: BaseException) -> DriverLostError | None:
    link: BaseException | None = error
    while link is not None and not isinstance(link, DriverLostError):
        link = link.__context__
    return link


class CheckpointedStageOperator(CheckpointedPySparkOperator):
    """
    Run a stateful stage.

    The stage processes its source increment by increment. When the task fails, its retry restores the state of all
    functions, the position of the source and the staged output of the sink, and continues with the next increment. With
    ``job=`` the state continues across Dag runs.

    Other arguments are those of :class:`~airflow_provider_statecheck.operators.pyspark.CheckpointedPySparkOperator`, such as
    ``conn_id``, ``config_kwargs`` and ``checkpoint_dir``, without ``overhead_budget``; ``renamed_uids`` also names functions
    of the stage whose uid has changed.

    :param stage: The stage, or its location as ``module:attribute``, which is imported when the task runs. A callable there is
        called without arguments and returns the stage.
    :param uid: Name of the stage within its job. The default is the task id, regardless of the stage's name. (templated)
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
        :raises AirflowFailException: An error that a retry cannot fix.
        """
        from airflow_provider_statecheck.spark.stages.planning import load_stage

        try:
            self._stage = load_stage(self.stage, parallelism=self.parallelism)
        except InvalidConfigurationError as error:
            raise AirflowFailException(str(error)) from error
        return super().execute(context)

    @override
    def _work(self, spark: Any, attempt: StageAttempt, prepared: PreparedStage) -> Any:
        from airflow_provider_statecheck.spark.stages.stage_run import StageRun, stage_settings_of

        run = StageRun(spark, attempt, self._stage, stage_settings_of(prepared.driver))
        result = run.run(lambda work: self._run_interruptibly(spark, work))
        return {"increments": result.increments, "rows": result.rows, "checkpoint_id": result.checkpoint_id}


def _placeholder() -> None:
    raise InvalidConfigurationError("Expected the operator to run the stage, found a call of its placeholder.")
