from __future__ import annotations

import pytest

from airflow_provider_statecheck.spark.costs.auto_snapshot import decide


@pytest.mark.parametrize(
    ("compute", "write", "unwritten", "is_written"),
    [
        (10.0, 5.0, 0.0, True),
        (9.9, 5.0, 0.0, False),
        (5.0, 3.0, 0.0, False),
        (5.0, 3.0, 1.0, True),
        (0.1, None, 0.0, True),
    ],
)
def test_a_step_is_written_where_a_retry_would_repeat_twice_the_time_of_writing(
    compute, write, unwritten, is_written
) -> None:
    assert decide(compute, write, unwritten_seconds=unwritten).is_written is is_written


def test_the_reason_has_the_numbers() -> None:
    reason = decide(5.0, 3.0, unwritten_seconds=1.0).reason
    assert reason == "computing took 5.00 s and 1.00 s of unwritten steps before it >= 6.00 s = 2 x 3.00 s for writing"
