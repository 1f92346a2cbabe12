"""The timer of periodic checkpoints: what is due is triggered in its thread, and no thread is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event

import pytest

from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.flink.timer import CheckpointTimer
from tests.aligned_job import CHECKPOINT, AlignedJob

NAME = "statecheck-checkpoint-timer"


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == NAME]


def ended() -> None:
    """Wait for the end of the timer's thread."""
    for thread in threading.enumerate():
        if thread.name == NAME:
            thread.join(30)
    assert not running()


class Waits:
    """Lets time pass instead of a wait, a number of times, and then waits until it is stopped."""

    def __init__(self, passed: Callable[[float], object], times: int) -> None:
        self.seconds: list[float] = []
        self.are_over = Event()
        self._passed = passed
        self._times = times

    def __call__(self, woken: Event, seconds: float) -> None:
        if len(self.seconds) == self._times:
            self.are_over.set()
            woken.wait(30)
            return
        self.seconds.append(seconds)
        self._passed(seconds)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not running()


def started(job: AlignedJob, waits: Waits) -> CheckpointCoordinator:
    coordinator = job.coordinator(timer=CheckpointTimer(waits), checkpoint_interval=timedelta(minutes=1))
    for task in job.tasks:
        task.on_trigger = lambda checkpoint_id: job.acknowledge_all(coordinator, checkpoint_id)
    coordinator.start_checkpoint_scheduler()
    assert waits.are_over.wait(30)
    return coordinator


@pytest.mark.parametrize("end", ["stop", "shutdown", "finished", "suspended"])
def test_timer_triggers_periodic_checkpoints_until_they_end(job: AlignedJob, end: str) -> None:
    waits = Waits(job.pass_time, 4)
    coordinator = started(job, waits)
    assert len(job.tasks[0].heard("trigger")) == 4
    assert all(0 < seconds <= 60 for seconds in waits.seconds)
    assert running()
    ends: dict[str, Callable[[], object]] = {
        "stop": coordinator.stop_checkpoint_scheduler,
        "shutdown": coordinator.shutdown,
        "finished": lambda: coordinator.shutdown_store(JobStatus.FINISHED),
        "suspended": lambda: coordinator.shutdown_store(JobStatus.SUSPENDED),
    }
    ends[end]()
    assert not running()
    assert not coordinator.is_periodic_checkpointing_started


def test_timer_that_starts_again_has_one_thread(job: AlignedJob) -> None:
    waits = Waits(job.pass_time, 1)
    coordinator = started(job, waits)
    coordinator.start_checkpoint_scheduler()
    assert len(running()) == 1
    coordinator.shutdown()


def test_timer_ends_with_the_leadership(job: AlignedJob, caplog: pytest.LogCaptureFixture) -> None:
    waits = Waits(job.pass_time, 1)
    coordinator = started(job, waits)
    job.lead()
    with pytest.raises(StaleAttemptError):
        coordinator.tick()
    coordinator.start_checkpoint_scheduler()
    ended()
    assert "Periodic checkpoints ended after a change of the leader" in caplog.text


def test_tick_that_fails_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    ticks: list[int] = []

    def tick() -> float | None:
        ticks.append(len(ticks))
        if len(ticks) == 1:
            raise ValueError("the database is away")
        return None if len(ticks) == 3 else 5.0

    waited: list[float] = []
    timer = CheckpointTimer(lambda _, seconds: waited.append(seconds))
    timer.start(tick)
    ended()
    assert waited == [1.0, 5.0]
    assert "the database is away" in caplog.text
    timer.stop()


def test_tick_may_stop_its_own_timer() -> None:
    timer, stopped = CheckpointTimer(), Event()

    def tick() -> float | None:
        timer.stop()
        stopped.set()
        return 60.0

    timer.start(tick)
    assert stopped.wait(30)
    ended()


def test_coordinator_without_a_timer_says_that_it_needs_ticks(
    job: AlignedJob, caplog: pytest.LogCaptureFixture
) -> None:
    job.coordinator(checkpoint_interval=timedelta(minutes=1)).start_checkpoint_scheduler()
    assert "has no timer, because its process may end before" in caplog.text
    assert "call tick() as often" in caplog.text


def test_tick_of_the_program_may_stop_the_timer_that_is_about_to_tick(job: AlignedJob) -> None:
    is_waiting, go, has_tried = Event(), Event(), Event()

    def wait(woken: Event, _: float) -> None:
        if not is_waiting.is_set():
            is_waiting.set()
            go.wait(30)
        else:
            has_tried.set()
            woken.wait(30)

    class Ending:
        def fail_job(self, _: Exception) -> None:
            go.set()
            assert has_tried.wait(10)
            coordinator.shutdown()

    coordinator = job.coordinator(
        timer=CheckpointTimer(wait),
        checkpoint_interval=timedelta(hours=1),
        timeout=timedelta(seconds=10),
        tolerable=0,
        callback=Ending(),
    )
    coordinator.start_checkpoint_scheduler()
    assert is_waiting.wait(30)
    coordinator.trigger_checkpoint(CHECKPOINT)
    job.pass_time(11)
    program = threading.Thread(target=coordinator.tick, daemon=True)
    program.start()
    program.join(30)
    assert not program.is_alive()
    ended()
