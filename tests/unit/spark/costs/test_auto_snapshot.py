"""Which steps with ``when="auto"`` are written, and the size of a cached one."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.spark.step_kinds import decide, explained_bytes


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


PLAN = """== Optimized Logical Plan ==
InMemoryRelation [id#0L], StorageLevel(disk, memory, deserialized, 1 replicas), Statistics(sizeInBytes={}, rowCount=5)
   +- *(1) Range (0, 5, step=1, splits=2)

== Physical Plan ==
"""


@pytest.mark.parametrize(
    ("shown", "expected"),
    [("40.0 B", 40), ("7.5 KiB", 7680), ("1.0 MiB", 1024**2), ("2.0 GiB", 2 * 1024**3), ("1.5E+3 B", 1500)],
)
def test_the_size_of_the_cached_relation_is_read(shown, expected):
    assert explained_bytes(PLAN.format(shown)) == expected


def test_what_is_not_cached_has_no_size_that_can_be_relied_on():
    assert explained_bytes("== Optimized Logical Plan ==\nRange (0, 5), Statistics(sizeInBytes=40.0 B)\n") is None
    assert explained_bytes("") is None
