"""What a two-phase sink of a user's own is told to commit and to abort, attempt after attempt."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StaleAttemptError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sinks.sink import Sink, SinkTaskContext
from airflow_provider_statecheck.spark.sinks.two_phase_commit_sink import FileCommitLog
from tests.unit.spark.sinks.two_phase.attempts import SCHEMA, Attempt, table_of
from tests.unit.spark.sinks.two_phase.folder_sink import FolderSink, keys_in


class Place:
    """A folder, and the attempts that write there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def attempt(self, epoch: int, *, settings: dict[str, Any] | None = None, **context: Any) -> Attempt:
        return Attempt(lambda: FolderSink(self.folder, **(settings or {})), epoch, **context)

    def open(self, epoch: int, **context: Any) -> Attempt:
        return self.attempt(epoch, **context).open()

    @property
    def seen(self) -> list[int]:
        return keys_in(self.folder)

    @property
    def hidden(self) -> int:
        return len(list((self.folder / "hidden").iterdir()))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class _Dies(Exception):
    """Stands for the end of a process."""


def test_a_sink_of_a_users_own_is_a_sink(place):
    assert isinstance(FolderSink(place.folder), Sink)


def test_nothing_is_seen_before_the_commit(place):
    first = place.open(1)
    written = first.write(1, 2)
    assert place.seen == []
    first.commit(1, written)
    assert place.seen == [1, 2]


def test_a_commit_may_be_repeated_also_by_a_later_attempt(place):
    written = place.open(1).add(1, 1, 2)
    second = place.open(2, restored=1, restored_epoch=1)
    second.commit(1, written)
    second.commit(1, written)
    assert place.seen == [1, 2]


def test_a_later_attempt_makes_the_commit_that_never_was(place):
    written = place.open(1).write(1, 2)
    place.open(2, restored=1, restored_epoch=1).commit(1, written)
    assert place.seen == [1, 2]


def test_several_open_commits_are_made_in_their_order(place):
    first = place.open(1)
    early, late = first.write(1), first.write(2)
    second = place.open(2, restored=2, restored_epoch=1)
    second.commit(1, early)
    second.commit(2, late)
    second.add(3, 3)
    assert place.seen == [1, 2, 3]


def test_an_attempt_of_a_lower_epoch_cannot_open(place):
    place.open(2)
    with pytest.raises(StaleAttemptError, match=r"Attempt 1 no longer owns .* attempt 2 took it over"):
        place.open(1)


def test_a_zombie_cannot_commit(place):
    zombie = place.open(1)
    written = zombie.write(1)
    place.open(2).add(2, 5)
    with pytest.raises(StaleAttemptError, match="Attempt 1 no longer owns"):
        zombie.commit(1, written)
    assert place.seen == [5]


def test_a_zombie_that_has_looked_already_adds_nothing(place, monkeypatch):
    zombie = place.open(1)
    written = zombie.write(1)
    write = FileCommitLog._write

    def overtaken(log: FileCommitLog, epoch: int, *rest: Any) -> None:
        if epoch == 1:
            monkeypatch.setattr(FileCommitLog, "_write", write)
            place.open(2).add(2, 5)
        write(log, epoch, *rest)

    monkeypatch.setattr(FileCommitLog, "_write", overtaken)
    with pytest.raises(StaleAttemptError):
        zombie.commit(1, written)
    place.open(3, restored=2, restored_epoch=2).finish()
    assert place.seen == [5]


def test_what_a_zombie_has_in_its_log_is_finished_by_the_next_attempt(place, monkeypatch):
    monkeypatch.setattr(FolderSink, "commit_transaction", _die)
    zombie = place.open(1)
    with pytest.raises(_Dies):
        zombie.add(1, 1)
    monkeypatch.undo()
    place.open(2, restored=1, restored_epoch=1)
    assert place.seen == [1]


def test_what_a_zombie_commits_after_it_was_taken_back_is_not_seen(place, monkeypatch):
    committing = FolderSink.commit_transaction

    def overtaken(sink: FolderSink, transaction: Any) -> None:
        monkeypatch.undo()
        place.open(2, generation=2).add(2, 5)
        committing(sink, transaction)

    monkeypatch.setattr(FolderSink, "commit_transaction", overtaken)
    place.open(1).add(1, 1)
    assert place.seen == [5]


