"""Costs of checkpointing, the overhead budget, free space, and steps that are written only if that is cheaper."""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.spark.auto_snapshots import COMPUTE_PER_WRITE, decide
from airflow_provider_statecheck.spark.checkpoint_interval import Pace
from airflow_provider_statecheck.spark.refining_loop import Refinement, RefiningLoop
from airflow_provider_statecheck.spark.stage_costs import (
    ASSUMED_BYTES_PER_SECOND,
    MIB,
    UNKNOWN_SIZE_BYTES,
    AutoFact,
    AutoFacts,
    StageCosts,
    WriteTimes,
    require_room,
    shortage_of,
)
from airflow_provider_statecheck.state.progress import Iterations, ScopedNames, StepKey

# Budget


@pytest.mark.parametrize("budget", [0, -0.1, 1.01, True, "0.1", float("nan")])
def test_a_budget_that_is_no_part_of_the_time_is_refused(clock, budget):
    with pytest.raises(InvalidConfigurationError, match="above 0 and at most 1"):
        StageCosts(budget, clock)


@pytest.mark.parametrize("budget", [0.001, 0.05, 1, 1.0, np.float64(0.05)])
def test_optional_work_is_allowed_up_to_the_budget(clock, budget):
    costs = StageCosts(budget, clock)
    clock.seconds = 100.0
    costs.spent_seconds = 100.0 * budget
    assert costs.allow()
    costs.spent_seconds += 0.01
    assert not costs.allow()


def test_without_a_budget_everything_is_allowed(clock):
    costs = StageCosts(None, clock)
    costs.spent_seconds = 1e9
    assert costs.allow()


def test_time_that_passes_brings_budget_again_and_holding_back_is_logged_once(clock, caplog):
    costs = StageCosts(0.1, clock)
    clock.seconds, costs.spent_seconds = 20.0, 4.1
    with caplog.at_level(logging.INFO):
        assert [costs.allow(), costs.allow()] == [False, False]
        clock.seconds = 41.0
        assert costs.allow()
        costs.spent_seconds = 5.0
        assert not costs.allow()
    assert [r.getMessage() for r in caplog.records] == [
        "Checkpointing took 4.1 s of 20 s (20.5 %), overhead_budget is 0.1: optional checkpoints are postponed."
    ]


def test_what_fails_is_counted_too(clock):
    costs = StageCosts(None, clock)

    def fail() -> None:
        clock.seconds += 3.0
        raise TimeoutError

    with pytest.raises(TimeoutError), costs.timed():
        fail()
    assert costs.spent_seconds == 3.0


def test_the_summary_says_what_it_cost_in_one_line(clock, caplog):
    costs = StageCosts(None, clock)
    with caplog.at_level(logging.INFO):
        costs.report()
        assert caplog.records == []
        clock.seconds, costs.spent_seconds, costs.put_off = 120.0, 4.1, 2
        costs.report()
    assert [r.getMessage() for r in caplog.records] == [
        "Checkpointing took 4.1 s of 120 s (3.4 %), 2 checkpoints postponed"
    ]


# Time of a write


def test_nothing_is_expected_where_nothing_was_learned():
    assert WriteTimes().expected_seconds(MIB) is None


def test_a_small_write_teaches_what_every_write_costs_and_a_large_one_the_rate():
    times = WriteTimes()
    times.observe(1000, 0.5)
    assert times.expected_seconds(0) == 0.5
    assert times.expected_seconds(ASSUMED_BYTES_PER_SECOND) == 1.5
    times.observe(100 * MIB, 10.5)
    assert times.expected_seconds(0) == 0.5
    assert times.expected_seconds(200 * MIB) == pytest.approx(20.5)


def test_where_only_large_writes_were_seen_their_rate_is_what_counts():
    times = WriteTimes()
    times.observe(100 * MIB, 10.0)
    times.observe(300 * MIB, 10.0)
    assert times.expected_seconds(40 * MIB) == pytest.approx(2.0)


