"""Which run of a job came before which, and which checkpoints retention keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_statecheck.checkpoint.fencing import checkpoints_before_run, is_earlier_run
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus
from airflow_provider_statecheck.checkpoint.retention import subsumed_by_retention
from tests.unit.checkpoint.completed_rows import completed


@pytest.mark.parametrize(
    ("run", "other"),
    [
        ("2026-01-01", "2026-01-02"),
        ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00"),
        ("2026-01-01T01:00:00+02:00", "2026-01-01T00:00:00+00:00"),
        ("2026-01-01", "2026-01-01T06:00:00+00:00"),
        ("2025-12-31T23:59:59.999999+00:00", "2026-01-01"),
    ],
)
def test_of_two_logical_dates_the_lower_one_is_earlier(run, other):
    assert is_earlier_run(run, other)
    assert not is_earlier_run(other, run)


def test_a_date_is_not_earlier_than_itself_however_it_is_written():
    assert not is_earlier_run("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    "name", ["", "script", "20260101", "1", "asset_triggered__2026-01-01", "2026-01-01x", "2026-13-01", "2026-W01"]
)
def test_what_is_no_date_is_neither_earlier_nor_later(name):
    assert not is_earlier_run(name, "2099-01-01")
    assert not is_earlier_run("1999-01-01", name)


@pytest.mark.parametrize(
    ("taken", "run", "left"),
    [
        ("1 2 2 3", "2", "1"),
        ("1 2 4", "3", "1 2"),
        ("1 2 a", "a", "1 2"),
        ("1 a 3", "3", "1 a"),
        # Nobody knows whether a run without a date came before one that took nothing.
        ("1 a", "2", "1"),
        # What stands behind a later run has that one in its state, whatever its own date is.
        ("2 5 a 3", "4", "2"),
        ("3 4", "2", ""),
        ("a b", "2", ""),
        ("", "2", ""),
    ],
)
def test_what_had_been_taken_when_a_run_began(taken, run, left):
    def named(names):
        return [f"2026-01-0{name}" if name.isdigit() else name for name in names.split()]

    newest_first = [completed(number, run_key=key) for number, key in reversed(list(enumerate(named(taken), 1)))]
    found = checkpoints_before_run(newest_first, named(run)[0])
    assert [c.run_key for c in reversed(found)] == named(left)


def test_a_run_may_be_named_by_its_date_in_another_form():
    taken = [completed(9 - n, run_key=f"2026-01-0{n}T00:00:00+00:00") for n in (4, 3, 3, 2)]
    assert [c.run_key for c in checkpoints_before_run(taken, "2026-01-03")] == ["2026-01-02T00:00:00+00:00"]


def of_runs(runs: str, num_retained: int, retained_runs: int) -> list[int]:
    """Take checkpoints by the runs that took them, as text such as ``a a b!``: a restore could not use the last one."""
    rows = [
        completed(number, "damaged" if run.endswith("!") else None, run_key=run.rstrip("!"))
        for number, run in enumerate(runs.split(), 1)
    ]
    return [c.checkpoint_id for c in subsumed_by_retention(rows, num_retained, retained_runs)]


def subsumed(checkpoints: str, num_retained: int) -> list[int]:
    """Take checkpoints as text such as ``1 2! 5+``: a restore could not use 2, and a sink has not committed 5."""
    rows = [
        completed(int(c.rstrip("!+")), "damaged" if c.endswith("!") else None, has_open_commit="+" in c)
        for c in checkpoints.split()
    ]
    return [c.checkpoint_id for c in subsumed_by_retention(rows, num_retained, 1)]


@pytest.mark.parametrize(
    ("checkpoints", "num_retained", "expected"),
    [
        ("", 1, []),
        ("1", 1, []),
        ("1 2", 1, [1]),
        ("1 2", 2, []),
        ("1 2 3", 2, [1]),
        ("2 5 9 11", 1, [2, 5, 9]),
        ("1 2", 100, []),
    ],
)
def test_the_newest_are_kept(checkpoints, num_retained, expected):
    assert subsumed(checkpoints, num_retained) == expected


@pytest.mark.parametrize(
    ("checkpoints", "num_retained", "expected"),
    [
        ("1 2!", 1, []),
        ("1 2! 3", 2, []),
        ("1 2! 3", 1, [1, 2]),
        ("1 2! 3 4", 2, [1, 2]),
        ("1! 2! 3!", 1, []),
        ("1! 2 3!", 1, []),
        ("1! 2 3", 1, [1, 2]),
        ("1 2 3!", 1, [1]),
    ],
)
def test_an_unusable_one_takes_no_place_and_goes_when_the_oldest_kept_is_newer(checkpoints, num_retained, expected):
    assert subsumed(checkpoints, num_retained) == expected


@pytest.mark.parametrize(
    ("checkpoints", "num_retained", "expected"),
    [
        ("1 2+ 3", 1, [1]),
        ("1+ 2+ 3+", 1, []),
        ("1 2+ 3+ 4+", 2, [1]),
        ("1 2 3+", 2, [1]),
        ("1! 2+ 3", 1, []),
        ("1+ 2! 3", 1, []),
        ("1+! 2 3", 1, [1, 2]),
    ],
)
def test_one_that_a_sink_has_not_committed_stays_beyond_their_number(checkpoints, num_retained, expected):
    assert subsumed(checkpoints, num_retained) == expected


def test_a_savepoint_takes_no_place_and_never_goes():
    savepoint = CheckpointProperties.for_savepoint()
    rows = [completed(1), completed(2, properties=savepoint), completed(3), completed(4, properties=savepoint)]
    assert [c.checkpoint_id for c in subsumed_by_retention(rows, 1, 1)] == [1]
    assert subsumed_by_retention(rows[1:2], 1, 1) == []


def test_a_savepoint_restored_without_a_claim_is_subsumed_like_any_and_keeps_its_bytes():
    restored = completed(1, properties=CheckpointProperties.for_unclaimed_snapshot())
    assert subsumed_by_retention([restored, completed(2), completed(3)], 2, 1) == [restored]
    assert not replace(restored, status=CheckpointStatus.SUBSUMED).awaits_discard


def test_the_first_one_of_a_new_generation_subsumes_all_of_the_old():
    rows = [completed(1), completed(2), completed(3, generation=2)]
    assert [c.checkpoint_id for c in subsumed_by_retention(rows, 2, 1)] == [1, 2]


@pytest.mark.parametrize(
    ("runs", "num_retained", "retained_runs", "expected"),
    [
        ("a a b b", 1, 0, [1, 2, 3]),
        ("a a b b", 1, 1, [1, 3]),
        ("a a b b", 3, 1, [1]),
        ("a b c d", 1, 1, [1, 2]),
        ("a b c d", 1, 2, [1]),
        ("a b c d", 1, 9, []),
        ("a b a", 1, 1, [1]),
        ("a a", 1, 1, [1]),
    ],
)
def test_the_last_one_of_each_of_the_last_runs_is_kept_beside_the_newest(runs, num_retained, retained_runs, expected):
    assert of_runs(runs, num_retained, retained_runs) == expected


def test_one_that_a_restore_could_not_use_is_not_the_last_of_its_run():
    assert of_runs("a a! b b", 1, 1) == [3]
    assert of_runs("a! b b", 1, 1) == [1, 2]


def test_the_runs_of_an_earlier_generation_are_not_kept():
    rows = [completed(1, run_key="a"), completed(2, generation=2, run_key="b")]
    assert [c.checkpoint_id for c in subsumed_by_retention(rows, 1, 1)] == [1]
