"""What a stage does if files changed since they were listed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import SourceChangedError
from airflow_provider_statecheck.spark.connectors.source import Changes, OnChange, compare, describe_changes, reconcile
from airflow_provider_statecheck.state.source_items import Intervals, Item, Ledger, Partial

FAIL, IGNORE, RESTART = OnChange


def files(**versions):
    return tuple(Item.of(name, 10, version) for name, version in versions.items())


# a and b are finished, c in part, d not at all.
BEFORE = Ledger(files(a=1, b=1, c=1, d=1), Intervals.of([0, 1]), {2: Partial(Intervals.of([0]), 5)})
SAME = BEFORE.items
APPEARED = files(a=1, b=1, c=1, d=1, e=1)
FINISHED_VANISHED = files(a=1, c=1, d=1)
FINISHED_CHANGED = files(a=1, b=2, c=1, d=1)
UNREAD_CHANGED = files(a=1, b=1, c=1, d=2)
UNREAD_VANISHED = files(a=1, b=1, c=1)
PART_CHANGED = files(a=1, b=1, c=2, d=1)


def names(ledger):
    return [item.name for item in ledger.items]


def finished(ledger):
    return {ledger.items[i].name for i in ledger.finished}


def in_part(ledger):
    return {ledger.items[i].name: part for i, part in ledger.partial.items()}


@pytest.mark.parametrize("on_change", OnChange)
@pytest.mark.parametrize("new_run", [False, True])
def test_the_same_files_go_on_as_they_were(on_change, new_run):
    assert reconcile(BEFORE, SAME, on_change=on_change, new_run=new_run) == BEFORE


@pytest.mark.parametrize("now", [FINISHED_VANISHED, FINISHED_CHANGED])
def test_finished_files_may_vanish_or_change_where_changes_are_ignored(now):
    ledger = reconcile(BEFORE, now, on_change=IGNORE, new_run=False)
    assert (names(ledger), finished(ledger)) == (["a", "b", "c", "d"], {"a", "b"})


@pytest.mark.parametrize("new_run", [False, True])
@pytest.mark.parametrize("now", [UNREAD_VANISHED, PART_CHANGED])
def test_what_is_still_to_be_read_must_be_there_and_rests_be_the_same_whatever_the_user_says(now, new_run):
    with pytest.raises(SourceChangedError, match="still to be read"):
        reconcile(BEFORE, now, on_change=IGNORE, new_run=new_run)


@pytest.mark.parametrize("on_change", OnChange)
def test_a_new_run_forgets_finished_files_that_were_deleted(on_change):
    ledger = reconcile(BEFORE, files(b=1, c=1, d=1, e=1), on_change=on_change, new_run=True)
    assert names(ledger) == ["b", "c", "d", "e"]
    assert (finished(ledger), in_part(ledger)) == ({"b"}, {"c": Partial(Intervals.of([0]), 5)})


def test_a_new_run_without_any_files_forgets_none():
    before = Ledger(files(a=1, b=1), Intervals.of([0, 1]))
    unmounted = reconcile(before, (), on_change=FAIL, new_run=True)
    assert not reconcile(unmounted, before.items, on_change=FAIL, new_run=True).unfinished


def test_a_new_run_fails_if_a_finished_file_changed():
    with pytest.raises(SourceChangedError, match="b changed"):
        reconcile(BEFORE, FINISHED_CHANGED, on_change=FAIL, new_run=True)


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_a_comparison_finds_each_difference_once(before, now, changed):
    found = compare(files(**{f"f{i}": 1 for i in before}), files(**{f"f{i}": 2 if i in changed else 1 for i in now}))
    assert {item.name for item in found.appeared} == {f"f{i}" for i in now - before}
    assert {item.name for item in found.vanished} == {f"f{i}" for i in before - now}
    assert {item.name for item in found.changed} == {f"f{i}" for i in before & now & changed}


def test_a_message_names_five_files_of_each_kind_at_least_one():
    many = Changes(appeared=files(**{f"new{i}": 1 for i in range(9)}), vanished=files(x=1, y=1), changed=files(z=1))
    text = describe_changes(many)
    assert text == "new0 appeared, new1 appeared, new2 appeared, x vanished, z changed and 7 more"


def test_a_message_hides_what_a_uri_has_of_credentials():
    found = describe_changes(Changes(vanished=(Item.of("s3://user:secret@lake/x", 1, ""),)))
    assert found == "s3://***@lake/x vanished"
