"""What a stage is promised of ``checkpoint``: names, tries, loops, state, rhythm and failures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, OnClear
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    DuplicateNameError,
    InvalidConfigurationError,
    StaleAttemptError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.context import StageContext, StepReport
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultPlan, faulty_storage
from tests.messages import make_registration
from tests.spark.tries import JOB, PlannedError, Tries, ids

# Names


def test_a_name_that_is_used_twice_is_an_error_before_anything_is_computed(tries):
    with tries.failing() as checkpoint:
        checkpoint.snapshot("rows", tries.builder("first"))
        with pytest.raises(DuplicateNameError, match="'rows' is used twice"):
            checkpoint.snapshot("rows", tries.builder("second"))
        with pytest.raises(DuplicateNameError):
            checkpoint.each("rows", [1])
        with pytest.raises(DuplicateNameError):
            checkpoint.snapshot("rows", tries.builder("third"), when=False)
    assert tries.take_computed() == ["first"]


def test_a_name_may_be_used_again_after_its_step_has_failed(tries):
    with tries.open() as checkpoint:
        with pytest.raises(InvalidConfigurationError):
            checkpoint.snapshot("rows", lambda: None)
        with pytest.raises(InvalidConfigurationError):
            checkpoint.iterate("rows", lambda: None, 1, step=lambda frame, _: frame)
        assert ids(checkpoint.snapshot("rows", tries.builder("rows"))) == [0, 1, 2]


@pytest.mark.soak
def test_a_name_may_be_used_again_in_each_item_and_outside_with_data_of_its_own(tries):
    with tries.open() as checkpoint:
        found = [ids(checkpoint.snapshot("rows", tries.builder("outside", rows=1)))]
        for item in checkpoint.each("items", [2, 3]):
            found.append(ids(checkpoint.snapshot("rows", tries.builder(f"item {item}", rows=item))))
            with pytest.raises(DuplicateNameError, match=rf"items\[{item}\]/rows"):
                checkpoint.snapshot("rows", tries.builder("never"))
    assert found == [[0], [0, 1], [0, 1, 2]]
    assert [step.name for step in checkpoint.steps] == ["rows", "items[2]/rows", "items[3]/rows"]


@pytest.mark.parametrize("build", [lambda: 7, lambda: None], ids=["number", "nothing"])
def test_a_step_that_gives_no_dataframe_is_refused(tries, build):
    with tries.failing() as checkpoint, pytest.raises(InvalidConfigurationError, match="Spark DataFrame"):
        checkpoint.snapshot("rows", build)


# Steps


def test_a_restored_step_is_not_built_and_gives_what_was_written(tries):
    with tries.failing() as checkpoint:
        assert not checkpoint.is_restored()
        assert checkpoint.restored is None
        first = ids(checkpoint.snapshot("rows", tries.builder("rows", rows=5)))
    assert tries.take_computed() == ["rows"]
    with tries.open() as checkpoint:
        assert checkpoint.is_restored()
        assert checkpoint.restored is not None
        assert checkpoint.restored.checkpoint_id == 1
        assert ids(checkpoint.snapshot("rows", tries.builder("rows", rows=5))) == first == [0, 1, 2, 3, 4]
    assert tries.take_computed() == []


def test_a_step_that_opts_out_is_computed_in_each_try_and_never_written(tries):
    for _ in range(2):
        with tries.failing() as checkpoint:
            frame = checkpoint.snapshot("cheap", tries.builder("cheap"), when=False)
            assert ids(frame) == [0, 1, 2]
            assert checkpoint.steps == []
        assert tries.take_computed() == ["cheap"]
    assert tries.files() == set()
    assert tries.view().checkpoints == ()


def chain(tries: Tries, checkpoint: StageContext, version: str | None = None) -> list[int]:
    """``tail`` is built on ``head``, ``apart`` on nothing."""
    head = checkpoint.snapshot("head", tries.builder("head", rows=6), version=version)

    def tail() -> DataFrame:
        tries.computed.append("tail")
        return head.where("id % 2 = 0")

    apart = checkpoint.snapshot("apart", tries.builder("apart", rows=2))
    return ids(checkpoint.snapshot("tail", tail)) + ids(apart)


@pytest.mark.soak
def test_another_version_computes_this_step_and_what_is_built_on_it_and_keeps_the_rest(tries, caplog):
    with tries.failing() as checkpoint:
        chain(tries, checkpoint, "1")
    assert tries.take_computed() == ["head", "apart", "tail"]
    with tries.failing() as checkpoint:
        chain(tries, checkpoint, "1")
    assert tries.take_computed() == []
    with caplog.at_level(logging.WARNING), tries.failing() as checkpoint:
        assert chain(tries, checkpoint, "2") == [0, 2, 4, 0, 1]
    assert tries.take_computed() == ["head", "tail"]
    changed = [record.getMessage() for record in caplog.records if "changed since" in record.getMessage()]
    assert [text.split()[1] for text in changed] == ["head", "tail"]
    with tries.open() as checkpoint:
        chain(tries, checkpoint, "2")
    assert tries.take_computed() == []


SOURCE = """
def head(spark, computed):
    def build():
        computed.append("head")
        return spark.range({rows}).coalesce(1)
    return build
