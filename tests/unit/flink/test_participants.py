"""The participants of a checkpoint, and what they are told of it."""

from __future__ import annotations

import logging
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import datetime
from threading import Thread
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import MasterState
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.flink.components import REMEMBERED_CHECKPOINTS, CheckpointNotifier
from airflow_provider_statecheck.flink.participants import (
    NO_CHECKPOINT,
    MasterHooks,
    OperatorCoordinatorRestoreMode,
    OperatorCoordinators,
)
from airflow_provider_statecheck.flink.plan import ExecutionTask
from tests.aligned_job import AlignedTask, HeldExecutor, InlineExecutor
from tests.unit.checkpoint.aligned.requests import START, seconds
from tests.unit.flink.stand_ins import JsonSerializer, RecordingCoordinator, RecordingHook, with_data


def make_hooks(*hooks: RecordingHook) -> MasterHooks:
    registry = MasterHooks()
    assert all(registry.add_master_hook(hook) for hook in hooks)
    return registry


def trigger(registry: MasterHooks, checkpoint_id: int = 7) -> tuple[MasterState, ...]:
    return registry.trigger(checkpoint_id, START, InlineExecutor(), seconds(5))


def state_of(name: str, data: bytes = b'"x"', version: int = 2) -> MasterState:
    return MasterState(name=name, version=version, data=data)


@pytest.mark.parametrize("identifier", [None, "", "  ", 7])
def test_a_hook_without_a_name_is_refused(identifier):
    with pytest.raises(InvalidConfigurationError, match="identifier"):
        MasterHooks().add_master_hook(RecordingHook(identifier))


def test_of_two_hooks_of_one_name_the_first_stays():
    first, second = with_data("a", 1), with_data("a", 2)
    registry = make_hooks(first)
    assert not registry.add_master_hook(second)
    trigger(registry)
    assert (len(first.told), len(second.told)) == (1, 0)


def test_each_hook_saves_its_data_once_per_checkpoint_as_bytes_of_its_own_making():
    registry = make_hooks(first := with_data("a", [1]), with_data("b", {"k": "v"}))
    assert trigger(registry) == (state_of("a", b"[1]"), state_of("b", b'{"k": "v"}'))
    assert first.told == [("trigger", 7, START)]


def test_a_hook_without_data_is_acknowledged_without_state():
    silent = RecordingHook("none")
    empty = RecordingHook("empty", serializer=JsonSerializer())
    empty.trigger_checkpoint = lambda *_: InlineExecutor().submit(lambda: None)  # type: ignore[method-assign]
    assert trigger(make_hooks(silent, empty)) == ()
    assert silent.told == [("trigger", 7, START)]


def test_data_without_a_serializer_fails_the_trigger():
    with pytest.raises(CoordinatorError, match="serializer for the data of master hook 'a', found none"):
        trigger(make_hooks(RecordingHook("a", data=1)))


def test_a_serializer_that_makes_no_bytes_fails_the_trigger():
    class Text(JsonSerializer):
        def serialize(self, data: Any) -> Any:
            return "text"

    with pytest.raises(CoordinatorError, match="bytes, found str"):
        trigger(make_hooks(RecordingHook("a", 1, Text())))


def test_a_hook_that_fails_to_begin_fails_the_trigger_and_names_itself():
    with pytest.raises(
        CoordinatorError, match=r"'a' to save its data, found RuntimeError\('cannot trigger'\)"
    ) as raised:
        trigger(make_hooks(RecordingHook("a", fails_at="trigger")))
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_hook_that_fails_later_fails_the_trigger_and_names_itself():
    class FailsLater(RecordingHook):
        def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, executor: Executor) -> Future[Any]:
            return executor.submit(lambda: 1 // 0)

    with pytest.raises(CoordinatorError, match="'a' to save") as raised:
        trigger(make_hooks(FailsLater("a")))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_hook_that_never_answers_fails_the_trigger_after_a_while_and_the_others_are_called_off():
    first, second = (Future[Any](), Future[Any]())
    hooks = [with_data("a"), with_data("b")]
    for hook, future in zip(hooks, (first, second), strict=True):
        hook.trigger_checkpoint = lambda *_, future=future: future  # type: ignore[method-assign]
    with pytest.raises(CoordinatorError, match="'a' to save its data, found TimeoutError"):
        make_hooks(*hooks).trigger(7, START, InlineExecutor(), seconds(0))
    assert (first.cancelled(), second.cancelled()) == (True, True)


def test_all_hooks_begin_before_any_of_them_is_waited_for():
    with ThreadPoolExecutor(2) as executor:
        answer: Future[str] = Future()

        class Answering(RecordingHook):
            def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, executor: Executor) -> None:
                answer.set_result("b began")

        waiting = with_data("a")
        waiting.trigger_checkpoint = lambda *_: executor.submit(answer.result)  # type: ignore[method-assign]
        states = make_hooks(waiting, Answering("b")).trigger(7, START, executor, seconds(5))
    assert states == (state_of("a", b'"b began"'),)


