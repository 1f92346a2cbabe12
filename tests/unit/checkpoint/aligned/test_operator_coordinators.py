"""What operators keep on the coordinator's side."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.participants import (
    NO_CHECKPOINT,
    OperatorCoordinatorRestoreMode,
    OperatorCoordinators,
)
from airflow_provider_statecheck.checkpoint.ids import OperatorId, operator_id_of
from airflow_provider_statecheck.exceptions import CoordinatorError
from tests.unit.checkpoint.aligned.stand_ins import seconds

Answer = Callable[[Future[bytes | None]], None]


class RecordingCoordinator:
    """The coordinator of an operator; it notes what it is told."""

    def __init__(self, uid: str, answer: Answer = lambda result: result.set_result(b"x"), fails_at: str = "") -> None:
        self.operator_id: OperatorId = operator_id_of(uid)
        self.answer = answer
        self.fails_at = fails_at
        self.told: list[tuple[Any, ...]] = []

    def checkpoint(self, checkpoint_id: int, result: Future[bytes | None]) -> None:
        self._hear("checkpoint", checkpoint_id)
        self.answer(result)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._hear("complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._hear("aborted", checkpoint_id)

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        self._hear("reset", checkpoint_id, state)

    def abort_current_triggering(self) -> None:
        self._hear("give up")

    def _hear(self, *what: Any) -> None:
        self.told.append(what)
        if what[0] == self.fails_at:
            raise OSError(f"cannot {what[0]}")


def told(*coordinators: RecordingCoordinator) -> list[list[tuple[Any, ...]]]:
    return [coordinator.told for coordinator in coordinators]


def test_each_saves_its_state_or_none():
    first, second = RecordingCoordinator("a"), RecordingCoordinator("b", lambda result: result.set_result(None))
    coordinators = OperatorCoordinators([first, second])
    assert coordinators.checkpoint(7) == {first.operator_id: b"x", second.operator_id: None}
    assert told(first, second) == [[("checkpoint", 7)]] * 2


def test_all_begin_before_any_of_them_is_waited_for():
    later: list[Future[bytes | None]] = []

    def answer_both(result: Future[bytes | None]) -> None:
        later[0].set_result(b"1")
        result.set_result(b"2")

    first, second = RecordingCoordinator("a", later.append), RecordingCoordinator("b", answer_both)
    saved = OperatorCoordinators([first, second]).checkpoint(7, seconds(5))
    assert saved == {first.operator_id: b"1", second.operator_id: b"2"}


@pytest.mark.parametrize(
    "failing",
    [
        RecordingCoordinator("b", fails_at="checkpoint"),
        RecordingCoordinator("b", lambda result: result.set_exception(OSError("disk full"))),
        RecordingCoordinator("b", lambda result: None),
    ],
    ids=["at once", "later", "never answers"],
)
def test_if_one_fails_all_give_up_and_the_trigger_fails(failing):
    first = RecordingCoordinator("a")
    with pytest.raises(CoordinatorError, match="to save its state") as raised:
        OperatorCoordinators([first, failing]).checkpoint(7, seconds(0))
    assert raised.value.operator_id == failing.operator_id
    assert isinstance(raised.value.__cause__, OSError)
    assert told(first, failing) == [[("checkpoint", 7), ("give up",)]] * 2


def test_one_that_cannot_give_up_keeps_none_of_the_others_from_it(caplog):
    first, second = RecordingCoordinator("a", fails_at="give up"), RecordingCoordinator("b")
    OperatorCoordinators([first, second]).abort_current_triggering()
    assert told(first, second) == [[("give up",)]] * 2
    assert "could not cancel a checkpoint" in caplog.text


def test_all_are_told_of_a_completion_and_one_that_fails_is_an_error():
    first, second = RecordingCoordinator("a", fails_at="complete"), RecordingCoordinator("b")
    with pytest.raises(CoordinatorError, match="checkpoint 7 is complete") as raised:
        OperatorCoordinators([first, second]).notify_checkpoint_complete(7)
    assert raised.value.operator_id == first.operator_id
    assert told(first, second) == [[("complete", 7)]] * 2
    OperatorCoordinators([second]).notify_checkpoint_complete(8)


def test_one_that_fails_when_it_is_told_of_an_abort_is_tolerated(caplog):
    first, second = RecordingCoordinator("a", fails_at="aborted"), RecordingCoordinator("b")
    OperatorCoordinators([first, second]).notify_checkpoint_aborted(7)
    assert told(first, second) == [[("aborted", 7)]] * 2
    assert "could not handle an abort" in caplog.text


@pytest.mark.parametrize(
    "mode",
    [
        OperatorCoordinatorRestoreMode.RESTORE_OR_RESET,
        OperatorCoordinatorRestoreMode.RESTORE_IF_CHECKPOINT_PRESENT,
    ],
)
def test_all_go_back_to_a_checkpoint_with_their_state_or_none(mode):
    first, second = RecordingCoordinator("a"), RecordingCoordinator("b")
    OperatorCoordinators([first, second]).restore(mode, 7, {first.operator_id: b"1"})
    assert told(first, second) == [[("reset", 7, b"1")], [("reset", 7, None)]]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (OperatorCoordinatorRestoreMode.RESTORE_OR_RESET, [("reset", NO_CHECKPOINT, None)]),
        (OperatorCoordinatorRestoreMode.RESTORE_IF_CHECKPOINT_PRESENT, []),
        (OperatorCoordinatorRestoreMode.SKIP, []),
    ],
)
def test_without_a_checkpoint_only_the_restore_of_a_whole_job_goes_back_to_the_beginning(mode, expected):
    coordinator = RecordingCoordinator("a")
    OperatorCoordinators([coordinator]).restore(mode)
    assert coordinator.told == expected


def test_the_restore_of_some_tasks_leaves_the_coordinators_alone():
    coordinator = RecordingCoordinator("a")
    OperatorCoordinators([coordinator]).restore(OperatorCoordinatorRestoreMode.SKIP, 7)
    assert coordinator.told == []


def test_one_that_cannot_go_back_is_an_error():
    coordinator = RecordingCoordinator("a", fails_at="reset")
    with pytest.raises(CoordinatorError, match="to restore a checkpoint"):
        OperatorCoordinators([coordinator]).restore(OperatorCoordinatorRestoreMode.RESTORE_OR_RESET, 7)
