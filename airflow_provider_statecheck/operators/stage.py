"""Operator for stateful stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.checkpointed import PreparedStage
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.stages.stage import Stage

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.attempt import StageAttempt


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
