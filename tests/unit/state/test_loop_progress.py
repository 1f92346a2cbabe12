from __future__ import annotations

import json

from airflow_provider_statecheck.state.progress import LoopProgress, StepKey, describe

DAYS: StepKey = ((), "days")
HOURS: StepKey = ((("days", "1"),), "hours")


def test_an_item_is_finished_in_its_own_loop_only():
    progress = LoopProgress()
    progress.finish(DAYS, "1")
    assert progress.is_finished(DAYS, "1")
    assert not progress.is_finished(DAYS, "2")
    assert not progress.is_finished(((), "hours"), "1")
    assert not progress.is_finished(((("days", "1"),), "days"), "1")
    assert progress.finished_items == 1


def test_what_was_finished_inside_an_item_is_forgotten_with_it():
    progress = LoopProgress()
    other: StepKey = ((("days", "2"),), "hours")
    deeper: StepKey = ((("days", "1"), ("hours", "7")), "minutes")
    for loop in (HOURS, deeper, other):
        progress.finish(loop, "7")
    progress.finish(DAYS, "1")
    assert not progress.is_finished(HOURS, "7")
    assert not progress.is_finished(deeper, "7")
    assert progress.is_finished(other, "7")
    assert progress.finished_items == 2


def test_progress_survives_json_and_does_not_depend_on_order():
    one, other = LoopProgress(), LoopProgress()
    for loop, key in [(HOURS, "7"), (DAYS, "3"), (DAYS, "2")]:
        one.finish(loop, key)
    for loop, key in [(DAYS, "2"), (DAYS, "3"), (HOURS, "7")]:
        other.finish(loop, key)
    assert one.encode() == other.encode()
    restored = LoopProgress(json.loads(json.dumps(one.encode())))
    assert restored.encode() == one.encode()
    assert restored.is_finished(HOURS, "7")
    assert restored.is_finished(DAYS, "3")
    assert not restored.is_finished(DAYS, "7")


def test_no_progress_is_an_empty_list():
    assert LoopProgress().encode() == []
    assert LoopProgress().finished_items == 0


def test_a_step_is_described_with_its_items():
    assert describe(((), "x")) == "x"
    assert describe(((("days", "2026-01-01"), ("hours", "7")), "x")) == "days[2026-01-01]/hours[7]/x"
