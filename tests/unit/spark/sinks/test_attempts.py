"""What becomes of output when attempts replace, restore and start over; and what a zombie can do."""

from __future__ import annotations

import fsspec
import pytest

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    StaleAttemptError,
)
from airflow_provider_statecheck.spark.sinks import parquet_sink
from airflow_provider_statecheck.spark.sinks.ledger import Ledger, Start
from airflow_provider_statecheck.spark.sinks.parquet_sink import publish
from airflow_provider_statecheck.spark.sinks.target_files import staged_name
from tests.unit.spark.sinks.attempts import Attempt, committed_in, hidden_in, seen_in


def both(path):
    return seen_in(path), committed_in(path)


def same(*keys):
    return list(keys), list(keys)


# Falling back


def test_output_of_checkpoints_newer_than_the_restored_one_is_replaced_by_the_first_new_commit(path):
    first = Attempt(path, 1).open()
    for checkpoint in (1, 2, 3):
        first.add(checkpoint, checkpoint)
    second = Attempt(path, 2, restored=1).open()
    assert both(path) == same(1, 2, 3)
    second.add(4, 40)
    assert both(path) == same(1, 40)


def test_output_newer_than_the_restored_checkpoint_goes_at_the_end_if_nothing_replaced_it(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    Attempt(path, 2, restored=1).open().finish()
    assert both(path) == same(1)


def test_output_that_waits_to_be_replaced_is_kept_for_an_attempt_that_restores_it_after_all(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    Attempt(path, 2, restored=1).open()
    third = Attempt(path, 3, restored=2).open()
    third.add(3, 3)
    third.finish()
    assert both(path) == same(1, 2, 3)


def test_a_checkpoint_whose_output_was_replaced_cannot_be_restored(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    Attempt(path, 2, restored=1).open().add(3, 3)
    with pytest.raises(CorruptStateError, match=r"output of checkpoint 2 .* retracted when checkpoint 3 of attempt 2"):
        Attempt(path, 3, restored=2).open()
    assert both(path) == same(1, 3)


def test_a_checkpoint_that_goes_on_from_replaced_output_cannot_be_committed(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    late = first.write(3)
    Attempt(path, 2, restored=1).open().add(4, 4)
    third = Attempt(path, 3, restored=3).open()
    with pytest.raises(CorruptStateError, match="output of checkpoint 2"):
        third.commit(3, late)
    assert both(path) == same(1, 4)


def test_the_line_of_a_restored_checkpoint_is_that_of_the_attempt_that_took_it(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    late = Attempt(path, 2, restored=1).open().write(3)
    # Checkpoint 3 was complete, and the process died before it was committed.
    third = Attempt(path, 3, restored=3).open()
    third.commit(3, late)
    assert both(path) == same(1, 3)
    third.add(4, 4)
    assert both(path) == same(1, 3, 4)


def test_an_attempt_that_took_no_checkpoint_leaves_no_trace_in_the_line(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    empty = first.write()
    Attempt(path, 2, restored=1).open()
    third = Attempt(path, 3, restored=3).open()
    third.commit(3, empty)
    third.add(4, 4)
    assert both(path) == same(1, 2, 4)


def test_a_checkpoint_without_committables_is_not_guessed_at(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    Attempt(path, 2, restored=1).open()
    third = Attempt(path, 3, restored=3).open()
    with pytest.raises(CorruptStateError, match="Expected committables with checkpoint 3"):
        third.add(4, 4)
    assert both(path) == same(1, 2)


def test_an_unfinished_commit_of_a_dead_branch_is_rolled_back(path, monkeypatch):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    monkeypatch.setattr(parquet_sink, "publish", _dying_after(publish, 1))
    with pytest.raises(KeyboardInterrupt):
        first.commit(2, [*first.write(2), *first.write(3)])
    monkeypatch.undo()
    Attempt(path, 2, restored=1).open().add(3, 4)
    assert both(path) == same(1, 4)


def test_an_unfinished_commit_is_finished_before_the_next_one(path, monkeypatch):
    first = Attempt(path, 1).open()
    monkeypatch.setattr(parquet_sink, "publish", _dying_after(publish, 1))
    written = [*first.write(1), *first.write(2)]
    with pytest.raises(KeyboardInterrupt):
        first.commit(1, written)
    assert committed_in(path) == []
    monkeypatch.undo()
    second = Attempt(path, 2, restored=1).open()
    second.commit(2, [*written, *second.write(3)])
    assert both(path) == same(1, 2, 3)


def test_several_commits_that_are_open_are_made_in_their_order(path):
    first = Attempt(path, 1).open()
    one, two = first.write(1), first.write(2)
    second = Attempt(path, 2, restored=2).open()
    second.commit(1, one)
    second.commit(2, two)
    second.add(3, 3)
    assert both(path) == same(1, 2, 3)


def test_a_restored_checkpoint_without_committables_keeps_what_it_goes_on_from(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    second = Attempt(path, 2, restored=1).open()
    second.add(2, 2)
    third = Attempt(path, 3, restored=3).open()
    third.commit(3, [])
    Attempt(path, 4, restored=3).open().commit(3, [])
    fifth = Attempt(path, 5, restored=3).open()
    fifth.commit(3, [])
    fifth.add(4, 4)
    fifth.finish()
    assert both(path) == same(1, 2, 4)


# Starting over


def test_a_fresh_start_replaces_earlier_output_with_its_first_commit(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    second = Attempt(path, 2, generation=2).open()
    assert both(path) == same(1, 2)
    second.add(3, 30)
    assert both(path) == same(30)
    second.add(4, 40)
    assert both(path) == same(30, 40)


def test_a_fresh_start_without_output_ends_with_an_empty_target(path):
    Attempt(path, 1).open().add(1, 1)
    Attempt(path, 2, generation=2).open().finish()
    assert both(path) == same()


def test_a_fresh_start_that_fails_leaves_what_was_there(path):
    Attempt(path, 1).open().add(1, 1)
    second = Attempt(path, 2, generation=2).open()
    second.write(2)
    second.sink.close(succeeded=False)
    assert both(path) == same(1)


def test_a_fresh_start_is_refused_beside_earlier_output_if_told_so(path):
    Attempt(path, 1).open().add(1, 1)
    with pytest.raises(EnvironmentNotReadyError, match="found 1 rows of 1 checkpoint"):
        Attempt(path, 2, generation=2, on_earlier_output="refuse").open()
    assert hidden_in(path, "heads") == ["1.json"]  # nothing was taken over
    Attempt(path, 3, restored=1, on_earlier_output="refuse").open().add(2, 2)
    assert both(path) == same(1, 2)


def test_a_start_from_another_jobs_savepoint_counts_as_fresh_for_the_sink(path):
    Attempt(path, 1).open().add(1, 1)
    Attempt(path, 2, restored=None, generation=2).open().add(2, 2)
    assert both(path) == same(2)


# Others in the same directory


def test_two_lineages_never_touch_each_others_files(path):
    ours, theirs = Attempt(path, 1).open(), Attempt(path, 1, job="other").open()
    ours.add(1, 1)
    theirs.add(1, 10)
    staged = theirs.write(11)
    again = Attempt(path, 2, generation=2).open()
    again.add(2, 2)
    again.finish()
    assert both(path) == same(2, 10)
    theirs.commit(2, staged)
    assert both(path) == same(2, 10, 11)


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


# Zombies


def test_an_attempt_of_a_lower_epoch_cannot_open(path):
    Attempt(path, 2).open()
    with pytest.raises(StaleAttemptError, match=r"Attempt 1 no longer owns .* attempt 2 took it over"):
        Attempt(path, 1).open()


def test_an_attempt_that_is_overtaken_while_it_opens_stops_there(path, monkeypatch):
    begin = Ledger.begin_attempt

    def overtaken(*args):
        monkeypatch.undo()
        Attempt(path, 2).open()
        begin(*args)

    monkeypatch.setattr(Ledger, "begin_attempt", overtaken)
    with pytest.raises(StaleAttemptError):
        Attempt(path, 1).open()


def test_a_zombie_cannot_commit(path):
    zombie = Attempt(path, 1).open()
    late = zombie.write(1)
    Attempt(path, 2).open().add(2, 2)
    with pytest.raises(StaleAttemptError):
        zombie.commit(1, late)
    with pytest.raises(StaleAttemptError):
        zombie.finish()
    assert both(path) == same(2)


def test_an_attempt_that_is_fenced_while_it_publishes_commits_nothing(path, monkeypatch):
    zombie = Attempt(path, 1).open()
    written = zombie.write(1)

    def fenced(*args):
        publish(*args)
        monkeypatch.undo()
        Attempt(path, 2, restored=1).open()

    monkeypatch.setattr(parquet_sink, "publish", fenced)
    with pytest.raises(StaleAttemptError):
        zombie.commit(1, written)
    assert committed_in(path) == []
    third = Attempt(path, 3, restored=1).open()
    third.commit(1, written)
    assert both(path) == same(1)


def test_that_an_attempt_was_fenced_is_told_rather_than_what_it_stumbles_over(path, monkeypatch):
    zombie = Attempt(path, 1).open()
    written = zombie.write(1)

    def fenced(*_):
        Attempt(path, 2).open()
        raise CorruptStateError("planted")

    monkeypatch.setattr(parquet_sink, "publish", fenced)
    with pytest.raises(StaleAttemptError):
        zombie.commit(1, written)


def test_a_zombie_cannot_publish_again_what_was_retracted(path):
    zombie = Attempt(path, 1).open()
    written = zombie.add(1, 1)
    Attempt(path, 2, generation=2).open().add(2, 2)
    with pytest.raises(StaleAttemptError):
        zombie.commit(1, written)
    assert both(path) == same(2)


def test_what_a_zombie_publishes_between_its_look_and_its_write_counts_for_nobody_and_is_swept(path, monkeypatch):
    zombie = Attempt(path, 1).open()
    zombie.add(1, 1)
    late = zombie.write(2)
    second = Attempt(path, 2, restored=1).open()
    second.add(3, 3)
    _without_fence(monkeypatch)
    filesystem, root = fsspec.url_to_fs(path)
    # It was swept with the first commit of the attempt that took over; say it was not.
    staged = [name for name in filesystem.find(root) if name.endswith(".staged")]
    assert staged == []
    with pytest.raises(CorruptStateError, match="found neither"):
        zombie.commit(2, late)
    assert both(path) == same(1, 3)


def test_a_zombies_file_that_appears_late_is_seen_by_no_reader_of_the_ledger_and_goes_at_the_end(path, monkeypatch):
    zombie = Attempt(path, 1).open()
    zombie.add(1, 1)
    late = zombie.write(2)
    second = Attempt(path, 2, restored=1).open()
    with monkeypatch.context() as patch:
        _without_fence(patch)
        zombie.commit(2, late)
    assert both(path) == same(1, 2)
    second.add(3, 3)
    assert committed_in(path) == [1, 3]
    second.finish()
    assert both(path) == same(1, 3)


def test_an_attempt_whose_output_a_zombie_retracted_does_not_succeed(path):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    zombie = Ledger.load(attempt.files)
    zombie.retract(zombie.commits["1-1"])
    with pytest.raises(CorruptStateError, match=r"output of checkpoint 1 .* was retracted"):
        attempt.finish()


def test_a_published_file_without_a_record_is_swept_at_open(path):
    Attempt(path, 1).open().add(1, 1)
    filesystem, root = fsspec.url_to_fs(path)
    (name,) = (n for n in filesystem.find(root) if n.endswith(".parquet"))
    filesystem.cp_file(name, name.replace("-c1-", "-c9-"))
    assert seen_in(path) == [1, 1]
    Attempt(path, 2, restored=1).open()
    assert seen_in(path) == [1]


def test_a_published_file_without_a_record_is_swept_at_the_end(path):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    filesystem, root = fsspec.url_to_fs(path)
    (name,) = (n for n in filesystem.find(root) if n.endswith(".parquet"))
    filesystem.cp_file(name, name.replace("-c1-", "-c9-"))
    attempt.finish()
    assert seen_in(path) == [1]


@pytest.mark.parametrize("step", ["commits", "intents"])
def test_a_record_that_a_zombie_writes_again_after_its_retraction_counts_for_nobody_and_is_deleted(path, step):
    Attempt(path, 1).open().add(1, 1)
    Attempt(path, 2, generation=2).open().add(2, 2)
    filesystem, root = fsspec.url_to_fs(path)
    (retracted,) = (name for name in filesystem.find(root) if "/retracted/" in name)
    again = retracted.replace("/retracted/", f"/{step}/")
    filesystem.makedirs(again.rpartition("/")[0], exist_ok=True)
    filesystem.cp_file(retracted, again)
    assert committed_in(path) == [2]
    third = Attempt(path, 3, restored=2).open()
    assert "1-1" not in {record.key for record in Ledger.load(third.files).active}
    assert not filesystem.exists(again)


def test_an_attempt_that_is_fenced_after_its_commit_deletes_nothing(path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    zombie = Attempt(path, 2, generation=2).open()
    complete = Ledger.complete

    def fenced(*args):
        complete(*args)
        monkeypatch.undo()
        Ledger(zombie.files).begin_attempt(3, Start(2, None))

    monkeypatch.setattr(Ledger, "complete", fenced)
    with pytest.raises(StaleAttemptError):
        zombie.add(2, 2)
    assert both(path) == ([1, 2], [2])


# Files that wait


def test_a_staged_file_that_an_unfinished_commit_names_is_never_swept(path, monkeypatch):
    carried = Attempt(path, 1).open().write(1)
    second = Attempt(path, 2, restored=1).open()
    written = second.write(3)
    monkeypatch.setattr(parquet_sink, "publish", _dying_after(publish, 0))
    with pytest.raises(KeyboardInterrupt):
        second.commit(3, [*carried, *written])
    monkeypatch.undo()
    second.add(2, 2)
    second.commit(3, [*carried, *written])
    assert both(path) == same(1, 2, 3)


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


def test_after_a_failure_staged_files_stay_for_the_next_attempt(path):
    first = Attempt(path, 1).open()
    written = first.write(1)
    first.sink.close(succeeded=False)
    second = Attempt(path, 2, restored=1).open()
    second.commit(1, written)
    assert both(path) == same(1)


def test_a_task_of_a_newer_attempt_loses_no_file_to_the_end_of_an_older_one(path, monkeypatch):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    filesystem, root = fsspec.url_to_fs(path)
    lineage = filesystem.ls(f"{root}/_statecheck", detail=False)[0]
    newer = f"{lineage}/staging/{staged_name(2, '0' * 32)}"
    filesystem.pipe_file(newer, b"being written")
    first.finish()
    assert filesystem.exists(newer)


def test_opening_twice_is_opening_once(path):
    Attempt(path, 1).open().add(1, 1)
    second = Attempt(path, 2, restored=1).open().open()
    second.add(2, 2)
    assert both(path) == same(1, 2)


def test_an_attempt_may_settle_for_an_older_checkpoint_before_it_begins(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    Attempt(path, 2, restored=2).open()
    Attempt(path, 2, restored=1).open().add(3, 3)
    assert both(path) == same(1, 3)


def test_an_attempt_does_not_fall_back_behind_its_own_commits(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    with pytest.raises(CoordinatorError, match="keep its restored checkpoint after its first commit"):
        Attempt(path, 1, restored=1).open()


def test_an_open_commit_of_a_branch_that_was_left_publishes_nothing(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    late = first.write(2)
    second = Attempt(path, 2, restored=1).open()
    second.add(3, 3)
    second.commit(2, late)
    second.commit(2, late)
    second.finish()
    assert both(path) == same(1, 3)
    with pytest.raises(CorruptStateError, match="output of checkpoint 2"):
        Attempt(path, 3, restored=2).open()


def test_an_open_commit_newer_than_the_restored_checkpoint_is_kept_until_it_is_replaced(path):
    first = Attempt(path, 1).open()
    first.add(1, 1)
    late = first.write(2)
    Attempt(path, 2, restored=1).open().commit(2, late)
    third = Attempt(path, 3, restored=2).open()
    third.add(3, 3)
    assert both(path) == same(1, 2, 3)


def test_the_restored_checkpoint_is_not_committed_after_another_branch_was(path):
    first = Attempt(path, 1).open()
    first.commit(1, first.write())
    late = first.write(2)
    Attempt(path, 2, restored=1).open().add(3, 3)
    third = Attempt(path, 3, restored=4).open()
    with pytest.raises(CoordinatorError, match="a checkpoint after 3 of attempt 2"):
        third.commit(4, late)
    assert both(path) == same(3)


def _dying_after(publish, calls):
    left = [calls]

    def dying(*args):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return publish(*args)

    return dying


def _without_fence(patch):
    patch.setattr(Ledger, "require_newest", lambda *_: None)
