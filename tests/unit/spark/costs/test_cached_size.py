from __future__ import annotations

import pytest

from airflow_provider_statecheck.spark.costs.auto_snapshot import explained_bytes

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
