"""A PySpark task whose retry goes on from the last completed checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.providers.apache.spark.operators.spark_pyspark import SPARK_CONTEXT_KEYS, PySparkOperator
from airflow.sdk.exceptions import AirflowFailException
from typing_extensions import override

from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
from airflow_provider_statecheck.operators.registration import A_RETRY_CANNOT_HELP
from airflow_provider_statecheck.operators.stage_callable import (
    CHECKPOINT_PARAMETER,
    DriverLostError,
    StageCallable,
    with_optional_parameters,
)


class CheckpointedPySparkOperator(PySparkOperator, StageCallable):  # type: ignore[misc]
    """
    Run a PySpark callable that saves its progress.

    The callable takes ``spark`` and ``checkpoint``, a
    :class:`~airflow_provider_statecheck.spark.context.StageContext`. When the task fails, its retry skips what a
    completed checkpoint holds. Spark runs locally, on a cluster whose driver is the task, or on a Spark Connect server;
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
        Check what must be there, then run the stage.

        :raises AirflowFailException: for trouble that no retry can mend.
        """
        from airflow_provider_statecheck.hooks.spark_session import SessionTarget

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
        """Start the driver JVM, where there is one, in a session of its own; then let Spark's operator make the session."""
        self._target.start()
        try:
            return super().execute_callable()  # type: ignore[no-untyped-call]
        except Exception as error:
            # Spark's operator stops the session at the end. Where the driver is lost that fails too, and hides why.
            lost = _lost_driver(error)
            if lost is not None:
                raise lost from lost.__cause__
            raise


def _lost_driver(error: BaseException) -> DriverLostError | None:
    link: BaseException | None = error
    while link is not None and not isinstance(link, DriverLostError):
        link = link.__context__
    return link
