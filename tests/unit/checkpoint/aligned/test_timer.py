"""The thread that lets a coordinator look at its clock."""

from __future__ import annotations

from datetime import timedelta
from threading import Event, current_thread

import pytest

from airflow_provider_statecheck.checkpoint.aligned.triggering import CoordinatorTimer
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from tests.unit.checkpoint.aligned.stand_ins import seconds


class CountingWaiter:
    """Lets so many waits pass at once and then waits until it is ended."""

    def __init__(self, passes: int) -> None:
        self.passes = passes
        self.waits: list[float] = []
        self.used_up = Event()
        self.ended = Event()

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        if self.ended.is_set():
            return True
        if len(self.waits) <= self.passes:
            return False
        self.used_up.set()
        return self.ended.wait(10)

    def set(self) -> None:
        self.ended.set()


class Ticks:
    """A timer and the threads that called."""

    def __init__(self, passes: int = 3) -> None:
        self.waiters: list[CountingWaiter] = []
        self.passes = passes
        self.threads: list[str] = []
        self.timer = CoordinatorTimer(self.tick, seconds(2), new_waiter=self.new_waiter)

    def new_waiter(self) -> CountingWaiter:
        self.waiters.append(CountingWaiter(self.passes))
        return self.waiters[-1]

    def tick(self) -> None:
        self.threads.append(current_thread().name)

    def wait(self) -> None:
        assert self.waiters[-1].used_up.wait(10)

    def end(self) -> None:
        self.timer.stop()
        self.timer.join(seconds(10))


def test_there_is_no_thread_before_the_start():
    ticks = Ticks()
    ticks.timer.join()
    ticks.timer.stop()
    assert (ticks.waiters, ticks.threads) == ([], [])


def test_it_calls_once_per_period_in_a_thread_of_its_own():
    ticks = Ticks()
    ticks.timer.start()
    ticks.wait()
    ticks.end()
    assert ticks.threads == ["checkpoint-timer"] * 3
    assert set(ticks.waiters[0].waits) == {2.0}


def test_it_calls_no_more_when_it_was_stopped():
    ticks = Ticks(passes=0)
    ticks.timer.start()
    ticks.end()
    assert ticks.threads == []
    assert ticks.waiters[0].ended.is_set()


def test_a_call_that_fails_is_logged_and_the_next_is_made(caplog):
    class Failing(Ticks):
        def tick(self) -> None:
            super().tick()
            raise RuntimeError("database is away")

    ticks = Failing()
    ticks.timer.start()
    ticks.wait()
    ticks.end()
    assert len(ticks.threads) == 3
    assert "database is away" in caplog.text


def test_a_call_may_stop_the_timer():
    class Stopping(Ticks):
        def tick(self) -> None:
            super().tick()
            self.timer.stop()

    ticks = Stopping()
    ticks.timer.start()
    ticks.timer.join(seconds(10))
    assert len(ticks.threads) == 1


def test_it_may_be_started_again_and_what_ran_before_ends():
    ticks = Ticks()
    for _ in range(3):
        ticks.timer.start()
        ticks.wait()
    assert [waiter.ended.is_set() for waiter in ticks.waiters] == [True, True, False]
    ticks.end()
    assert len(ticks.threads) == 9


def test_a_timer_of_the_real_clock_ends_at_once_when_it_is_stopped():
    timer = CoordinatorTimer(lambda: None, timedelta(hours=1))
    timer.start()
    timer.stop()
    timer.join(seconds(10))
    thread = timer._thread
    assert thread is not None
    assert not thread.is_alive()


def test_a_period_of_no_length_is_refused():
    with pytest.raises(InvalidConfigurationError, match="period"):
        CoordinatorTimer(lambda: None, timedelta(0))
