"""Checkpoints that are taken while the stage computes on, for coordinators whose answers take seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import CoordinatorUnavailableError, StaleAttemptError
from airflow_provider_statecheck.spark.background_checkpoints import BackgroundCheckpoints, Capture
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.context import StageContext
from tests.unit.written_stage import WrittenStage

LATE = {"require_open": lambda: None}
DAYS = ["d1", "d2", "d3", "d4", "d5"]
LONGEST_WAIT = 60.0


class LateAnswers:
    """Holds the answers of a coordinator until they are let go."""

    def __init__(self, stage: WrittenStage) -> None:
        self.asked = threading.Event()
        self.answered = threading.Event()
        self._trigger = stage.coordinator.trigger
        stage.coordinator.trigger = self.trigger  # type: ignore[method-assign]

    def trigger(self, request: Any) -> Any:
        """Answer when that is allowed."""
        self.asked.set()
        assert self.answered.wait(LONGEST_WAIT)
        return self._trigger(request)


@pytest.fixture
def late(stage: WrittenStage) -> Iterator[LateAnswers]:
    answers = LateAnswers(stage)
    yield answers
    answers.answered.set()


def work(stage: WrittenStage, at: Callable[[str], None] = lambda day: None) -> list[str]:
    """Return the days that an attempt has worked on."""
    worked: list[str] = []
    with suppress(KeyError), StageContext(None, stage.attempt(driver=LATE)) as checkpoint:  # type: ignore[arg-type]
        for day in checkpoint.each("days", DAYS):
            at(day)
            worked.append(day)
    return worked


def test_a_loop_goes_on_while_its_first_checkpoint_waits_and_the_next_one_has_all_items(
    stage: WrittenStage, late: LateAnswers
) -> None:
    def answer_at_the_last_day(day: str) -> None:
        if day == "d5":
            assert late.asked.wait(LONGEST_WAIT)
            late.answered.set()

    assert work(stage, answer_at_the_last_day) == DAYS
    view = stage.coordinator.describe(stage.attempts()[0].job_id)
    assert [checkpoint.counts["items"] for checkpoint in view.checkpoints if checkpoint.completed_at][-1] == 5
    assert len(view.checkpoints) <= 3
    assert stage.last_attempt().status is AttemptStatus.FINISHED


def test_an_item_that_was_finished_before_a_failure_is_not_worked_on_again(
    stage: WrittenStage, late: LateAnswers
) -> None:
    def fail_at_the_third_day(day: str) -> None:
        if day == "d3" and not late.answered.is_set():
            late.answered.set()
            raise KeyError(day)

    assert work(stage, fail_at_the_third_day) == ["d1", "d2"]
    assert work(stage, fail_at_the_third_day) == ["d3", "d4", "d5"]


def test_a_stage_that_fails_waits_for_no_savepoint_with_which_its_job_stops(stage: WrittenStage) -> None:
    """The thread that waits for it is released first."""
    attempt, released = stage.attempt(driver=LATE), threading.Event()
    trigger, release = stage.coordinator.trigger, attempt.release

    def trigger_once_released(request: Any) -> Any:
        assert released.wait(LONGEST_WAIT)
        return trigger(request)

    def note_release() -> None:
        released.set()
        release()

    stage.coordinator.trigger = trigger_once_released  # type: ignore[method-assign]
    attempt.release = note_release  # type: ignore[method-assign]
    with suppress(KeyError), StageContext(None, attempt) as checkpoint:  # type: ignore[arg-type]
        for day in checkpoint.each("days", DAYS):
            if day == "d2":
                raise KeyError(day)
    assert stage.last_attempt().status is AttemptStatus.FAILED
    assert list(stage.statuses().values()) == ["completed"]


def test_a_replaced_attempt_ends_with_the_checkpoint_after_it_was_replaced(
    stage: WrittenStage, late: LateAnswers
) -> None:
    def replace_at_the_second_day(day: str) -> None:
        if day == "d2":
            stage.attempt()
            late.answered.set()

    with pytest.raises(StaleAttemptError):
        work(stage, replace_at_the_second_day)


def test_a_checkpoint_that_the_next_one_replaces_or_that_fails_leaves_its_bytes_to_the_next_one(
    stage: WrittenStage,
) -> None:
    trigger, failures = stage.coordinator.trigger, iter([True])

    def fail_once(request: Any) -> Any:
        if next(failures, False):
            raise CoordinatorUnavailableError("The relay is away.")
        return trigger(request)

    stage.coordinator.trigger = fail_once  # type: ignore[method-assign]
    assert work(stage) == DAYS
    completed = [c for c in stage.coordinator.describe(stage.attempts()[0].job_id).checkpoints if c.completed_at]
    assert completed[-1].counts["items"] == 5


def captured(number: int) -> Capture:
    return Capture(content=CheckpointContent(), compared=((str(number),), {}), unsaved_bytes=number)


def test_of_the_captures_that_wait_only_the_newest_is_taken() -> None:
    go_on, taken = threading.Event(), []

    def take(capture: Capture) -> bool:
        assert go_on.wait(LONGEST_WAIT)
        taken.append(capture.unsaved_bytes)
        return True

    background = BackgroundCheckpoints(take)
    for number in (1, 2, 3):
        background.offer(captured(number))
    go_on.set()
    background.settle()
    assert taken[-1] == 3
    assert len(taken) <= 2
    assert background.withdraw() == []


def test_captures_without_a_checkpoint_are_given_back_once() -> None:
    background = BackgroundCheckpoints(lambda capture: capture.unsaved_bytes > 1)
    for number in (1, 2):
        background.offer(captured(number))
        background.settle()
    assert background.withdraw() == [captured(1)]
    assert background.withdraw() == []


def test_a_failure_that_ends_the_stage_is_raised_by_the_next_offer_and_at_the_end() -> None:
    def fail(_: Capture) -> bool:
        raise StaleAttemptError("It was replaced.", epoch=1)

    background = BackgroundCheckpoints(fail)
    background.offer(captured(1))
    with pytest.raises(StaleAttemptError):
        background.settle()
    with pytest.raises(StaleAttemptError):
        background.offer(captured(2))
