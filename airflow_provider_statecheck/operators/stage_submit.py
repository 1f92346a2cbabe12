"""A stateful stage in a driver that ``spark-submit`` starts; its retry goes on from the last completed checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.operators.registration import A_RETRY_CANNOT_HELP
from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_statecheck.hooks.submitted_stage import SubmittedStage

STAGE_APPLICATION = "statecheck_stage.py"


class CheckpointedStageSubmitOperator(CheckpointedSparkSubmitOperator):
    """
    Submit a stateful stage.

    The application is this package's own: it imports the stage and runs it. What the module of the stage needs is given
    by ``py_files``, or is installed where the driver and the executors run.

    Other arguments are those of
    :class:`~airflow_provider_statecheck.operators.spark_submit.CheckpointedSparkSubmitOperator`, without ``application``,
    ``application_args`` and ``overhead_budget``; ``renamed_uids`` also names functions of the stage whose uid has changed.

    :param stage: Location of the stage as ``module:attribute``, which the driver imports. A callable there is called without
        arguments and returns the stage. (templated)
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
        from airflow_provider_statecheck.hooks.stage_submit import CheckpointedStageSubmitHook

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
        except Exception as error:
            _refuse_useless_retry(stage, error)
            raise


def _refuse_useless_retry(stage: SubmittedStage, error: Exception) -> None:
    # The driver says why in its attempt; Airflow sees no more than how its process ended.
    name, _, text = stage.failure().partition(": ")
    for kind in A_RETRY_CANNOT_HELP:
        if kind.__name__ == name:
            raise kind(text) from error