"""
MOVED = '''
# A comment, and lines that move everything down.


def head(spark, computed):
    """A docstring."""

    def build():
        """Another one."""
        # A comment.
        computed.append("head")

        return spark.range({rows}).coalesce(1)

    return build
'''


def written_down(tries: Tries, source: str, rows: int) -> Callable[[], DataFrame]:
    names: dict[str, Any] = {"__name__": "user_code"}
    exec(source.format(rows=rows), names)
    build: Callable[[], DataFrame] = names["head"](tries.spark, tries.computed)
    return build


def coded(tries: Tries, checkpoint: StageContext, source: str, rows: int) -> list[int]:
    head = checkpoint.snapshot("head", written_down(tries, source, rows))

    def tail() -> DataFrame:
        tries.computed.append("tail")
        return head.where("id >= 2")

    checkpoint.snapshot("apart", tries.builder("apart"))
    return ids(checkpoint.snapshot("tail", tail))


def test_changed_code_computes_this_step_and_what_is_built_on_it_and_keeps_the_rest(tries):
    with tries.failing() as checkpoint:
        assert coded(tries, checkpoint, SOURCE, 4) == [2, 3]
    assert tries.take_computed() == ["head", "apart", "tail"]
    with tries.failing() as checkpoint:
        assert coded(tries, checkpoint, MOVED, 4) == [2, 3]
    assert tries.take_computed() == []
    with tries.open() as checkpoint:
        assert coded(tries, checkpoint, SOURCE, 5) == [2, 3, 4]
    assert tries.take_computed() == ["head", "tail"]


def test_what_is_built_on_a_step_is_computed_again_after_a_change_that_was_taken_back(tries):
    with tries.failing() as checkpoint:
        chain(tries, checkpoint, "1")
    with tries.failing() as checkpoint:
        checkpoint.snapshot("head", tries.builder("changed"), version="2")
    tries.take_computed()
    with tries.open() as checkpoint:
        chain(tries, checkpoint, "1")
    assert tries.take_computed() == ["head", "tail"]


def test_a_query_of_dataframes_is_the_same_step_in_each_try(tries):
    def run(checkpoint: StageContext) -> list[bool]:
        head = checkpoint.snapshot("head", tries.builder("head"))
        checkpoint.snapshot("query", tries.spark.sql("SELECT id + 1 AS id FROM {head}", head=head))
        return [step.is_restored for step in checkpoint.steps]

    with tries.failing() as checkpoint:
        run(checkpoint)
    with tries.open() as checkpoint:
        assert run(checkpoint) == [True, True]


@pytest.mark.soak
def test_on_clear_resume_keeps_changed_steps(tries):
    with tries.failing() as checkpoint:
        coded(tries, checkpoint, SOURCE, 4)
    tries.take_computed()
    with tries.open(on_clear=OnClear.RESUME) as checkpoint:
        assert coded(tries, checkpoint, SOURCE, 5) == [2, 3]
    assert tries.take_computed() == []


def test_on_clear_restart_keeps_nothing(tries):
    with tries.failing() as checkpoint:
        chain(tries, checkpoint)
        checkpoint.state["n"] = 1
        checkpoint.checkpoint()
    tries.take_computed()
    with tries.open(on_clear=OnClear.RESTART) as checkpoint:
        assert not checkpoint.is_restored()
        assert dict(checkpoint.state) == {}
        chain(tries, checkpoint)
    assert tries.take_computed() == ["head", "apart", "tail"]


@pytest.mark.soak
def test_a_step_that_a_later_try_does_not_ask_for_goes_when_the_stage_has_ended(tries):
    with tries.failing() as checkpoint:
        chain(tries, checkpoint)
    with tries.open(num_retained=1) as checkpoint:
        checkpoint.snapshot("apart", tries.builder("apart", rows=2))
    assert tries.take_computed() == ["head", "apart", "tail"]
    assert {name.split("/")[2].partition("-")[0] for name in tries.files() if name.startswith("shared/")} == {"apart"}


def test_a_run_after_a_success_starts_over(tries):
    for _ in range(2):
        with tries.open() as checkpoint:
            assert not checkpoint.is_restored()
            assert dict(checkpoint.state) == {}
            checkpoint.snapshot("rows", tries.builder("rows"))
            for item in checkpoint.each("items", [1, 2]):
                tries.computed.append(f"item {item}")
            checkpoint.state["n"] = 1
        assert tries.take_computed() == ["rows", "item 1", "item 2"]
    assert [a.status for a in tries.view().attempts] == [AttemptStatus.FINISHED] * 2


def test_another_run_keeps_state_and_finished_items_and_computes_every_snapshot(tries):
    def stage(checkpoint: StageContext, items: list[int]) -> None:
        checkpoint.snapshot("rows", tries.builder("rows"))
        for item in checkpoint.each("items", items):
            tries.computed.append(f"item {item}")
            checkpoint.state["sum"] = checkpoint.state.get("sum", 0) + item

    with tries.open(run="monday") as checkpoint:
        stage(checkpoint, [1, 2])
    assert tries.take_computed() == ["rows", "item 1", "item 2"]
    with tries.open(run="tuesday") as checkpoint:
        stage(checkpoint, [1, 2, 3])
        assert checkpoint.state["sum"] == 6
    assert tries.take_computed() == ["rows", "item 3"]


def test_steps_report_and_say_what_was_restored_and_how_much_time_that_saved(tries, caplog):
    caplog.set_level(logging.INFO)

    def slow() -> Any:
        tries.monotonic.seconds += 33.5
        return tries.spark.range(4).coalesce(1)

    with tries.failing() as checkpoint:
        checkpoint.snapshot("slow", slow)
        (first,) = checkpoint.steps
    assert first == StepReport(name="slow", is_restored=False, seconds=33.5, size_bytes=first.size_bytes, rows=4)
    with tries.failing() as checkpoint:
        checkpoint.snapshot("slow", slow)
        checkpoint.snapshot("empty", lambda: tries.spark.range(0).coalesce(1))
        again, empty = checkpoint.steps
    assert again == StepReport(name="slow", is_restored=True, seconds=33.5, size_bytes=first.size_bytes, rows=4)
    assert (empty.name, empty.is_restored, empty.seconds, empty.rows) == ("empty", False, 0.0, 0)
    sizes = [f.stat().st_size for f in tries.checkpoints.glob("*/shared/*/slow-*/*/**/*") if f.is_file()]
    assert 0 < first.size_bytes <= sum(sizes)
    assert [line for line in caplog.messages if line.startswith("Step slow")] == [
        "Step slow: computing",
        f"Step slow computed in 34 s: 4 rows, {first.size_bytes:,} bytes",
        f"Step slow restored: 4 rows, {first.size_bytes:,} bytes; saved 34 s",
    ]


# Loops


def test_a_loop_says_how_many_items_were_restored_and_how_much_time_that_saved(tries, caplog):
    caplog.set_level(logging.INFO)

    def work(items: list[str], fails_at: str | None = None) -> None:
        with tries.failing() as checkpoint:
            for item in checkpoint.each("items", items):
                tries.monotonic.seconds += 30.0
                if item == fails_at:
                    return

    work(["a", "gone", "b", "c"], fails_at="c")
    assert [line for line in caplog.messages if line.startswith("Loop items")] == []
    work(["a", "b", "c", "d"])
    assert [line for line in caplog.messages if line.startswith("Loop items")] == [
        "Loop items restored: 2 of 4 items; saved 60 s"
    ]


def test_items_may_come_and_go_between_tries(tries):
    with tries.failing() as checkpoint:
        for item in checkpoint.each("items", ["a", "b", "gone", "c"]):
            if item == "c":
                raise PlannedError
            tries.computed.append(item)
    assert tries.take_computed() == ["a", "b", "gone"]
    with tries.open() as checkpoint:
        worked = list(checkpoint.each("items", ["new", "b", "c", "a"]))
    assert worked == ["new", "c"]


def test_items_follow_the_dataframes_that_their_body_uses(tries):
    def stage(checkpoint: StageContext, rows: int, others: int = 1) -> None:
        raw = checkpoint.snapshot("raw", tries.spark.range(rows))
        checkpoint.snapshot("other", tries.spark.range(others))
        total = raw.count()
        for item in checkpoint.each("counted", ["a"]):
            tries.computed.append(f"{item} {raw.count()}")
        for item in checkpoint.each("collected", ["b"]):
            tries.computed.append(f"{item} {total}")

    for rows, others, expected in ((2, 1, ["a 2", "b 2"]), (2, 1, []), (2, 2, []), (3, 2, ["a 3", "b 3"])):
        with tries.failing() as checkpoint:
            stage(checkpoint, rows, others)
        assert tries.take_computed() == expected


def test_snapshots_of_the_unfinished_item_are_restored_in_it_and_those_of_finished_ones_are_dropped(tries):
    def stage(checkpoint: StageContext, fail: bool) -> None:
        for item in checkpoint.each("items", [1, 2]):
            checkpoint.snapshot("rows", tries.builder(f"rows {item}", rows=item))
            if fail and item == 2:
                raise PlannedError

    with pytest.raises(PlannedError), tries.open() as checkpoint:
        stage(checkpoint, fail=True)
    with tries.open(num_retained=1) as checkpoint:
        stage(checkpoint, fail=False)
    assert tries.take_computed() == ["rows 1", "rows 2"]
    assert [(s.name, s.is_restored) for s in checkpoint.steps] == [("items[2]/rows", True)]
    assert not [name for name in tries.files() if name.startswith("shared/")]


def test_a_snapshot_of_a_finished_item_can_be_read_until_the_try_ends(tries):
    with tries.open(num_retained=1) as checkpoint:
        items = checkpoint.each("items", [1, 2, 3])
        frames = [checkpoint.snapshot("rows", tries.builder("rows", rows=item)) for item in items]
        assert [frame.count() for frame in frames] == [1, 2, 3]


def test_loops_nest_and_go_on_within_the_item(tries):
    def stage(checkpoint: StageContext, fail_at: str) -> None:
        for day in checkpoint.each("days", ["mon", "tue"]):
            for hour in checkpoint.each("hours", [1, 2]):
                tries.computed.append(f"{day} {hour}")
                if tries.computed[-1] == fail_at:
                    raise PlannedError

    with pytest.raises(PlannedError), tries.open() as checkpoint:
        stage(checkpoint, "tue 2")
    assert tries.take_computed() == ["mon 1", "mon 2", "tue 1", "tue 2"]
    with tries.open() as checkpoint:
        stage(checkpoint, "")
    assert tries.take_computed() == ["tue 2"]


def test_a_break_leaves_its_item_unfinished_and_keeps_those_before(tries):
    with tries.failing() as checkpoint:
        for item in checkpoint.each("items", [1, 2, 3]):
            if item == 2:
                break
        checkpoint.snapshot("after", tries.builder("after"))
        assert checkpoint.steps[-1].name == "after"
    with tries.open() as checkpoint:
        assert list(checkpoint.each("items", [1, 2, 3])) == [2, 3]


def test_an_error_that_the_body_raises_leaves_its_item_unfinished(tries):
    def divide(checkpoint: StageContext, least: int) -> None:
        for item in checkpoint.each("items", [1, 0, 2]):
            tries.computed.append(item)
            checkpoint.state["quotient"] = 1 / max(item, least)

    with tries.failing() as checkpoint:
        with pytest.raises(ZeroDivisionError):
            divide(checkpoint, least=0)
        checkpoint.snapshot("after", tries.builder("after"))
        assert checkpoint.steps[-1].name == "after"
    assert tries.take_computed() == [1, 0, "after"]
    with tries.open() as checkpoint:
        divide(checkpoint, least=1)
    assert tries.take_computed() == [0, 2]


@pytest.mark.parametrize(("items", "every", "expected"), [(7, 1, 7), (7, 3, 3), (6, 3, 2), (2, 5, 1), (0, 1, 0)])
def test_a_checkpoint_is_taken_after_so_many_items_and_at_the_end_of_the_loop(tries, items, every, expected):
    with tries.failing() as checkpoint:
        worked = list(checkpoint.each("items", range(items), every=every))
        assert tries.completed() == expected
    assert worked == list(range(items))


def test_items_since_the_last_checkpoint_are_worked_again(tries):
    with tries.failing() as checkpoint:
        for item in checkpoint.each("items", range(6), every=2):
            if item == 5:
                raise PlannedError
    with tries.open() as checkpoint:
        assert list(checkpoint.each("items", range(6), every=2)) == [4, 5]


def test_a_checkpoint_is_taken_when_the_last_one_is_older_than_asked_for(tries):
    taken_after = []
    with tries.failing() as checkpoint:
        before = 0
        for item in checkpoint.each("items", range(1, 8), every=100, every_seconds=10.0):
            if tries.completed() > before:
                before += 1
                taken_after.append(item - 1)
            tries.monotonic.seconds += 5.0 if item < 5 else 20.0
        assert tries.completed() == before + 1
    assert taken_after == [2, 4, 5, 6]


@pytest.mark.parametrize(
    ("rhythm", "message"),
    [
        ({"every": 0}, "every to be a whole number of at least 1"),
        ({"every": -1}, "every to be a whole number of at least 1"),
        ({"every_seconds": timedelta(seconds=5)}, "every_seconds to be a number of seconds"),
    ],
)
def test_a_rhythm_out_of_range_is_refused(tries, rhythm, message):
    with tries.failing() as checkpoint, pytest.raises(InvalidConfigurationError, match=message):
        checkpoint.each("items", [1], **rhythm)


def test_bad_items_are_refused_before_the_first_is_worked_on(tries):
    with tries.failing() as checkpoint:
        with pytest.raises(DuplicateNameError, match="Expected a unique key for each item"):
            checkpoint.each("twice", [1, 2, "1"])
        with pytest.raises(InvalidConfigurationError, match="pass key="):
            checkpoint.each("keyless", [{"a": 1}])
        assert list(checkpoint.each("keyed", [{"a": 1}], key=lambda item: item["a"])) == [{"a": 1}]


# State

VALUES: dict[str, Any] = {
    "nothing": None,
    "flag": True,
    "count": -(10**30),
    "late": datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001 - a time without a zone has a fold too
    "pairs": {("eu", 1): Decimal("2.50"), ("us", date(2026, 1, 1)): [b"x", (1, "1")]},
}


def test_state_is_restored_with_its_types(tries):
    with tries.failing() as checkpoint:
        checkpoint.state.update(VALUES)
        checkpoint.checkpoint()
        checkpoint.state["count"] = 0
    with tries.failing() as checkpoint:
        # ``1`` and ``True`` are equal, their texts are not.
        assert repr(dict(checkpoint.state)) == repr(VALUES)
        assert checkpoint.state["late"].fold == 1
        del checkpoint.state["pairs"]
        checkpoint.checkpoint()
    with tries.open() as checkpoint:
        assert "pairs" not in checkpoint.state
        assert len(checkpoint.state) == len(VALUES) - 1


def test_a_value_that_could_not_be_restored_is_refused_where_it_is_set(tries):
    with tries.failing() as checkpoint:
        with pytest.raises(UnsupportedStateError, match=r"state\['where'\]"):
            checkpoint.state["where"] = Path("/")
        assert "where" not in checkpoint.state


def test_a_change_inside_a_collection_is_saved_too(tries):
    with tries.failing() as checkpoint:
        checkpoint.state["seen"] = []
        for item in checkpoint.each("items", [1, 2]):
            checkpoint.state["seen"].append(item)
    with tries.open() as checkpoint:
        assert checkpoint.state["seen"] == [1, 2]


def test_what_is_not_saved_at_the_end_is_saved_by_finishing_and_nothing_is_saved_twice(tries):
    with tries.open() as checkpoint:
        checkpoint.state["n"] = 1
        checkpoint.checkpoint()
        checkpoint.state["n"] = 2
    assert tries.completed() == 2
    with tries.open(run="next") as checkpoint:
        assert checkpoint.state["n"] == 2
    assert tries.completed() == 2


def test_a_stage_that_saves_nothing_takes_no_checkpoint(tries):
    with tries.open():
        pass
    assert tries.view().checkpoints == ()
    assert [a.status for a in tries.view().attempts] == [AttemptStatus.FINISHED]


# Failures


class Checkpoints:
    """Takes checkpoints of a stage whose storage can be told to fail at the next write."""

    def __init__(self, tries: Tries, tolerable: int) -> None:
        self.plan = FaultPlan()
        storage = faulty_storage(CheckpointStorage.open(str(tries.checkpoints)), self.plan)
        registration = make_registration(job_name=JOB, storage_base=storage.base_uri)
        gateway = open_gateway(tries.metadata)
        attempt = StageAttempt(gateway, storage, registration, tolerable_failed_checkpoints=tolerable)
        self.context = StageContext(tries.spark, attempt)

    def take(self, *, fails: bool) -> bool:
        """Take one and tell whether it was completed."""
        self.plan.point = len(self.plan.calls) + 1 if fails else None
        self.context.state["taken"] = self.context.state.get("taken", 0) + 1
        return self.context.checkpoint() is not None


def test_any_number_of_failed_checkpoints_is_tolerated_with_a_warning_each(tries, caplog):
    checkpoints = Checkpoints(tries, tolerable=-1)
    with caplog.at_level(logging.WARNING):
        assert [checkpoints.take(fails=True) for _ in range(5)] == [False] * 5
    assert sum("the stage continues without it" in r.getMessage() for r in caplog.records) == 5
    assert checkpoints.take(fails=False)
    checkpoints.context.finish()
    *failed, last = tries.view().checkpoints
    assert {c.status for c in failed} == {CheckpointStatus.ABORTED}
    assert {c.failure_reason for c in failed} == {"io_exception"}
    assert last.status is CheckpointStatus.COMPLETED
    assert tries.files() == {f"chk-{last.checkpoint_id}/_metadata"}


def test_one_failed_checkpoint_too_many_in_a_row_fails_the_stage(tries):
    checkpoints = Checkpoints(tries, tolerable=1)
    taken = [checkpoints.take(fails=fails) for fails in (True, False, True, False, True)]
    assert taken == [False, True, False, True, False]
    with pytest.raises(CheckpointDeclinedError, match=r"2 checkpoints in a row failed.*Injected fault") as raised:
        checkpoints.take(fails=True)
    assert raised.value.__cause__ is not None


def test_a_step_whose_checkpoint_failed_is_saved_with_the_next_one(tries):
    checkpoints = Checkpoints(tries, tolerable=-1)
    context = checkpoints.context
    begun = len(checkpoints.plan.calls)
    context.snapshot("first", tries.builder("first"))
    writing = [n for n, call in enumerate(checkpoints.plan.calls[begun:], 1) if call == "write_bytes"]
    # A step writes its manifest and then the checkpoint's metadata.
    checkpoints.plan.point = len(checkpoints.plan.calls) + writing[1]
    context.snapshot("second", tries.builder("second"))
    assert checkpoints.plan.calls[checkpoints.plan.point - 1] == "write_bytes"
    assert tries.completed() == 1
    assert checkpoints.take(fails=False)
    context.fail(PlannedError("end"))
    assert tries.take_computed() == ["first", "second"]
    latest = tries.view().checkpoints[-1]
    assert latest.counts["snapshots"] == 2
    assert latest.state_size_bytes > context.steps[1].size_bytes


def test_a_try_that_was_replaced_stops_at_its_next_checkpoint(tries):
    old = tries.open()
    old.state["n"] = 1
    assert old.checkpoint() is not None
    with tries.open() as new:
        assert new.state["n"] == 1
        with pytest.raises(StaleAttemptError):
            old.checkpoint()
        new.state["n"] = 2
    old.fail(PlannedError("late"))
    assert [a.status for a in tries.view().attempts] == [AttemptStatus.FENCED, AttemptStatus.FINISHED]


def test_a_failure_says_in_one_line_what_a_retry_will_find(tries, caplog):
    with caplog.at_level(logging.ERROR), tries.failing() as checkpoint:
        assert checkpoint.kept() == (
            "Job 'context' retains no checkpoint: none was completed; the next try starts from the beginning."
        )
        checkpoint.snapshot("rows", tries.builder("rows"))
        for _ in checkpoint.each("items", [1, 2]):
            pass
    latest = tries.view().checkpoints[-1]
    kept = checkpoint.kept()
    assert "\n" not in kept
    assert kept == (
        f"Job 'context' retains checkpoint 3: 1 snapshot, 2 finished items, {latest.full_size_bytes:,} bytes. The next "
        f"try resumes from it. Restore pointer: {latest.location}"
    )
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [kept]
    (attempt,) = tries.view().attempts
    assert (attempt.status, attempt.message) == (AttemptStatus.FAILED, "PlannedError: ")


def test_a_try_that_fails_before_its_first_own_checkpoint_still_names_the_restored_one(tries):
    with tries.failing() as checkpoint:
        checkpoint.snapshot("rows", tries.builder("rows"))
    with tries.failing() as checkpoint:
        assert "retains checkpoint 1: 1 snapshot" in checkpoint.kept()
