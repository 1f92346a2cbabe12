"""Rows of jobs whose version was checked: what is remembered, and what is read again after it was evicted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from airflow_provider_statecheck.api import state_reads
from airflow_provider_statecheck.api.state_reads import CheckedRows
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.records import JobRecord, RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND, THIRD = map(job_id_of, ("first", "second", "third"))
OLD = RowsVersion(1, NOW)


class Rows:
    """Jobs of version 2, which notes the known version of each read."""

    def __init__(self) -> None:
        self.reads: list[tuple[JobId, int | None]] = []

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        self.reads.append((job_id, None if known_version is None else known_version.number))
        job = JobRecord(job_id=job_id, name="sales", version=2, next_checkpoint_id=1, seen_at=NOW, created_at=NOW)
        found = LatestCheckpoints(job=job, operators=(), checkpoints=())
        return None if known_version == job.rows_version else found

    def describe(self, job_id: JobId) -> JobView:
        raise AssertionError("Expected no view of a whole job.")


def test_job_that_was_checked_least_recently_is_evicted_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_reads, "_MAX_JOBS", 2)
    rows = Rows()
    checked = CheckedRows(rows)

    async def check(*job_ids: JobId) -> None:
        for job_id in job_ids:
            await checked.check(job_id)

    asyncio.run(check(FIRST, SECOND, FIRST, THIRD))
    assert rows.reads == [(FIRST, None), (SECOND, None), (FIRST, 2), (THIRD, None)]

    rows.reads.clear()
    found = [checked.latest_checkpoints(job_id, OLD) for job_id in (FIRST, SECOND, THIRD)]
    assert [latest and latest.job.job_id for latest in found] == [FIRST, SECOND, THIRD]
    assert rows.reads == [(SECOND, 1)], "the others are those of the last check"

    rows.reads.clear()
    asyncio.run(check(SECOND))
    assert rows.reads == [(SECOND, None)]