def test_old_writes_are_forgotten_and_the_rest_survives_json():
    times = WriteTimes()
    for _ in range(3):
        times.observe(100 * MIB, 100.0)
    for _ in range(16):
        times.observe(100 * MIB, 1.0)
    restored = WriteTimes(json.loads(json.dumps(times.encode())))
    assert restored.encode() == times.encode()
    assert restored.expected_seconds(100 * MIB) == pytest.approx(1.0)


def test_a_write_of_a_few_bytes_that_took_long_does_not_set_the_rate():
    """A rate learned from one would keep large steps from being written, and so from ever correcting it."""
    times = WriteTimes()
    times.observe(3 * MIB // 2, 1.0)
    assert times.expected_seconds(10 * 1024 * MIB) == pytest.approx(161.0, abs=1.0)


def test_writing_is_only_a_part_of_computing_and_writing_in_one_go():
    times = WriteTimes()
    assert times.part_of(3600.0, ASSUMED_BYTES_PER_SECOND) == 1.0
    assert times.part_of(0.25, ASSUMED_BYTES_PER_SECOND) == 0.25
    times.observe(100 * MIB, 50.0)
    assert times.part_of(3600.0, 100 * MIB) == pytest.approx(50.0)


# Decision


@pytest.mark.parametrize(
    ("compute", "write", "unwritten", "is_written"),
    [
        (10.0, 5.0, 0.0, True),
        (9.99, 5.0, 0.0, False),
        (5.0, 3.0, 0.0, False),
        (5.0, 3.0, 1.0, True),
        (0.0, 0.0, 0.0, True),
        (0.0, None, 0.0, True),
    ],
)
def test_a_step_is_written_where_a_retry_would_repeat_twice_the_time_of_writing(compute, write, unwritten, is_written):
    assert COMPUTE_PER_WRITE == 2.0
    assert decide(compute, write, unwritten_seconds=unwritten).is_written is is_written


def test_a_decision_gives_its_numbers():
    assert decide(9.0, 5.0).reason == "computing took 9.00 s < 10.00 s = 2 x 5.00 s for writing"
    assert decide(5.0, 3.0, unwritten_seconds=1.0).reason == (
        "computing took 5.00 s and 1.00 s of unwritten steps before it >= 6.00 s = 2 x 3.00 s for writing"
    )


def test_facts_hold_for_the_code_that_was_measured_and_survive_json():
    facts = AutoFacts()
    step = ((("days", "1"),), "rows")
    fact = AutoFact(fingerprint="a", compute_seconds=1.5, size_bytes=None)
    facts.record(step, fact)
    facts.record(((), "rows"), AutoFact(fingerprint="b", compute_seconds=2.0, size_bytes=7))
    restored = AutoFacts(json.loads(json.dumps(facts.encode())))
    assert restored.measured(step, "a") == fact
    assert restored.measured(step, "b") is None
    assert restored.measured(((), "other"), "a") is None
    restored.drop_scope((("days", "1"),))
    assert restored.measured(step, "a") is None
    assert restored.measured(((), "rows"), "b") is not None


def disk(free: int | None) -> Any:
    """Return a storage that knows how much is free."""
    return SimpleNamespace(base_uri="file:///checkpoints", free_bytes=lambda: free)


@pytest.mark.parametrize(
    ("free", "size", "message"),
    [
        (499, 500, r"at least 500 free bytes .* step rows .* found 499 bytes in file:///checkpoints"),
        (UNKNOWN_SIZE_BYTES - 1, None, "the minimum for an unknown size"),
    ],
)
def test_a_step_that_will_not_fit_is_refused_with_both_numbers(free, size, message):
    with pytest.raises(StorageError, match=message):
        require_room(disk(free), "rows", size)


@pytest.mark.parametrize(("free", "size"), [(UNKNOWN_SIZE_BYTES, None), (1000, 999), (None, 10**18)])
def test_a_step_that_fits_or_of_which_a_storage_cannot_tell_is_not_refused(free, size):
    require_room(disk(free), "rows", size)
    assert shortage_of(disk(free), "rows", size) is None


def test_a_disk_that_is_nearly_full_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        require_room(disk(2 * UNKNOWN_SIZE_BYTES), "rows", None)
        assert caplog.records == []
        require_room(disk(2 * UNKNOWN_SIZE_BYTES - 1), "rows", 10)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"Only {2 * UNKNOWN_SIZE_BYTES - 1} bytes are free")


