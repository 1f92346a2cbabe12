from __future__ import annotations

import inspect
from typing import Any

import pytest

from airflow_provider_statecheck.operators.pyspark import with_optional_parameters


def test_what_is_given_at_run_time_may_be_left_out_when_arguments_are_bound() -> None:
    def stage(day: str, spark: Any, checkpoint: Any, params: Any) -> None: ...

    signature = inspect.signature(with_optional_parameters(stage, "spark", "checkpoint"))
    assert signature.bind("monday", params={}).arguments == {"day": "monday", "params": {}}


def test_what_stands_behind_it_cannot_be_given_by_position() -> None:
    def stage(spark: Any, checkpoint: Any, day: str) -> None: ...

    signature = inspect.signature(with_optional_parameters(stage, "spark", "checkpoint"))
    with pytest.raises(TypeError, match="too many positional"):
        signature.bind("monday")
