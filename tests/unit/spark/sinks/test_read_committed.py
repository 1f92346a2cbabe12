"""What readers of the ledger see while others commit."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.commits.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.parquet_sink import PublishedFiles, committed_files
from airflow_provider_statecheck.storage import file_operations
from tests.unit.spark.sinks.attempts import Attempt, committed_in, seen_in


def test_where_nothing_was_written_nothing_is_committed(path):
    assert committed_files(path) == ()


def test_readers_of_the_ledger_see_all_or_nothing_of_a_checkpoint(path, monkeypatch):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    written = [*attempt.write(2), *attempt.write(3)]
    monkeypatch.setattr(file_operations, "PARALLEL_CALLS", 1)  # one file after the other
    views = _watched(monkeypatch, PublishedFiles, "_move", path)
    attempt.commit(2, written)
    assert views == [([1, 2], [1]), ([1, 2, 3], [1])] or views == [([1, 3], [1]), ([1, 2, 3], [1])]
    assert committed_in(path) == [1, 2, 3]


def test_replaced_output_leaves_the_ledger_in_the_moment_in_which_new_output_enters_it(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    second = Attempt(path, 2, generation=2).open()
    written = second.write(2)
    views = _watched(monkeypatch, CommitFiles, "write", path)
    second.commit(2, written)
    assert views == [([1], [1]), ([1, 2], [2]), ([2], [2])]


def test_a_reader_reads_again_if_output_was_replaced_in_between(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    second = Attempt(path, 2, generation=2).open()
    written = second.write(2)
    visible = CommitFiles.visible

    def meeting(*args):
        monkeypatch.undo()
        second.commit(2, written)
        return visible(*args)

    monkeypatch.setattr(CommitFiles, "visible", meeting)
    assert committed_in(path) == [2]


def test_a_ledger_that_changes_all_the_time_is_an_error(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    logs = iter(range(1000))
    monkeypatch.setattr(CommitFiles, "read", lambda _: (next(logs), next(logs)))
    monkeypatch.setattr(CommitFiles, "visible", lambda *_: [])
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
        views.append((seen_in(path), committed_in(path)))

    monkeypatch.setattr(place, name, watched)
    return views
