"""One commit to a Delta table: what it holds, how often it may be tried, and what it refuses."""

from __future__ import annotations

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    StorageError,
)
from airflow_provider_statecheck.spark.sinks import delta_sink
from airflow_provider_statecheck.spark.sinks.delta.delta_table import DeltaTableAccess
from tests.unit.spark.sinks.attempts import SCHEMA, table_of
from tests.unit.spark.sinks.delta.attempts import DeltaAttempt, keys_of, log_of, rows_of, table_at


def test_nothing_is_seen_before_the_commit(path):
    attempt = DeltaAttempt(path, 1).open()
    attempt.write(1)
    assert keys_of(path) == []


def test_the_table_is_made_before_any_work_where_its_columns_are_known(path):
    DeltaAttempt(path, 1).open()
    assert DeltaTable.is_deltatable(path)
    assert rows_of(path).schema.names == SCHEMA.names


def test_a_table_whose_columns_are_not_known_before_is_made_by_the_first_commit(path):
    attempt = DeltaAttempt(path, 1, schema=None).open()
    assert not DeltaTable.is_deltatable(path)
    attempt.add(1, 1)
    assert keys_of(path) == [1]
    assert table_at(path).version() == 0


def test_all_tasks_of_a_checkpoint_are_in_one_version(path):
    attempt = DeltaAttempt(path, 1).open()
    attempt.commit(1, [*attempt.write(1, subtask=0), *attempt.write(2, subtask=1)])
    assert table_at(path).version() == 1
    assert keys_of(path) == [1, 2]


def test_files_become_part_of_the_table_where_they_were_written(path):
    attempt = DeltaAttempt(path, 1).open()
    (task,) = attempt.add(1, 1)
    added = [action["add"] for action in log_of(path, 1) if "add" in action]
    assert [add["path"] for add in added] == [file["name"] for file in task["files"]]
    assert added[0]["dataChange"]


def test_a_commit_may_be_repeated(path):
    attempt = DeltaAttempt(path, 1).open()
    written = attempt.add(1, 1)
    attempt.commit(1, written)
    assert keys_of(path) == [1]
    assert table_at(path).version() == 1


def test_a_later_attempt_may_repeat_the_commit_of_what_it_restored(path):
    written = DeltaAttempt(path, 1).open().add(1, 1)
    second = DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()
    second.commit(1, written)
    second.add(2, 2)
    assert keys_of(path) == [1, 2]


def test_what_is_carried_into_a_later_checkpoint_is_added_once(path):
    attempt = DeltaAttempt(path, 1).open()
    written = attempt.add(1, 1)
    attempt.commit(2, [*written, *attempt.write(2)])
    assert keys_of(path) == [1, 2]
    assert len([action for action in log_of(path, 2) if "add" in action]) == 1


def test_what_was_never_committed_is_added_with_the_checkpoint_that_carries_it(path):
    attempt = DeltaAttempt(path, 1).open()
    written = attempt.write(1)
    attempt.commit(2, [*written, *attempt.write(2)])
    assert keys_of(path) == [1, 2]


def test_a_checkpoint_without_output_makes_no_version(path):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1)
    attempt.add(2, 2)
    attempt.add(3)
    assert table_at(path).version() == 1
    assert keys_of(path) == [2]


def test_other_output_under_a_committed_checkpoint_is_refused(path):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1, 1)
    with pytest.raises(CorruptStateError, match="the same output with each commit of checkpoint 1"):
        attempt.commit(1, attempt.write(2))
    assert keys_of(path) == [1]


def test_a_file_that_vacuum_deleted_before_its_commit_is_told(path):
    attempt = DeltaAttempt(path, 1).open()
    written = attempt.write(1)
    table_at(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(
        CorruptStateError, match=r"of checkpoint 1 in .*found no file; it was deleted, or .* another disk .* VACUUM"
    ):
        attempt.commit(1, written)
    assert keys_of(path) == []


def test_vacuum_leaves_the_ledger(path):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1, 1)
    table_at(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    second = DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()
    second.add(2, 2)
    assert keys_of(path) == [1, 2]


def test_a_commit_that_replaces_nothing_does_not_list_the_files_of_the_table(path, monkeypatch):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1, 1)
    monkeypatch.setattr("deltalake.DeltaTable.file_uris", None)
    attempt.add(2, 2)
    monkeypatch.undo()
    assert keys_of(path) == [1, 2]


# Other writers


def test_versions_of_others_between_look_and_commit_are_looked_at_and_kept(path, monkeypatch):
    attempt = DeltaAttempt(path, 1).open()
    written = attempt.write(1)
    others = iter([100, 101, 102])
    commit = DeltaTableAccess.commit

    def behind_others(*args):
        for key in others:
            write_deltalake(path, table_of([key]), mode="append")
            break
        return commit(*args)

    monkeypatch.setattr(DeltaTableAccess, "commit", behind_others)
    attempt.commit(1, written)
    assert keys_of(path) == [1, 100, 101, 102]


