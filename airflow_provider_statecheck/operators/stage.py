"""A stateful stage whose retry goes on from its last completed checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException
from typing_extensions import override

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.checkpointed import PreparedStage
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator
from airflow_provider_statecheck.spark.stages.stage import Stage

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.attempt import StageAttempt


class CheckpointedStageOperator(CheckpointedPySparkOperator):
    """
    Run a stateful stage.

    The stage works through its source increment by increment. When the task fails, its retry restores the state of all
    functions, the progress of the source and what the sink has staged, and goes on with the next increment. With ``job=``
    the state lives on from one Dag run to the next.

    Other arguments are those of :class:`~airflow_provider_statecheck.operators.pyspark.CheckpointedPySparkOperator`, such as
    ``conn_id``, ``config_kwargs`` and ``checkpoint_dir``, without ``overhead_budget``; ``renamed_uids`` also names functions of the stage whose uid has
    changed.

    :param stage: The stage, or its location as ``module:attribute``, which is imported when the task runs. A callable there is
        called without arguments and returns the stage.
    :param uid: Name of the stage within its job. The default is the task id, regardless of the stage's name. (templated)
    :param parallelism: Number of subtasks. The default is that of the stage, or else the number of task slots of Spark.
    """

    unused_arguments = ("overhead_budget",)

    def __init__(self, *, stage: str | Stage, parallelism: int | None = None, **kwargs: Any) -> None:
        super().__init__(python_callable=_run_by_the_operator, **kwargs)
        self.stage = stage
        self.parallelism = parallelism

    @override
    def execute(self, context: Mapping[str, Any]) -> Any:
        """
        Check what must be there, then run the stage.

        :return: How many increments and elements there were, and the last checkpoint.
        :raises AirflowFailException: for trouble that no retry can mend.
        """
        from airflow_provider_statecheck.spark.stages.submitted import load_stage

        try:
            self._stage = load_stage(self.stage, parallelism=self.parallelism)
        except InvalidConfigurationError as error:
            raise AirflowFailException(str(error)) from error
        return super().execute(context)

    @override
    def _work(self, spark: Any, attempt: StageAttempt, prepared: PreparedStage) -> Any:
        from airflow_provider_statecheck.spark.stages.stage_run import StageRun
        from airflow_provider_statecheck.spark.stages.submitted import stage_settings_of

        run = StageRun(spark, attempt, self._stage, stage_settings_of(prepared.driver))
        result = run.run(lambda work: self._run_interruptibly(spark, work))
        return {"increments": result.increments, "rows": result.rows, "checkpoint_id": result.checkpoint_id}


def _run_by_the_operator() -> None:
    raise InvalidConfigurationError("Expected the stage to be run by its operator, found a call of its place holder.")