def test_output_newer_than_the_restored_checkpoint_is_replaced_by_the_first_new_commit(place):
    first = place.open(1)
    for checkpoint_id in (1, 2, 3):
        first.add(checkpoint_id, checkpoint_id)
    second = place.open(2, restored=1, restored_epoch=1)
    assert place.seen == [1, 2, 3]
    second.add(4, 20)
    assert place.seen == [1, 20]


def test_output_newer_than_the_restored_checkpoint_goes_at_the_end_if_nothing_replaced_it(place):
    first = place.open(1)
    first.add(1, 1)
    first.add(2, 2)
    place.open(2, restored=1, restored_epoch=1).finish()
    assert place.seen == [1]


def test_a_fall_back_whose_commit_came_with_a_later_attempt_replaces_output_too(place):
    first = place.open(1)
    first.add(1, 1)
    first.add(2, 2)
    written = place.open(2, restored=1, restored_epoch=1).write(20)
    place.open(3, restored=3, restored_epoch=2).commit(3, written)
    assert place.seen == [1, 20]


def test_a_checkpoint_whose_output_was_replaced_cannot_be_restored(place):
    first = place.open(1)
    first.add(1, 1)
    first.add(2, 2)
    place.open(2, restored=1, restored_epoch=1).add(3, 20)
    with pytest.raises(CorruptStateError, match=r"output of checkpoint 2 .* was replaced"):
        place.open(3, restored=2, restored_epoch=1)


def test_what_the_attempt_does_not_go_on_from_is_not_committed(place):
    first = place.open(1)
    first.add(1, 1)
    written = first.write(2)
    second = place.open(2, restored=1, restored_epoch=1)
    with pytest.raises(CoordinatorError, match="found checkpoint 2 of attempt 1"):
        second.commit(2, written)


def test_nothing_older_than_the_last_commit_is_committed(place):
    written = place.open(1).write(1)
    second = place.open(2, restored=1, restored_epoch=1)
    second.add(2, 2)
    with pytest.raises(CoordinatorError, match="a checkpoint after 2 of attempt 2"):
        second.commit(1, written)


def test_a_fresh_start_replaces_earlier_output_with_its_first_commit(place):
    place.open(1).add(1, 1)
    second = place.open(2, generation=2)
    assert place.seen == [1]
    second.add(2, 20)
    assert place.seen == [20]


def test_a_fresh_start_without_output_takes_earlier_output_back_at_its_end(place):
    place.open(1).add(1, 1)
    place.open(2, generation=2).finish()
    assert place.seen == []


def test_a_fresh_start_that_fails_leaves_what_was_there(place):
    place.open(1).add(1, 1)
    place.open(2, generation=2).sink.close(succeeded=False)
    assert place.seen == [1]


def test_a_fresh_start_is_refused_beside_earlier_output_if_told_so(place):
    place.open(1).add(1, 1)
    with pytest.raises(EnvironmentNotReadyError, match="on_earlier_output is 'refuse'"):
        place.open(2, generation=2, settings={"on_earlier_output": "refuse"})


@pytest.mark.parametrize("start", [{"generation": 2}, {"restored": 1, "restored_epoch": 1}])
def test_a_start_that_has_to_take_output_back_is_refused_where_that_is_impossible(place, monkeypatch, start):
    monkeypatch.setattr(FolderSink, "can_retract", False)
    first = place.open(1)
    first.add(1, 1)
    first.add(2, 2)
    with pytest.raises(EnvironmentNotReadyError, match="cannot be rolled back"):
        place.open(2, **start)
    place.open(3, restored=2, restored_epoch=1).add(3, 3)
    assert place.seen == [1, 2, 3]


def test_what_a_savepoint_has_of_another_job_is_not_committed(place):
    written = place.open(1, job="other").write(1)
    first = place.open(1)
    first.commit(1, written)
    assert place.seen == []
    first.commit(2, [*written, *first.write(2)])
    assert place.seen == [2]


