"""Which states a function has, found on the driver before any work: it is initialized once, with state that nobody keeps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.stages.executor.function_chain import FunctionChain
from airflow_provider_statecheck.spark.stages.executor.operator_task import OperatorTask, TaskPlace
from airflow_provider_statecheck.spark.stages.planned import PlannedOperator
from airflow_provider_statecheck.state.schemas import OperatorSchemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


def probe_schemas(
    operators: Sequence[PlannedOperator], *, storage: CheckpointStorage, logical_date: datetime | None
) -> dict[str, OperatorSchemas]:
    """
    Return the states of functions by the uid of their operators.

    Functions are copied as they are for Spark's tasks, then ``initialize_state``, ``open`` and ``close`` are called.

    :raises InvalidConfigurationError: for a function that cannot be sent to a task.
    """
    from airflow_provider_statecheck.state.backends.memory_state_backend import MemoryStateBackend

    place = TaskPlace(
        job_id="0" * 32,
        subtask=0,
        parallelism=1,
        max_parallelism=1,
        epoch=0,
        now_ms=0,
        logical_date=logical_date,
        state_backend=MemoryStateBackend(),
    )
    found: dict[str, OperatorSchemas] = {}
    for operator in operators:
        chain = FunctionChain([_task(operator)], place, storage)
        try:
            chain.open()
            found.update(chain.schemas())
        finally:
            chain.close()
    return found


def _task(operator: PlannedOperator) -> OperatorTask:
    return OperatorTask(
        uid=operator.uid,
        operator_id=operator.operator_id,
        node=_as_sent(operator),
        input_schema=operator.input_schema,
        output_schema=operator.output_schema,
        key_serializer=operator.key_serializer,
    )


def _as_sent(operator: PlannedOperator) -> Any:
    from pyspark import cloudpickle

    try:
        return cloudpickle.loads(cloudpickle.dumps(operator.node))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidConfigurationError(
            f"Expected the function {operator.uid!r} to be one that can be sent to Spark's tasks, found one that cannot be "
            f"pickled: {error}. Open connections and files in open()."
        ) from error
