"""Two handles on one table: who commits, and what becomes of the other."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId

from airflow_provider_statecheck.exceptions import CommitStateUnknownError, StaleAttemptError, StorageError
from airflow_provider_statecheck.spark.sinks import iceberg_sink
from airflow_provider_statecheck.spark.sinks.iceberg import iceberg_ledger
from tests.unit.spark.sinks.iceberg.tables import Attempt, append_as_somebody_else, ledger_in, seen_in, table_in

real_commit = iceberg_ledger.commit_change


def before_each_commit(monkeypatch, *acts):
    """Let something happen between the decision of a commit and the catalog."""
    waiting = list(acts)

    def commit(*args):
        if waiting:
            waiting.pop(0)()
        real_commit(*args)

    monkeypatch.setattr(iceberg_ledger, "commit_change", commit)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(iceberg_sink, "_LONGEST_PAUSE_SECONDS", 0)


def test_a_zombie_that_has_looked_already_is_refused_by_the_commit_itself(folder, monkeypatch):
    zombie = Attempt(folder, 1).open()
    written = zombie.write(1)
    second = Attempt(folder, 2)
    before_each_commit(monkeypatch, second.open)
    with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
        zombie.commit(1, written)
    assert seen_in(folder) == []
    second.add(1, 1)
    assert seen_in(folder) == [1]


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_zombie_that_opens_late_is_refused_by_the_commit_itself(folder, monkeypatch, is_empty):
    if not is_empty:
        append_as_somebody_else(folder, 100)
    zombie, second = Attempt(folder, 1), Attempt(folder, 2)
    before_each_commit(monkeypatch, second.open)
    with pytest.raises(StaleAttemptError):
        zombie.open()
    ledger = ledger_in(folder)
    assert ledger is not None
    assert set(ledger.starts) == {2}


def test_a_zombie_that_closes_late_takes_nothing_out(folder, monkeypatch):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    zombie = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    third = Attempt(folder, 3, restored=2, restored_epoch=1)
    before_each_commit(monkeypatch, third.open)
    with pytest.raises(StaleAttemptError):
        zombie.finish()
    third.finish()
    assert seen_in(folder) == [1, 2]


def test_a_commit_names_what_it_found_on_both_branches(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    with table_in(folder) as table:
        heads = {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
    named = []

    def commit(table, updates, requirements):
        named.append({r.ref: r.snapshot_id for r in requirements if isinstance(r, AssertRefSnapshotId)})
        real_call(table, updates, requirements)

    real_call = Table._do_commit
    monkeypatch.setattr(Table, "_do_commit", commit)
    attempt.add(1, 1)
    assert len(heads) == 2
    assert named == [heads]


def test_numbers_of_snapshots_never_go_down_when_somebody_commits_beside_an_opening(folder, monkeypatch):
    Attempt(folder, 1).open().add(1, 1)

    def others() -> None:
        append_as_somebody_else(folder, 100)
        append_as_somebody_else(folder, 101)

    before_each_commit(monkeypatch, others)
    Attempt(folder, 2, restored=1, restored_epoch=1).open()
    with table_in(folder) as table:
        numbers = [snapshot.sequence_number for snapshot in table.metadata.snapshots]
        assert len(numbers) == len(set(numbers))
        assert table.metadata.last_sequence_number == max(numbers)


def test_a_commit_of_somebody_else_in_between_is_kept(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    before_each_commit(monkeypatch, *[lambda key=key: append_as_somebody_else(folder, key) for key in (100, 101)])
    attempt.add(1, 1)
    assert seen_in(folder) == [1, 100, 101]


def test_a_commit_of_another_lineage_in_between_is_kept(folder, monkeypatch):
    other, attempt = Attempt(folder, 1, job="another").open(), Attempt(folder, 1).open()
    before_each_commit(monkeypatch, lambda: other.add(1, 50))
    attempt.add(1, 1)
    assert seen_in(folder) == [1, 50]
    other.add(2, 51)
    assert seen_in(folder) == [1, 50, 51]


def test_two_lineages_that_open_an_empty_table_at_once_both_have_it(folder, monkeypatch):
    other, attempt = Attempt(folder, 1, job="another"), Attempt(folder, 1)
    before_each_commit(monkeypatch, other.open)
    attempt.open()
    attempt.add(1, 1)
    other.add(1, 50)
    assert seen_in(folder) == [1, 50]


def test_an_attempt_gives_up_when_others_always_come_first(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    before_each_commit(monkeypatch, *[lambda: append_as_somebody_else(folder, 100)] * 50)
    with pytest.raises(StorageError, match="found a concurrent commit"):
        attempt.add(1, 1)
    assert 1 not in seen_in(folder)


def test_a_commit_whose_reply_is_lost_is_found_to_be_made(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    lost = [True]

    def commit(*args):
        real_commit(*args)
        if lost.pop():
            raise ConnectionError("the connection broke")

    monkeypatch.setattr(iceberg_ledger, "commit_change", commit)
    attempt.add(1, 1)
    assert seen_in(folder) == [1]


def test_an_unknown_outcome_is_told_and_deletes_nothing(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    written = attempt.write(1)

    def commit(*args):
        raise ConnectionError("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(iceberg_ledger, "commit_change", commit)
        with pytest.raises(CommitStateUnknownError, match="ConnectionError: the connection broke"):
            attempt.commit(1, written)
    second = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    second.commit(1, written)
    assert seen_in(folder) == [1]


def test_a_delayed_commit_that_arrives_behind_its_repetition_is_refused(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    delayed: list[Any] = []

    def commit(table, *args):
        if delayed:
            return real_call(table, *args)
        delayed.append((table, *args))
        raise TimeoutError

    real_call = Table._do_commit
    monkeypatch.setattr(Table, "_do_commit", commit)
    attempt.add(1, 1)
    with pytest.raises(CommitFailedException, match="branch main has changed"):
        real_call(*delayed[0])
    assert seen_in(folder) == [1]
