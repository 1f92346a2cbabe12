"""What readers of the ledger see while others commit."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks import ledger, parquet_sink, read_committed
from airflow_provider_statecheck.spark.sinks.ledger import Ledger
from airflow_provider_statecheck.spark.sinks.read_committed import committed_files
from tests.unit.spark.sinks.attempts import Attempt, committed_in, seen_in


def test_where_nothing_was_written_nothing_is_committed(path):
    assert committed_files(path) == ()


def test_readers_of_the_ledger_see_all_or_nothing_of_a_checkpoint(path, monkeypatch):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    written = [*attempt.write(2), *attempt.write(3)]
    monkeypatch.setattr(ledger, "PARALLEL_CALLS", 1)  # one file after the other
    views = _watched(monkeypatch, parquet_sink, "publish", path)
    attempt.commit(2, written)
    assert views == [([1, 2], [1]), ([1, 2, 3], [1])] or views == [([1, 3], [1]), ([1, 2, 3], [1])]
    assert committed_in(path) == [1, 2, 3]


def test_what_is_replaced_leaves_the_ledger_in_the_same_moment(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    second = Attempt(path, 2, generation=2).open()
    written = second.write(2)
    views = _watched(monkeypatch, Ledger, "complete", path)
    second.commit(2, written)
    assert views == [([1, 2], [2])]
    assert (seen_in(path), committed_in(path)) == ([2], [2])


def test_a_reader_that_meets_a_retraction_reads_again(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    second = Attempt(path, 2, generation=2).open()
    written = second.write(2)
    read, left = read_committed._read, [1]

    def meeting(storage, uri):
        if left[0]:
            left[0] -= 1
            second.commit(2, written)
        return read(storage, uri)

    monkeypatch.setattr(read_committed, "_read", meeting)
    assert committed_in(path) == [2]


def test_a_ledger_that_never_rests_is_told(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    monkeypatch.setattr(read_committed, "_read", lambda *_: None)
    with pytest.raises(StorageError, match="between two commits"):
        committed_files(path)


def test_a_committed_file_tells_its_rows_and_size_and_checkpoint(path):
    attempt = Attempt(path, 1).open()
    written = attempt.add(5, 1, 2)
    (file,) = committed_files(path)
    assert (file.rows, file.checkpoint_id) == (2, 5)
    assert file.size_bytes == written[0]["files"][0]["size_bytes"]


def _watched(monkeypatch, place, name, path):
    """Note what readers of the directory and of the ledger see after each call."""
    call, views = getattr(place, name), []

    def watched(*args):
        call(*args)
        if place is Ledger:
            monkeypatch.setattr(place, name, call)
        views.append((seen_in(path), committed_in(path)))

    monkeypatch.setattr(place, name, watched)
    return views
