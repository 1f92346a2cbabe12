"""Tasks that end in each way, without Spark: a session stands in for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped

from airflow_provider_statecheck.hooks.spark import SessionTarget
from tests.unit.operators.stand_in_spark import StandInSession


def skips() -> None:
    raise AirflowSkipException("no data")


def skips_others() -> None:
    raise DownstreamTasksSkipped(tasks=[])


def fails() -> None:
    raise AirflowFailException("for good")


def raises() -> None:
    raise ValueError("no")


def exits_with_0() -> None:
    sys.exit(0)


def exits_with_1() -> None:
    sys.exit(1)


def is_interrupted() -> None:
    raise KeyboardInterrupt


def returns() -> int:
    return 7


def returns_what_cannot_be_stored() -> Any:
    return object()


ENDINGS: tuple[Callable[[], Any], ...] = (
    returns,
    skips,
    skips_others,
    fails,
    raises,
    exits_with_0,
    exits_with_1,
    is_interrupted,
    returns_what_cannot_be_stored,
)


def ending(end: Callable[[], Any]) -> None:
    def stage(spark: Any, checkpoint: Any) -> Any:
        checkpoint.state["begun"] = True
        checkpoint.checkpoint()
        return end()

    decorator: Any = task.checkpointed_spark
    decorated = decorator(stage, task_id=end.__name__)
    decorated()


if "STAGE_ENDINGS" in os.environ:
    patch.object(SessionTarget, "start", lambda *_: StandInSession()).start()
with DAG("endings", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    for each in ENDINGS:
        ending(each)