def test_an_attempt_gives_up_when_others_always_come_first(path, monkeypatch):
    attempt = DeltaAttempt(path, 1).open()
    monkeypatch.setattr(delta_sink, "_TRIES", 3)
    monkeypatch.setattr(DeltaTableAccess, "commit", lambda *_: False)
    with pytest.raises(StorageError, match="a concurrent commit at each of 3 tries"):
        attempt.add(1, 1)
    assert keys_of(path) == []


def test_two_attempts_that_make_the_table_at_once_make_it_once(path, monkeypatch):
    create = DeltaTableAccess.create

    def behind_another(*args):
        monkeypatch.undo()
        DeltaAttempt(path, 1, job="other").open().add(1, 100)
        return create(*args)

    monkeypatch.setattr(DeltaTableAccess, "create", behind_another)
    DeltaAttempt(path, 1).open().add(1, 1)
    assert keys_of(path) == [1, 100]


def test_a_commit_that_fails_for_good_is_told_and_changes_nothing(path, monkeypatch):
    attempt = DeltaAttempt(path, 1).open()
    written = attempt.write(1)

    def failing(*_, **__):
        raise OSError("no route to host\n  0: <trace>")

    monkeypatch.setattr("deltalake.DeltaTable.create_write_transaction", failing)
    with pytest.raises(StorageError, match=r"Cannot commit the Delta table .*: no route to host[.]$"):
        attempt.commit(1, written)
    monkeypatch.undo()
    attempt.commit(1, written)
    assert keys_of(path) == [1]


def test_a_table_that_was_made_anew_meanwhile_is_not_written_to(path, tmp_path):
    attempt = DeltaAttempt(path, 1).open()
    written = attempt.write(1)
    write_deltalake(path, table_of([100]), mode="overwrite", commit_properties=CommitProperties())
    attempt.commit(1, written)
    (tmp_path / "table" / "_delta_log").rename(tmp_path / "away")
    write_deltalake(path, table_of([7]))
    with pytest.raises(CorruptStateError, match="a table that was recreated"):
        attempt.add(2, 2)
    assert keys_of(path) == [7]


# Savepoints of other jobs


def test_a_savepoint_of_another_job_that_has_not_committed_its_output_is_refused(path):
    theirs = DeltaAttempt(path, 1, job="other").open()
    written = theirs.write(1)
    with pytest.raises(IncompatibleCheckpointError, match=r"1 file\(s\) of lineage .* that never were"):
        DeltaAttempt(path, 1).open().commit(1, written)
    assert keys_of(path) == []


def test_what_a_savepoint_has_of_another_job_is_that_jobs_to_commit(path):
    written = DeltaAttempt(path, 1, job="other").open().add(1, 1)
    attempt = DeltaAttempt(path, 1).open()
    attempt.commit(1, written)
    attempt.add(2, 2)
    assert keys_of(path) == [1, 2]


def test_what_a_savepoint_has_of_another_table_is_left_alone(path, tmp_path, caplog):
    written = DeltaAttempt(f"file://{tmp_path}/elsewhere", 1, job="other").open().write(1)
    attempt = DeltaAttempt(path, 1).open()
    attempt.commit(1, written)
    assert keys_of(path) == []
    assert "left to that job" in caplog.text


@pytest.mark.parametrize("damaged", [{}, {"format_version": 2}, {"format_version": 1, "lineage": "x", "files": 3}])
def test_what_is_no_committable_is_refused(path, damaged):
    with pytest.raises(CorruptStateError, match="Expected a committable of a Delta sink of format 1"):
        DeltaAttempt(path, 1).open().commit(1, [damaged])


def test_a_sink_that_is_not_open_commits_and_writes_nothing(path):
    attempt = DeltaAttempt(path, 1)
    with pytest.raises(CoordinatorError, match="open it before commits"):
        attempt.commit(1, [])
    with pytest.raises(CoordinatorError, match="opened before it is used"):
        attempt.write(1)


def test_without_the_package_the_extra_is_named(path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(EnvironmentNotReadyError, match=r"airflow-provider-statecheck\[delta\]"):
        DeltaAttempt(path, 1).open()


def test_each_commit_tells_the_checkpoint_in_the_log_of_the_table(path):
    attempt = DeltaAttempt(path, 3).open()
    attempt.add(9, 1)
    told = {action["txn"]["appId"]: action["txn"]["version"] for action in log_of(path, 1) if "txn" in action}
    lineage = attempt.files.lineage
    assert told == {f"statecheck-{lineage}": 3, f"statecheck-{lineage}-g1": 9}