def test_a_hook_gets_back_what_it_saved():
    first, second = with_data("a", [1]), with_data("b", "two")
    states = trigger(make_hooks(first, second))
    first, second = with_data("a"), with_data("b")
    make_hooks(second, first).restore(7, states)
    assert (first.told, second.told) == ([("restore", 7, [1])], [("restore", 7, "two")])


def test_a_hook_reads_the_data_of_an_earlier_version():
    hook = with_data("a")
    make_hooks(hook).restore(7, [state_of("a", b"old", version=1)])
    assert hook.told == [("restore", 7, "old")]


def test_a_hook_without_state_is_restored_with_none():
    hook = with_data("a")
    make_hooks(hook).restore(7, [])
    assert hook.told == [("restore", 7, None)]


def test_state_without_a_hook_is_refused_before_any_hook_is_restored():
    hook = with_data("a")
    with pytest.raises(CoordinatorError, match="found none for b, c; add the hooks, or set allow_non_restored_state"):
        make_hooks(hook).restore(7, [state_of("a"), state_of("c"), state_of("b")])
    assert hook.told == []


def test_state_without_a_hook_is_dropped_with_a_log_line_where_that_is_allowed(caplog):
    hook = with_data("a")
    with caplog.at_level(logging.WARNING):
        make_hooks(hook).restore(7, [state_of("a"), state_of("b")], allow_non_restored_state=True)
    assert hook.told == [("restore", 7, "x")]
    assert "without a master hook: b" in caplog.text


def test_state_that_is_there_twice_is_refused():
    with pytest.raises(CoordinatorError, match="found it twice for a"):
        make_hooks(with_data("a")).restore(7, [state_of("a"), state_of("a")], allow_non_restored_state=True)


def test_all_state_is_read_before_any_hook_is_restored():
    first, second = with_data("a"), with_data("b")
    with pytest.raises(CoordinatorError, match="'b' to read its data of version 3, found ValueError"):
        make_hooks(first, second).restore(7, [state_of("a"), state_of("b", version=3)])
    assert (first.told, second.told) == ([], [])


def test_state_of_a_hook_without_a_serializer_is_refused():
    with pytest.raises(CoordinatorError, match="serializer of master hook 'a'"):
        make_hooks(RecordingHook("a")).restore(7, [state_of("a")])


def test_a_hook_that_cannot_be_restored_or_reset_names_itself():
    with pytest.raises(CoordinatorError, match="'a' to restore checkpoint 7"):
        make_hooks(RecordingHook("a", fails_at="restore")).restore(7, [])
    with pytest.raises(CoordinatorError, match="'a' to reset"):
        make_hooks(RecordingHook("a", fails_at="reset")).reset()


def test_every_hook_is_reset_when_there_is_no_checkpoint():
    hooks = [with_data("a"), with_data("b")]
    make_hooks(*hooks).reset()
    assert [hook.told for hook in hooks] == [[("reset",)]] * 2


def test_every_hook_is_closed_once_and_errors_are_logged(caplog):
    hooks = [RecordingHook("a", fails_at="close"), with_data("b")]
    registry = make_hooks(*hooks)
    registry.close()
    registry.close()
    assert [hook.told for hook in hooks] == [[("close",)]] * 2
    assert "Master hook a could not be closed" in caplog.text


@pytest.mark.parametrize("call", ["trigger", "restore", "reset", "close"])
def test_a_hook_may_use_the_registry_for_no_lock_is_held(call):
    registry = MasterHooks()

    class Calling(RecordingHook):
        def _hear(self, *what: Any) -> None:
            other = Thread(target=registry.add_master_hook, args=(with_data("b"),), daemon=True)
            other.start()
            other.join(10)
            self.told.append((*what, other.is_alive()))

    calling = Calling("a")
    registry.add_master_hook(calling)
    calls = {"trigger": lambda: trigger(registry), "restore": lambda: registry.restore(7, [])}
    calls.get(call, getattr(registry, call))()
    assert calling.told[0][-1] is False


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
    assert isinstance(raised.value.__cause__, (OSError, RuntimeError))
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


class Job:
    """A notifier and the tasks that were failed by it."""

    def __init__(self, executor: Executor | None = None) -> None:
        self.failed: list[tuple[str, str]] = []
        self.notifier = CheckpointNotifier(executor or InlineExecutor(), self.fail_task)

    def fail_task(self, task: ExecutionTask, error: Exception) -> None:
        self.failed.append((task.uid, str(error)))


