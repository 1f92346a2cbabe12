"""A job that another thread cancels."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from airflow_provider_statecheck.spark.driver.session import TaggedJobs

LIMIT_SECONDS = 60.0


@pytest.mark.spark
def test_cancelled_job_ends_and_later_ones_run(spark: Any) -> None:
    jobs, failures = TaggedJobs(spark), list[Exception]()
    endless = spark.range(10**15).selectExpr("sum(hash(id)) as sum")

    def run() -> None:
        try:
            jobs.collect(endless)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + LIMIT_SECONDS
    while thread.is_alive():
        assert time.monotonic() < deadline
        jobs.cancel()
        thread.join(0.05)
    assert "cancel" in str(failures[0]).lower()
    assert jobs.collect(spark.range(3)) == spark.range(3).collect()
    assert not spark.sparkContext.getJobTags()
