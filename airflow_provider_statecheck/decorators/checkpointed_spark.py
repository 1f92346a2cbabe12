"""The decorator ``@task.checkpointed_spark``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_provider_statecheck.operators.callables import require_function, stage_function
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import TaskDecorator


class CheckpointedSparkDecoratedOperator(DecoratedOperator, CheckpointedPySparkOperator):  # type: ignore[misc]
    """The Airflow operator behind ``@task.checkpointed_spark``."""

    custom_operator_name = "@task.checkpointed_spark"
    template_fields: Sequence[str] = CheckpointedPySparkOperator.template_fields

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        function = stage_function(python_callable, {**kwargs, "op_args": op_args, "op_kwargs": op_kwargs})
        super().__init__(
            kwargs_to_upstream={"python_callable": function, "op_args": op_args, "op_kwargs": op_kwargs},
            python_callable=function,
            op_args=op_args,
            op_kwargs=op_kwargs,
            **kwargs,
        )


def checkpointed_spark_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """
    Turn a PySpark function into a checkpointed task.

    :param python_callable: Function with the parameters ``spark`` and ``checkpoint``.
    :param multiple_outputs: Push a returned mapping to XCom with one entry for each key.
    :param kwargs: Arguments of
        :class:`~airflow_provider_statecheck.operators.pyspark.CheckpointedPySparkOperator`.
    :raises InvalidConfigurationError: if an argument of the task is given by position, or the function cannot be that
        of a stage.
    """
    if python_callable is not None:
        require_function(python_callable)
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=CheckpointedSparkDecoratedOperator,
        **kwargs,
    )
