"""Arguments of operators and sensors, from the ``:param`` fields of their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator, CheckpointedStageOperator
from airflow_provider_statecheck.operators.remote import RemoteDriverMixin, SubmittedDriverMixin
from airflow_provider_statecheck.operators.spark_submit import (
    CheckpointedSparkSubmitOperator,
    CheckpointedStageSubmitOperator,
)
from airflow_provider_statecheck.sensors.checkpoint import CheckpointSensor
from scripts.docs.tables import code, table

CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        CheckpointedOperator,
        CheckpointedPySparkOperator,
        SubmittedDriverMixin,
        RemoteDriverMixin,
        CheckpointedSparkSubmitOperator,
        CheckpointedStageOperator,
        CheckpointedStageSubmitOperator,
        CheckpointSensor,
    )
}
_PARAMETER = re.compile(r"^:param (\w+):(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def arguments_table(class_name: str) -> str:
    """Return the table of the arguments that a class adds to those of its base."""
    return table(("Argument", "Default", "Meaning"), _rows(CLASSES[class_name]))


def _rows(kind: type) -> Iterator[tuple[str, str, str]]:
    for name, text in _PARAMETER.findall(inspect.getdoc(kind) or ""):
        yield code(name), _default(kind, name), text.replace("``", "`")


def _default(kind: type, name: str) -> str:
    signatures = (inspect.signature(vars(each)["__init__"]) for each in kind.__mro__ if "__init__" in vars(each))
    default = next(found.parameters[name].default for found in signatures if name in found.parameters)
    if default is inspect.Parameter.empty:
        return "required"
    return "none" if default is None else code(repr(default))
