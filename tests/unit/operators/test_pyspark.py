"""What a PySpark task ends with, without Spark."""

from __future__ import annotations

import pytest
from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator

from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator, DriverLostError


class NoTarget:
    def start(self) -> None:
        """Start nothing."""


def stop_a_session_whose_jvm_is_dead(_: object) -> None:
    """Fail as py4j does: two errors, each in the handling of the one before."""
    try:
        raise DriverLostError("The driver's JVM died.") from EOFError()
    except DriverLostError:
        try:
            raise ConnectionResetError
        except ConnectionResetError:
            raise ConnectionRefusedError  # noqa: B904


def test_a_lost_driver_is_what_the_task_ends_with_although_its_session_cannot_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PySparkOperator, "execute_callable", stop_a_session_whose_jvm_is_dead)
    operator = CheckpointedPySparkOperator(task_id="work", python_callable=lambda: None)
    operator._target = NoTarget()  # type: ignore[assignment]
    with pytest.raises(DriverLostError, match="JVM died") as raised:
        operator.execute_callable()
    assert isinstance(raised.value.__cause__, EOFError)