def test_each_task_is_told_how_the_checkpoint_ended():
    job, tasks = Job(), [AlignedTask("a"), AlignedTask("b")]
    job.notifier.notify_complete(tasks, 3, START, 1)
    job.notifier.notify_aborted(tasks, 4, 3, START)
    job.notifier.notify_subsumed(tasks, 1)
    assert [task.told for task in tasks] == [[("complete", 3, 1, START), ("aborted", 4, 3, START), ("subsumed", 1)]] * 2


def test_no_task_is_told_twice_of_one_end_of_one_checkpoint():
    job, task = Job(), AlignedTask("a")
    for _ in range(2):
        job.notifier.notify_complete([task, task], 3, START)
        job.notifier.notify_aborted([task], 4, 3, START)
        job.notifier.notify_subsumed([task], 1)
    assert [what for what, *_ in task.told] == ["complete", "aborted", "subsumed"]


def test_a_later_try_of_a_task_is_told_itself():
    job, tasks = Job(), [AlignedTask("a", attempt_id="1"), AlignedTask("a", attempt_id="2")]
    job.notifier.notify_complete(tasks, 3, START)
    assert [len(task.told) for task in tasks] == [1, 1]


def test_two_tasks_with_equal_attempts_are_both_told():
    job, tasks = Job(), [AlignedTask("a"), AlignedTask("b")]
    job.notifier.notify_complete(tasks[:1], 3, START)
    job.notifier.notify_complete(tasks, 3, START)
    assert [len(task.told) for task in tasks] == [1, 1]


def test_no_discarded_checkpoint_is_said_as_minus_one():
    job, task = Job(), AlignedTask("a")
    job.notifier.notify_complete([task], 3, START)
    assert task.told == [("complete", 3, -1, START)]


def test_a_task_that_fails_when_it_is_told_of_a_completion_is_failed_and_the_others_are_told():
    job, tasks = Job(), [AlignedTask("a", fails_at={"complete"}), AlignedTask("b")]
    job.notifier.notify_complete(tasks, 3, START)
    assert job.failed == [("a", "a cannot take complete")]
    assert tasks[1].told == [("complete", 3, -1, START)]


@pytest.mark.parametrize("kind", ["aborted", "subsumed"])
def test_a_task_that_fails_when_it_is_told_of_anything_else_goes_on_and_the_others_are_told(kind, caplog):
    job, tasks = Job(), [AlignedTask("a", fails_at={kind}), AlignedTask("b")]
    with caplog.at_level(logging.WARNING):
        if kind == "aborted":
            job.notifier.notify_aborted(tasks, 3, 2, START)
        else:
            job.notifier.notify_subsumed(tasks, 3)
    assert job.failed == []
    assert len(tasks[1].told) == 1
    assert f"Operator a failed on the notification that checkpoint 3 is {kind}; it continues" in caplog.text


def test_a_task_that_cannot_be_failed_keeps_none_of_the_others_from_being_told(caplog):
    def cannot(task: ExecutionTask, error: Exception) -> None:
        raise RuntimeError("no such task")

    tasks = [AlignedTask("a", fails_at={"complete"}), AlignedTask("b")]
    CheckpointNotifier(InlineExecutor(), cannot).notify_complete(tasks, 3, START)
    assert len(tasks[1].told) == 1
    assert "Operator a could not be failed" in caplog.text


def test_tasks_are_told_by_the_executor_and_once_even_if_it_has_not_told_them_yet():
    executor = HeldExecutor()
    job, task = Job(executor), AlignedTask("a")
    for _ in range(2):
        job.notifier.notify_aborted([task], 3, 2, START)
    assert task.told == []
    executor.run_all()
    assert task.told == [("aborted", 3, 2, START)]


def test_a_notification_that_the_executor_no_longer_takes_is_lost_with_a_warning(caplog):
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    job, task = Job(executor), AlignedTask("a")
    with caplog.at_level(logging.WARNING):
        job.notifier.notify_complete([task], 3, START)
    assert (task.told, job.failed) == ([], [])
    assert "A notification of the end of a checkpoint was not sent" in caplog.text


def test_old_checkpoints_are_forgotten():
    job, task = Job(), AlignedTask("a")
    for checkpoint_id in range(REMEMBERED_CHECKPOINTS + 1):
        job.notifier.notify_subsumed([task], checkpoint_id)
    task.told.clear()
    job.notifier.notify_subsumed([task], 1)
    assert task.told == []
    job.notifier.notify_subsumed([task], 0)
    assert task.told == [("subsumed", 0)]


def test_a_task_may_use_the_notifier_for_no_lock_is_held():
    job, other = Job(), AlignedTask("other")

    class Calling(AlignedTask):
        def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
            thread = Thread(target=job.notifier.notify_subsumed, args=([other], checkpoint_id), daemon=True)
            thread.start()
            thread.join(10)

    job.notifier.notify_subsumed([Calling("a")], 1)
    assert other.told == [("subsumed", 1)]
