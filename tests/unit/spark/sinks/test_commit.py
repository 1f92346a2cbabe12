"""What a commit publishes, and that it does so once."""

from __future__ import annotations

import re

import fsspec
import pytest

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    StorageError,
)
from airflow_provider_statecheck.spark.sinks.parquet_sink import PublishedFiles, committed_files
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, staging_directory
from tests.unit.spark.sinks.attempts import Attempt, committed_in, hidden_in, seen_in


def test_a_commit_publishes_what_the_tasks_of_the_checkpoint_wrote(path):
    attempt = Attempt(path, 1).open()
    attempt.commit(1, [*attempt.write(1, 2), *attempt.write(3, subtask=1)])
    assert (seen_in(path), committed_in(path)) == ([1, 2, 3], [1, 2, 3])
    assert hidden_in(path, "staging") == []


def test_the_names_of_files_tell_whose_they_are(path):
    attempt = Attempt(path, 7, generation=3).open()
    attempt.commit(41, attempt.write(1, subtask=5))
    (file,) = committed_files(path)
    assert file.uri.rpartition("/")[2].startswith(f"part-{file.lineage}-g3-c41-5-")
    assert file.uri.endswith(".parquet")


def test_a_checkpoint_without_output_is_committed_too(path):
    attempt = Attempt(path, 1).open()
    attempt.commit(1, attempt.write())
    attempt.commit(2, [])
    assert seen_in(path) == []
    assert hidden_in(path, "commits") == ["1-1.json"]


def test_an_older_checkpoint_is_not_committed_after_a_newer_one(path):
    attempt = Attempt(path, 1).open()
    late = attempt.write(1)
    attempt.add(2, 2)
    with pytest.raises(CoordinatorError, match=r"a checkpoint after the newest one, found checkpoint 1 of attempt 1"):
        attempt.commit(1, late)
    assert seen_in(path) == [2]


def test_a_staged_file_that_is_gone_is_told_with_its_names(path):
    attempt = Attempt(path, 1).open()
    written = attempt.write(1)
    filesystem, root = fsspec.url_to_fs(path)
    staged = written[0]["files"][0]["staged"]
    filesystem.rm_file(next(name for name in filesystem.find(root) if name.endswith(staged)))
    with pytest.raises(CorruptStateError, match=rf"either as part-.* or staged as {staged}, found neither"):
        attempt.commit(1, written)
    assert committed_in(path) == []
    # The target is not blocked by what no attempt can publish.
    second = Attempt(path, 2, generation=2).open()
    second.add(2, 2)
    second.finish()
    assert (seen_in(path), committed_in(path)) == ([2], [2])


@pytest.mark.parametrize(
    ("scheme", "cause"),
    [
        ("local", "it was deleted, or the executors of Spark wrote it to another disk"),
        ("memory", "it was deleted. Restore"),
    ],
)
def test_a_lost_file_is_told_with_what_may_have_happened_on_such_a_storage(tmp_path, memory_path, scheme, cause):
    attempt = Attempt(str(tmp_path / "table") if scheme == "local" else memory_path, 1).open()
    written = attempt.write(1)
    attempt.files.delete(f"{staging_directory(attempt.files.lineage)}/{written[0]['files'][0]['staged']}")
    with pytest.raises(CorruptStateError, match=f"found neither; {re.escape(cause)}"):
        attempt.commit(1, written)


def test_a_move_whose_reply_was_lost_is_made_once(path, monkeypatch):
    attempt = Attempt(path, 1).open()
    written = attempt.write(1)
    move = TargetFiles.move

    def lost(*args):
        move(*args)
        return move(*args)

    monkeypatch.setattr(TargetFiles, "move", lost)
    attempt.commit(1, written)
    assert (seen_in(path), committed_in(path)) == ([1], [1])


def test_a_copy_whose_original_stayed_is_finished(memory_path, monkeypatch):
    first = Attempt(memory_path, 1).open()
    written = first.write(1)
    with monkeypatch.context() as patch:
        patch.setattr(TargetFiles, "delete", _failing)
        with pytest.raises(StorageError, match="planted"):
            first.commit(1, written)
    assert len(hidden_in(memory_path, "staging")) == 1
    Attempt(memory_path, 2, restored=1).open().commit(1, written)
    assert hidden_in(memory_path, "staging") == []
    assert (seen_in(memory_path), committed_in(memory_path)) == ([1], [1])


def _failing(*_):
    raise StorageError("planted")


def test_a_published_file_that_was_changed_is_refused(path, monkeypatch):
    first = Attempt(path, 1).open()
    written = first.write(1)
    with monkeypatch.context() as patch:
        # The process dies after it has published, before it notes that.
        patch.setattr(PublishedFiles, "publish", _dying_after(PublishedFiles.publish))
        with pytest.raises(KeyboardInterrupt):
            first.commit(1, written)
    filesystem, root = fsspec.url_to_fs(path)
    (name,) = (n for n in filesystem.find(root) if n.endswith(".parquet"))
    content = bytearray(filesystem.cat_file(name))
    content[-20] ^= 1
    filesystem.pipe_file(name, bytes(content))
    with pytest.raises(CorruptStateError, match="the file was modified"):
        Attempt(path, 2, restored=1).open()


def _dying_after(call):
    def dying(*args):
        call(*args)
        raise KeyboardInterrupt

    return dying


def test_what_a_savepoint_has_of_another_target_is_left_alone(path, caplog):
    other = Attempt(f"{path}-other", 1, job="other").open().write(1)
    Attempt(path, 1).open().commit(5, other)
    assert "job that writes to another destination" in caplog.text
    assert committed_in(path) == []


@pytest.mark.parametrize("damaged", [{}, {"format_version": 2}, {"format_version": 1, "lineage": "x"}])
def test_what_is_no_committable_is_refused(path, damaged):
    attempt = Attempt(path, 1).open()
    with pytest.raises(CorruptStateError, match="Expected a committable of a Parquet sink"):
        attempt.commit(1, [damaged])