# Steps of a loop


class Frame:
    """A DataFrame as far as a loop that is put off needs one."""

    schema = write = None

    def localCheckpoint(self) -> Frame:
        return self


class Saving:
    """The steps of a stage as far as a loop needs them; notes after which of its steps the loop saves."""

    def __init__(self, costs: StageCosts, pace: Pace) -> None:
        self.costs, self.pace = costs, pace
        self.iterations = Iterations()
        self.snapshots = SimpleNamespace(find=lambda _: None, handed_out=set())
        self.saved: list[int] = []

    def fingerprint(self, *_: object) -> str:
        return "f"

    def restorable(self, *_: object, is_loop: bool) -> None: ...

    def report_restored(self) -> None: ...

    def stopwatch(self, _: float) -> None: ...

    def within(self, _: str) -> AbstractContextManager[None]:
        return nullcontext()

    def working_on(self, _: StepKey) -> AbstractContextManager[None]:
        return nullcontext()

    def require_room(self, _: object) -> None: ...

    def write(self, step: StepKey, frame: Any, *_: object) -> Any:
        return SimpleNamespace(live=SimpleNamespace(handle=SimpleNamespace(uri="u"), frame=frame), seconds=0.0)

    def read(self, live: Any) -> Any:
        return live.frame

    def drop_scope(self, _: object) -> None: ...

    def checkpoint_after_work(self) -> None:
        self.saved.append(self.iterations.loops[LOOP].number)
        self.pace.completed()


LOOP: StepKey = ((), "ranks")


def written(
    clock: Any, *, pause: str | None, converged_at: int = 0, budget: float | None = None
) -> tuple[list[int], int]:
    """Run ten steps and return which were written and how many were put off for their costs."""
    costs = StageCosts(budget, clock)
    costs.spent_seconds = 100.0
    saving: Any = Saving(costs, Pace(pause, None, clock))

    def step(frame: Any, _: int) -> Any:
        clock.seconds += 1.0
        return frame

    asked: Any = Refinement(
        initial=lambda: Frame(),  # type: ignore[arg-type,return-value]
        steps=10,
        every=1,
        step=step,
        until=lambda *_: clock.seconds == converged_at,
        version=None,
    )
    RefiningLoop(saving, ScopedNames(), LOOP, asked, lambda _: None).result()
    return saving.saved, costs.put_off


@pytest.mark.parametrize(
    ("asked", "steps", "put_off"),
    [
        pytest.param({"pause": None}, list(range(1, 11)), 0, id="each border without an interval"),
        pytest.param({"pause": "4 s"}, [4, 8, 10], 0, id="one per interval and the last"),
        pytest.param({"pause": "4 s", "converged_at": 6}, [4, 6], 0, id="a loop that is over inside the interval"),
        pytest.param({"pause": None, "budget": 0.1}, [10], 9, id="put off for its costs"),
        pytest.param({"pause": "1 h", "budget": 0.1}, [10], 0, id="inside the interval and so not for its costs"),
    ],
)
def test_a_step_is_written_at_the_interval_within_the_costs_and_at_the_end(
    clock: Any, asked: dict[str, Any], steps: list[int], put_off: int
) -> None:
    assert written(clock, **asked) == (steps, put_off)
