"""What an attempt tells about its work, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.status_log import REPORTED_AFTER_SECONDS, WorkInProgress


class Watched:
    """Work with a clock and a timer that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.sent: list[CheckpointSummary] = []
        self.due: Callable[[], None] | None = None
        self.timers = 0
        self.during_call: Callable[[], object] = lambda: None
        self.work = WorkInProgress(self._send, lambda: self.seconds, self._start)

    def _send(self, summary: CheckpointSummary) -> None:
        self.sent.append(summary)
        self.during_call()

    def _start(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        assert seconds == REPORTED_AFTER_SECONDS
        assert self.due is None, "one timer at a time"
        self.due = function
        self.timers += 1
        return self._cancel

    def _cancel(self) -> None:
        self.due = None

    def wait(self) -> None:
        """Let the timer end, if there is one."""
        due, self.due = self.due, None
        if due is not None:
            due()

    @property
    def told(self) -> list[tuple[str, float]]:
        return [(each.computing, each.computing_after) for each in self.sent]


def test_work_that_takes_long_is_reported_once_with_its_start() -> None:
    found = Watched()
    found.seconds += 30
    with found.work.on("sessions"):
        found.wait()
        found.wait()
        assert found.told == [("sessions", 30.0)]


def test_many_short_steps_cost_a_report_every_few_seconds_of_the_one_in_work_and_the_last_its_end() -> None:
    found = Watched()
    for number in range(1000):
        with found.work.on(f"step {number}"):
            if number == 500:
                found.wait()
    found.wait()
    assert [name for name, _ in found.told] == ["step 500", ""]
    assert found.timers == 2


def test_inner_work_is_told_while_it_lasts_and_then_that_around_it() -> None:
    found = Watched()
    with found.work.on("days[1]"):
        with found.work.on("days[1]/sessions"):
            found.wait()
        found.wait()
        assert [name for name, _ in found.told] == ["days[1]/sessions", "days[1]"]


def test_an_error_ends_the_work() -> None:
    found = Watched()
    with pytest.raises(ValueError, match="user"), found.work.on("sessions"):
        raise ValueError("of the user")
    found.wait()
    assert found.sent == [], "nothing was told, and nothing is in work"


def test_what_a_checkpoint_has_told_is_not_reported_again() -> None:
    found = Watched()
    with found.work.on("increment 2"):
        content, work = found.work.added_to(CheckpointContent(summary=CheckpointSummary(seconds_saved=1.0)))
        found.work.told(work)
        found.wait()
    assert found.sent == []
    assert content.summary == CheckpointSummary(seconds_saved=1.0, computing="increment 2")


def test_a_checkpoint_that_failed_has_told_nothing() -> None:
    found = Watched()
    with found.work.on("increment 2"):
        found.work.added_to(CheckpointContent(summary=CheckpointSummary()))
        found.wait()
    assert found.told == [("increment 2", 0.0)]


def test_work_that_changes_during_a_report_is_reported_next() -> None:
    found = Watched()
    second = found.work.on("second")
    with found.work.on("first"):
        found.during_call = second.__enter__
        found.wait()
        found.during_call = lambda: None
        found.wait()
    assert [name for name, _ in found.told] == ["first", "second"]


def test_a_report_that_fails_in_any_way_is_dropped() -> None:
    found = Watched()

    def fail() -> None:
        raise StaleAttemptError("replaced", epoch=1)

    found.during_call = fail
    with found.work.on("sessions"):
        found.wait()
        found.wait()
    assert [name for name, _ in found.told] == ["sessions"], "it is not sent again"


def test_nothing_is_reported_after_the_end() -> None:
    found = Watched()
    with found.work.on("sessions"):
        late = found.due
        found.work.end()
        assert found.due is None
        assert late is not None
        late()
        with found.work.on("more"):
            found.wait()
    assert found.sent == []


def test_a_report_has_what_was_restored_the_rate_and_the_share_and_the_end_keeps_them() -> None:
    found = Watched()
    found.work.rows_per_second = lambda: 12.0
    found.work.checkpoint_share = lambda: 0.25
    found.work.restored = CheckpointSummary(seconds_saved=7.0)
    with found.work.on("increment 1"):
        found.wait()
    expected = CheckpointSummary(seconds_saved=7.0, rows_per_second=12.0, checkpoint_share=0.25)
    assert found.sent == [replace(expected, computing="increment 1")]
    assert found.work.at_end() == expected


def test_an_attempt_that_knows_nothing_ends_without_figures() -> None:
    assert Watched().work.at_end() is None