def test_sinks_of_several_jobs_share_a_log_and_touch_nothing_of_each_other(place):
    place.open(1, job="other").add(1, 1)
    place.open(1).add(1, 2)
    place.open(2, generation=2).add(2, 20)
    assert place.seen == [1, 20]


def test_a_task_that_fails_aborts_its_transaction(place):
    first = place.open(1)
    writer = first.task()
    writer.write(table_of([1]))
    writer.prepare_commit()
    assert place.hidden == 1
    writer.abort()
    assert place.hidden == 0


def test_a_transaction_that_is_no_plain_json_is_refused(place, monkeypatch):
    monkeypatch.setattr(FolderSink, "begin_transaction", lambda *_: {"file": "a", "keys": (1, 2)})
    monkeypatch.setattr(FolderSink, "pre_commit", lambda *_: None)
    with pytest.raises(UnsupportedStateError, match="plain JSON"):
        place.open(1).task().prepare_commit()


def test_what_is_no_transaction_is_told(place):
    with pytest.raises(CorruptStateError, match="Expected a transaction of format 1"):
        place.open(1).commit(1, [{"format_version": 1, "lineage": "x"}])


def test_opening_twice_is_opening_once(place):
    first = place.open(1)
    first.open()
    first.add(1, 1)
    assert place.seen == [1]


def test_an_attempt_may_settle_for_an_older_checkpoint_before_it_begins(place):
    first = place.open(1)
    first.add(1, 1)
    first.add(2, 2)
    second = place.open(2, restored=2, restored_epoch=1).sink
    third = place.attempt(2, restored=1, restored_epoch=1)
    third.open()
    third.add(3, 20)
    assert place.seen == [1, 20]
    with pytest.raises(CoordinatorError, match="keep its restored checkpoint after its first commit"):
        second.open(place.attempt(2, restored=2, restored_epoch=1).context)


def test_what_is_not_open_says_so(place):
    sink = FolderSink(place.folder)
    with pytest.raises(CoordinatorError, match="opened before"):
        sink.writer(SinkTaskContext(subtask=0, epoch=1, task_id="task", schema=SCHEMA))
    with pytest.raises(CoordinatorError, match="found it closed"):
        sink.commit(1, [])


def test_a_place_that_does_not_fit_is_refused_before_it_is_taken_over(place, monkeypatch):
    def refuse(*_: Any) -> None:
        raise StorageError("no such place")

    monkeypatch.setattr(FolderSink, "check", refuse)
    with pytest.raises(StorageError, match="no such place"):
        place.open(2)
    monkeypatch.undo()
    place.open(1).add(1, 1)


def test_another_word_for_earlier_output_is_refused(place):
    with pytest.raises(InvalidConfigurationError, match="found 'keep'"):
        FolderSink(place.folder, on_earlier_output="keep")


def test_a_log_that_somebody_changed_is_told(place):
    place.open(1).add(1, 1)
    for file in (place.folder / "log").rglob("attempts/1.json"):
        file.write_text("{}")
    with pytest.raises(CorruptStateError, match="restore the file from a backup"):
        place.open(2)


def test_transactions_that_somebody_changed_are_told(place):
    place.open(1).add(1, 1)
    for file in (place.folder / "log").rglob("commits/*.json"):
        file.write_text("{}")
    with pytest.raises(CorruptStateError, match="Expected the transactions of a checkpoint"):
        place.open(2, generation=2).finish()


def test_a_log_lies_on_an_object_store(object_store, tmp_path):
    object_store.faults.clear()
    log = f"s3://{object_store.make_bucket()}/log"

    def make() -> FolderSink:
        sink = FolderSink(tmp_path, storage_options=object_store.storage_options)
        sink._log = log
        return sink

    first = Attempt(make, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    second = Attempt(make, 2, restored=1, restored_epoch=1).open()
    second.add(3, 20)
    second.finish()
    with pytest.raises(StaleAttemptError):
        first.add(3, 3)
    assert keys_in(tmp_path) == [1, 20]


def test_a_copy_for_tasks_has_no_hold_on_the_log(place):
    copy = pickle.loads(pickle.dumps(place.open(1).sink))
    with pytest.raises(CoordinatorError, match="found it closed"):
        copy.commit(1, [])


def _die(*_: Any) -> None:
    raise _Dies
