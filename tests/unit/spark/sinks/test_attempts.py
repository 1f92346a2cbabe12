"""Files of a Parquet sink: those of strangers, staged ones, and late ones of superseded attempts."""

from __future__ import annotations

import fsspec
import pytest

from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.spark.sinks.parquet_sink import PublishedFiles
from airflow_provider_statecheck.spark.sinks.target_files import staged_name
from tests.unit.spark.sinks.attempts import Attempt, committed_in, hidden_in, seen_in


def both(path):
    return seen_in(path), committed_in(path)


def same(*keys):
    return list(keys), list(keys)


def test_files_of_strangers_stay(path):
    filesystem, root = fsspec.url_to_fs(path)
    filesystem.makedirs(root, exist_ok=True)
    filesystem.pipe_file(f"{root}/notes.txt", b"keep")
    filesystem.pipe_file(f"{root}/_SUCCESS", b"")
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    attempt.finish()
    Attempt(path, 2, generation=2).open().finish()
    assert filesystem.cat_file(f"{root}/notes.txt") == b"keep"
    assert filesystem.exists(f"{root}/_SUCCESS")


def test_staged_files_of_earlier_attempts_stay_until_the_first_commit_of_a_newer_one(path):
    open_one = Attempt(path, 1).open().write(1)
    second = Attempt(path, 2, restored=1).open()
    assert len(hidden_in(path, "staging")) == 1
    second.commit(1, open_one)
    lost = Attempt(path, 2, restored=1)
    lost.sink = second.sink
    lost.write(99)  # by a task that lost against its copy
    second.add(2, 2)
    assert both(path) == same(1, 2)
    assert len(hidden_in(path, "staging")) == 1
    second.finish()
    assert hidden_in(path, "staging") == []


def test_a_task_of_a_newer_attempt_loses_no_file_to_the_end_of_an_older_one(path, monkeypatch):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    filesystem, root = fsspec.url_to_fs(path)
    lineage = filesystem.ls(f"{root}/_statecheck", detail=False)[0]
    newer = f"{lineage}/staging/{staged_name(2, '0' * 32)}"
    filesystem.pipe_file(newer, b"being written")
    first.finish()
    assert filesystem.exists(newer)


def test_an_attempt_that_is_fenced_while_it_publishes_leaves_the_commit_to_the_newer_one(path, monkeypatch):
    zombie = Attempt(path, 1).open()
    written = zombie.write(1)
    publish = PublishedFiles.publish

    def fenced(*args):
        monkeypatch.undo()
        publish(*args)
        Attempt(path, 2, restored=1).open()

    monkeypatch.setattr(PublishedFiles, "publish", fenced)
    zombie.commit(1, written)
    third = Attempt(path, 3, restored=1).open()
    third.commit(1, written)
    with pytest.raises(StaleAttemptError):
        zombie.finish()
    assert both(path) == same(1)


def test_a_published_file_that_no_log_names_is_deleted_at_the_end(path):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    filesystem, root = fsspec.url_to_fs(path)
    (name,) = (n for n in filesystem.find(root) if n.endswith(".parquet"))
    filesystem.cp_file(name, name.replace("-c1-", "-c9-"))
    assert seen_in(path) == [1, 1]
    attempt.finish()
    assert seen_in(path) == [1]
