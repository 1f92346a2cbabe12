"""What events make of the statistics of an operator: counts, extremes and percentiles."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.records import StatisticsRecord
from airflow_provider_statecheck.checkpoint.statistics import (
    NEWEST_VALUES,
    CheckpointEntry,
    OperatorStatistics,
    RestoredEntry,
    StatsSummary,
    truncated_counts,
    truncated_location,
)


def summary_of(values: list[int]) -> StatsSummary:
    summary = StatsSummary()
    for value in values:
        summary = summary.added(value)
    return summary


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=50))
def test_minimum_average_and_maximum_are_those_of_all_values(values: list[int]) -> None:
    found = summary_of(values)
    assert (found.count, found.minimum, found.maximum) == (len(values), min(values), max(values))
    assert found.average == pytest.approx(statistics.fmean(values))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int], percent: float) -> None:
    found = summary_of(values).percentile(percent)
    enough = [v for v in values if sum(w <= v for w in values) >= percent / 100 * len(values) - 1e-9]
    assert found == min(enough)


def test_percentiles_are_those_of_the_newest_values_while_the_extremes_are_of_all() -> None:
    found = summary_of([10**9] + [0] * 10 + list(range(1, NEWEST_VALUES + 1)))
    assert len(found.newest) == NEWEST_VALUES
    assert (found.percentile(50), found.percentile(99), found.percentile(100)) == (100, 198, 200)
    assert (found.minimum, found.maximum, found.count) == (0, 10**9, NEWEST_VALUES + 11)


def test_nothing_has_no_average_and_no_percentile() -> None:
    assert (StatsSummary().average, StatsSummary().percentile(50), StatsSummary().minimum) == (None, None, None)


@given(st.lists(st.integers(0, 2**62), max_size=20))
def test_a_summary_survives_json(values: list[int]) -> None:
    found = summary_of(values)
    assert decode(StatsSummary, json.loads(json.dumps(encode(found)))) == found


START = datetime(2026, 1, 1, tzinfo=UTC)


def entry(checkpoint_id: int, **changes: Any) -> CheckpointEntry:
    values: dict[str, Any] = {
        "checkpoint_id": checkpoint_id,
        "kind": "checkpoint",
        "is_savepoint": False,
        "status": "completed",
        "epoch": 1,
        "triggered_at": START,
        "ended_at": START + timedelta(seconds=2),
        "counts": (("items", 3),),
    }
    return CheckpointEntry(**values | changes)


def failed(checkpoint_id: int, **changes: Any) -> CheckpointEntry:
    return entry(checkpoint_id, status="aborted", failure_reason="io_exception", **changes)


def record(content: Any) -> StatisticsRecord:
    return StatisticsRecord(job_id=job_id_of("sales"), operator_id=operator_id_of("aggregate"), content=content)


def reread(statistics: OperatorStatistics) -> OperatorStatistics:
    return OperatorStatistics.of(record(json.loads(json.dumps(statistics.to_content()))))


def test_statistics_survive_json() -> None:
    restored = RestoredEntry(checkpoint_id=1, is_savepoint=True, restored_at=START, epoch=2, attempt="dag.task")
    statistics = (
        OperatorStatistics()
        .ended(entry(1))
        .ended(failed(2, late_at=START))
        .ended(entry(3, kind="savepoint", is_savepoint=True))
        .restored(restored)
        .rejected_once("too_many_checkpoint_requests")
    )
    assert reread(statistics) == statistics
    assert reread(OperatorStatistics()) == OperatorStatistics()


def test_the_latest_is_the_one_of_the_highest_id_in_whatever_order_they_end() -> None:
    statistics = OperatorStatistics()
    for each in (entry(5), entry(4), failed(7), failed(6)):
        statistics = statistics.ended(each)
    assert statistics.latest_completed == entry(5)
    assert statistics.latest_failed == failed(7)
    assert [each.checkpoint_id for each in statistics.history] == [7, 6, 5, 4]


def test_an_entry_older_than_the_whole_history_is_counted_and_not_shown() -> None:
    statistics = OperatorStatistics()
    for checkpoint_id in (*range(10, 20), 1):
        statistics = statistics.ended(entry(checkpoint_id))
    assert [each.checkpoint_id for each in statistics.history] == [*range(19, 9, -1)]
    assert (statistics.checkpoints.completed, statistics.has_counted(1)) == (11, True)


def test_failures_are_counted_by_reason() -> None:
    statistics = OperatorStatistics().ended(failed(1)).ended(replace(failed(2), failure_reason="checkpoint_expired"))
    assert statistics.ended(failed(3)).failures == (("checkpoint_expired", 1), ("io_exception", 2))


def test_details_come_only_to_the_failed_entry_that_is_meant() -> None:
    statistics = OperatorStatistics().ended(entry(1)).ended(failed(2)).ended(failed(3))
    assert statistics.annotated(1, failure_cause="x") == statistics
    told = statistics.annotated(2, failure_cause="x")
    assert [each.failure_cause for each in told.history] == ["", "x", ""]
    assert told.latest_failed == failed(3)


def test_a_late_acknowledgement_is_known_as_one() -> None:
    statistics = OperatorStatistics().ended(failed(2)).ended(failed(3))
    late = statistics.annotated(2, late_at=START)
    assert (statistics.is_late(2), late.is_late(2), late.is_late(3)) == (False, True, False)


def test_an_entry_that_the_history_no_longer_has_takes_no_details() -> None:
    statistics = OperatorStatistics().ended(failed(1)).ended(failed(2))
    for checkpoint_id in range(3, 14):
        statistics = statistics.ended(entry(checkpoint_id))
    assert statistics.annotated(1, failure_cause="x") == statistics


@pytest.mark.parametrize(
    "content", [{}, {"counts": 1}, {"checkpoints": {"invented": 1}}, OperatorStatistics().to_content() | {"history": 7}]
)
def test_content_that_cannot_be_read_counts_as_none(content: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert OperatorStatistics.of(record(content)) == OperatorStatistics()
    assert "cannot be read" in caplog.text


def test_the_checkpoints_that_were_counted_last_are_remembered_by_id() -> None:
    statistics = OperatorStatistics()
    for checkpoint_id in range(1, 101):
        statistics = statistics.ended(entry(checkpoint_id))
    assert [i for i in range(1, 101) if statistics.has_counted(i)] == list(range(37, 101))


def test_only_a_few_counts_of_a_checkpoint_are_kept() -> None:
    assert truncated_counts({f"k{i}": i for i in range(9)}) == tuple((f"k{i}", i) for i in range(8))


def test_half_a_pointer_is_never_kept() -> None:
    assert truncated_location("s3://lake/chk-1") == "s3://lake/chk-1"
    assert truncated_location(f"s3://lake/{'x' * 1500}") == ""
