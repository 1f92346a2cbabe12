"""A PySpark task whose retry goes on from the last completed checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.providers.apache.spark.operators.spark_pyspark import SPARK_CONTEXT_KEYS, PySparkOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException
from typing_extensions import override

from airflow_provider_statecheck.operators.registration import A_RETRY_CANNOT_HELP, prepare_stage
from airflow_provider_statecheck.operators.siblings import refuse_shared_uid
from airflow_provider_statecheck.operators.stage_callable import (
    CHECKPOINT_PARAMETER,
    StageCallable,
    with_optional_parameters,
)


class CheckpointedPySparkOperator(PySparkOperator, StageCallable):  # type: ignore[misc]
    """
    Run a PySpark callable that saves its progress.

    The callable takes ``spark`` and ``checkpoint``, a
    :class:`~airflow_provider_statecheck.spark.context.StageContext`. When the task fails, its retry skips what a
    completed checkpoint holds. Arguments that are not given come from the section ``[statecheck]`` of Airflow's
    configuration.

    :param python_callable: The function.
    :param conn_id: Spark connection; without it Spark runs locally.
    :param config_kwargs: Spark settings. (templated)
    :param job: Name of the unit of recovery; by default state lives with the Dag run. (templated)
    :param uid: Name of this stage within the job; by default the task id. (templated)
    :param map_key: For a mapped task: what tells its instances apart whatever their order is. (templated)
    :param checkpoint_dir: Where the bytes go, any fsspec URI. (templated)
    :param num_retained: How many completed checkpoints to keep.
    :param checkpoint_timeout_seconds: How long a checkpoint may take from its id to its acknowledgement.
    :param tolerable_failed_checkpoints: How many may fail in a row before the task fails, ``-1`` for any number.
    :param on_clear: What a cleared task does: ``resume_unchanged``, ``resume`` or ``restart``.
    """

    template_fields: Sequence[str] = (
        *PySparkOperator.template_fields,
        "job",
        "uid",
        "map_key",
        "checkpoint_dir",
    )

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        job: str | None = None,
        uid: str | None = None,
        map_key: str | None = None,
        checkpoint_dir: str | None = None,
        num_retained: int | None = None,
        checkpoint_timeout_seconds: float | None = None,
        tolerable_failed_checkpoints: int | None = None,
        on_clear: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=with_optional_parameters(python_callable, CHECKPOINT_PARAMETER, *SPARK_CONTEXT_KEYS),
            **kwargs,
        )
        self.job = job
        self.uid = uid
        self.map_key = map_key
        self.checkpoint_dir = checkpoint_dir
        self.num_retained = num_retained
        self.checkpoint_timeout_seconds = checkpoint_timeout_seconds
        self.tolerable_failed_checkpoints = tolerable_failed_checkpoints
        self.on_clear = on_clear

    @override
    def execute(self, context: Mapping[str, Any]) -> Any:
        """
        Check what must be there, then run the stage.

        :raises AirflowFailException: for trouble that no retry can mend.
        """
        try:
            self._refuse_trouble(context)
            return super().execute(context)
        except A_RETRY_CANNOT_HELP as error:
            raise AirflowFailException(str(error)) from error

    @override
    def execute_callable(self) -> Any:
        """Start the driver JVM in a session of its own, then let Spark's operator make the session."""
        from airflow_provider_statecheck.spark.session import launch_jvm

        launch_jvm(self._spark_conf())
        return super().execute_callable()  # type: ignore[no-untyped-call]

    def _refuse_trouble(self, context: Mapping[str, Any]) -> None:
        from airflow_provider_statecheck.spark.versions import check_environment

        self._prepared = prepare_stage(self, context)
        dag = self.get_dag()
        if dag is not None:
            refuse_shared_uid(self.task_id, list(dag.tasks))
        check_environment()

    def _spark_conf(self) -> dict[str, str]:
        extra = BaseHook.get_connection(self.conn_id).extra_dejson if self.conn_id else {}
        return {str(key): str(value) for key, value in {**extra, **self.config_kwargs}.items()}
