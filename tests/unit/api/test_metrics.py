from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_statecheck.api.metrics import AirflowMetrics, airflow_metrics, task_metrics
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import ConfirmRestore, SkippedCheckpoint, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import Transport
from airflow_provider_statecheck.gateway.in_process import observed_store
from tests.messages import (
    ManualClock,
    complete_checkpoint,
    make_acknowledgement,
    make_owner,
    make_registration,
)
from tests.sqlite_rows import new_store

TAGS = {"dag_id": "nightly", "task_id": "features", "transport": "mailbox"}
COORDINATES = (("dag_id", "nightly"), ("run_id", "r"), ("task_id", "features"), ("map_index", "-1"))


class RecordedStats:
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def incr(self, name: str, *, tags: dict[str, str]) -> None:
        self._note(name, 1, tags)

    def gauge(self, name: str, value: float, *, tags: dict[str, str]) -> None:
        self._note(name, value, tags)

    def timing(self, name: str, value: float, *, tags: dict[str, str]) -> None:
        self._note(name, value, tags)

    def _note(self, name: str, value: float, tags: dict[str, str]) -> None:
        assert tags == TAGS
        self.sent.append((name.removeprefix("statecheck."), value))

    def take(self) -> list[tuple[str, Any]]:
        taken, self.sent = self.sent, []
        return taken


@pytest.fixture
def stats() -> RecordedStats:
    return RecordedStats()


@pytest.fixture
def coordinator(clock: ManualClock, stats: RecordedStats) -> AttemptCoordinator:
    return AttemptCoordinator(observed_store(new_store(clock), AirflowMetrics(stats)))


@pytest.fixture
def register(coordinator: AttemptCoordinator) -> Callable[[], Any]:
    owner = make_owner(airflow=COORDINATES, transport=Transport.MAILBOX)
    return lambda: coordinator.register(make_registration(owner=owner)).attempt


def test_a_completed_checkpoint_sends_its_count_size_and_duration(coordinator, register, stats, clock) -> None:
    attempt = register()
    pending = coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    clock.advance(1.5)
    coordinator.acknowledge(make_acknowledgement(attempt, pending.checkpoint_id, full_size_bytes=4096))
    assert stats.take() == [
        ("restore.fresh", 1),
        ("checkpoint.triggered", 1),
        ("checkpoint.completed", 1),
        ("checkpoint.size_bytes", 4096),
        ("checkpoint.duration", 1500.0),
    ]


def test_the_age_of_the_last_completed_checkpoint_is_sent_when_the_next_begins(
    coordinator, register, stats, clock
) -> None:
    attempt = register()
    complete_checkpoint(coordinator, attempt)
    stats.take()
    clock.advance(120)
    coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    assert stats.take() == [("checkpoint.triggered", 1), ("job.last_completed_age", 120.0)]


def test_an_expired_checkpoint_counts_as_failed_and_as_expired(coordinator, register, stats, clock) -> None:
    attempt = register()
    coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    stats.take()
    clock.advance(601)
    coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    assert stats.take() == [("checkpoint.failed", 1), ("checkpoint.expired", 1), ("checkpoint.triggered", 1)]


def test_what_was_under_way_when_its_attempt_ended_is_no_failed_checkpoint(coordinator, register, stats) -> None:
    coordinator.trigger(TriggerCheckpoint(attempt=register(), request_key=new_key()))
    stats.take()
    register()
    assert stats.take() == [("attempt.fenced", 1), ("restore.fresh", 1)]


def test_a_retry_counts_its_fence_its_restore_and_what_it_could_not_restore(coordinator, register, stats) -> None:
    first = register()
    for _ in range(2):
        complete_checkpoint(coordinator, first)
    stats.take()
    retry = register()
    skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum differs"),)
    coordinator.confirm_restore(ConfirmRestore(attempt=retry, checkpoint_id=1, skipped=skipped))
    assert stats.take() == [("attempt.fenced", 1), ("restore.count", 1), ("restore.failed", 1)]


def test_a_relay_sends_how_long_the_oldest_call_has_waited(stats) -> None:
    owner = make_owner(airflow=COORDINATES, transport=Transport.MAILBOX)
    AirflowMetrics(stats).waits(owner, 12.5)
    assert stats.take() == [("mailbox.oldest_call_age", 12.5)]


def test_a_metrics_backend_that_fails_fails_no_look_into_a_mailbox(caplog) -> None:
    AirflowMetrics(object()).waits(make_owner(label="try 1"), 12.5)
    assert "Metrics of try 1 could not be sent" in caplog.text


@pytest.mark.parametrize("metrics", [airflow_metrics, task_metrics])
def test_each_process_has_stats_that_take_the_gauge(metrics, caplog) -> None:
    metrics().waits(make_owner(airflow=COORDINATES), 12.5)
    assert caplog.text == ""


def test_a_metrics_backend_that_fails_fails_no_checkpoint(caplog) -> None:
    coordinator = AttemptCoordinator(observed_store(new_store(ManualClock()), AirflowMetrics(object())))
    reply = complete_checkpoint(coordinator, coordinator.register(make_registration()).attempt)
    assert reply.is_completed
    assert "could not be sent" in caplog.text


def test_airflows_own_stats_take_the_metrics() -> None:
    from airflow.observability import stats

    coordinator = AttemptCoordinator(observed_store(new_store(ManualClock()), AirflowMetrics(stats)))
    assert complete_checkpoint(coordinator, coordinator.register(make_registration()).attempt).is_completed
