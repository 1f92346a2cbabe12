"""Versions of a Delta table: what a commit writes, other writers, zombies, lost logs, and object stores."""

from __future__ import annotations

from contextlib import suppress

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    StaleAttemptError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.spark.connectors.delta.destination import LogFiles, epoch_of_log
from airflow_provider_statecheck.spark.connectors.delta.table import DeltaTableAccess
from airflow_provider_statecheck.spark.connectors.exactly_once import committer
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, table_of
from tests.unit.spark.connectors.delta.attempts import (
    DeltaAttempt,
    added_in,
    keys_of,
    log_of,
    orphans_in,
    rows_of,
    table_at,
    versions_of,
)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(committer, "pause", lambda _: None)


@pytest.fixture
def before_commit(monkeypatch):
    """Let something happen between the last look at the table and the next version."""

    def prepare(step):
        commit = DeltaTableAccess.commit

        def meanwhile(*args):
            monkeypatch.setattr(DeltaTableAccess, "commit", commit)
            step()
            return commit(*args)

        monkeypatch.setattr(DeltaTableAccess, "commit", meanwhile)

    return prepare


# Versions


def test_table_is_created_before_any_work_if_its_columns_are_known(path):
    DeltaAttempt(path, 1).open()
    assert rows_of(path).schema.names == SCHEMA.names


def test_table_is_created_by_the_first_commit_if_its_columns_are_unknown(path):
    attempt = DeltaAttempt(path, 1, schema=None).open()
    assert not DeltaTable.is_deltatable(path)
    attempt.add(1, 1)
    assert versions_of(path) == [[], [1]]


def test_checkpoint_is_one_version_with_the_files_of_all_its_tasks(path):
    attempt = DeltaAttempt(path, 1).open()
    tasks = [*attempt.write(1, subtask=0), *attempt.write(2, subtask=1)]
    attempt.commit(1, tasks)
    assert versions_of(path) == [[], [], [1, 2]]
    names = [file["name"] for task in tasks for file in task["files"]]
    assert sorted(add["path"] for add in added_in(path)) == sorted(names)


def test_checkpoint_without_rows_writes_no_version(path):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1)
    attempt.add(2, 2)
    attempt.add(3)
    attempt.finish()
    assert versions_of(path) == [[], [], [2]]


@pytest.mark.parametrize("start", [{"restored": 1}, {"generation": 2}])
def test_replaced_rows_leave_in_the_version_of_the_new_ones_and_remain_in_older_versions(path, tmp_path, start):
    first = DeltaAttempt(path, 1).open()
    for checkpoint in (1, 2, 3):
        first.add(checkpoint, checkpoint)
    second = DeltaAttempt(path, 2, **start).open()
    second.add(4, 40)
    second.finish()
    kept = [1] if "restored" in start else []
    assert versions_of(path) == [[], [], [1], [1, 2], [1, 2, 3], [1, 2, 3], [*kept, 40]]
    third = DeltaAttempt(path, 3, **{"generation": 1, **start, "restored": 4, "restored_epoch": 2}).open()
    third.add(5, 50)
    third.finish()
    assert versions_of(path)[4] == [1, 2, 3]
    records = {file.stem for file in tmp_path.glob("table/_statecheck/*/commits/*")}
    assert records == ({"1-1", "1-2", "1-3", "1-4", "1-5"} if kept else {"2-4", "2-5"})


def test_version_tells_who_wrote_it_and_names_the_log_in_force(path):
    attempt = DeltaAttempt(path, 3).open()
    attempt.add(7, 1)
    actions = {kind: action for entry in log_of(path) for kind, action in entry.items()}
    assert actions["commitInfo"]["statecheck"] == {
        "attempt": "commits",
        "job": "balances",
        "uid": "stage/sink",
        "epoch": 3,
        "checkpoint": 7,
        "generation": 1,
        "retracted": 0,
    }
    version = actions["txn"]["version"]
    assert actions["txn"]["appId"] == f"statecheck-{attempt.context.lineage}"
    assert epoch_of_log(version) == 3
    assert LogFiles(attempt.files).versions() == [version]


def test_commit_that_replaces_nothing_does_not_list_the_files_of_the_table(path, monkeypatch):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1, 1)
    monkeypatch.setattr("deltalake.DeltaTable.file_uris", None)
    attempt.add(2, 2)
    monkeypatch.undo()
    assert keys_of(path) == [1, 2]


def test_two_drivers_of_one_attempt_never_share_a_log(path):
    first = DeltaAttempt(path, 1).open()
    second = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    late = second.write(2)
    second.commit(2, late)
    first.add(3, 3)
    assert keys_of(path) == [1, 2, 3]


# Other writers


def test_versions_of_other_writers_before_the_commit_are_kept(path, before_commit):
    attempt = DeltaAttempt(path, 1).open()
    before_commit(lambda: write_deltalake(path, table_of([100]), mode="append"))
    attempt.add(1, 1)
    write_deltalake(path, table_of([101]), mode="append")
    DeltaAttempt(path, 2, generation=2).open().add(1, 2)
    assert keys_of(path) == [2, 100, 101]


def test_table_that_two_sinks_create_at_once_is_created_once(path, monkeypatch):
    create = DeltaTableAccess.create

    def behind_another(*args):
        monkeypatch.setattr(DeltaTableAccess, "create", create)
        DeltaAttempt(path, 1, job="other").open().add(1, 100)
        return create(*args)

    monkeypatch.setattr(DeltaTableAccess, "create", behind_another)
    DeltaAttempt(path, 1).open().add(1, 1)
    assert keys_of(path) == [1, 100]


def test_commit_that_fails_for_good_changes_nothing_and_says_why(path, monkeypatch):
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


def test_recreated_table_is_not_written_by_the_running_attempt_and_reported_by_the_next_one(path, tmp_path, caplog):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1, 1)
    (tmp_path / "table").rename(tmp_path / "away")
    write_deltalake(path, table_of([7]))
    with pytest.raises(CorruptStateError, match="a table that was recreated"):
        attempt.add(2, 2)
    assert "does not know" not in caplog.text
    DeltaAttempt(path, 2, restored=1, restored_epoch=1).open().add(2, 2)
    assert "does not know attempt 1, which took the restored checkpoint 1" in caplog.text
    assert keys_of(path) == [2, 7]


def test_rows_that_another_writer_has_rewritten_cannot_be_replaced(path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    table_at(path).optimize.compact()
    for start in ({"generation": 2}, {"restored": 1}):
        with pytest.raises(CorruptStateError, match=r"has rewritten \d of them.*OPTIMIZE.*Delete the rows of this job"):
            DeltaAttempt(path, 2, **start).open()
    second = DeltaAttempt(path, 3, restored=2).open()
    second.add(3, 3)
    second.finish()
    assert keys_of(path) == [1, 2, 3]
    assert keys_of(path, 3) == [1, 2]


def test_rows_that_another_writer_has_deleted_as_whole_files_can_be_replaced(path):
    DeltaAttempt(path, 1).open().add(1, 1)
    table_at(path).delete()
    DeltaAttempt(path, 2, generation=2).open().add(1, 2)
    assert keys_of(path) == [2]


def test_append_only_table_refuses_a_start_that_would_replace_rows(path):
    DeltaTable.create(path, SCHEMA, configuration={"delta.appendOnly": "true"})
    DeltaAttempt(path, 1).open().add(1, 1)
    DeltaAttempt(path, 2, restored=1).open().add(2, 2)
    with pytest.raises(EnvironmentNotReadyError, match="append-only"):
        DeltaAttempt(path, 3, generation=2).open()
    assert keys_of(path) == [1, 2]


def test_vacuum_deletes_files_that_wait_for_their_commit_and_leaves_the_records(path):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1, 1)
    written = attempt.write(2)
    table_at(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(CorruptStateError, match=r"of checkpoint 2 in .*found no file; it was deleted, or .* VACUUM"):
        attempt.commit(2, written)
    DeltaAttempt(path, 2, restored=1).open().add(3, 3)
    assert keys_of(path) == [1, 3]


# Zombies


@pytest.mark.parametrize("is_created", [False, True])
def test_zombie_cannot_commit_to_a_table_that_the_newer_attempt_has_not_written_yet(path, is_created):
    zombie = DeltaAttempt(path, 1, schema=None).open()
    written = zombie.write(1)
    DeltaAttempt(path, 2, schema=None).open()
    if is_created:
        DeltaTable.create(path, SCHEMA)
    with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
        zombie.commit(1, written)
    assert not is_created or keys_of(path) == []


@pytest.mark.parametrize("restored", [None, 1])
def test_commit_of_an_older_attempt_before_the_newer_one_has_written_is_known_to_it(path, before_commit, restored):
    first = DeltaAttempt(path, 1).open()
    written = first.write(1)
    before_commit(lambda: first.commit(1, written))
    second = DeltaAttempt(path, 2, restored=restored).open()
    assert keys_of(path) == [1]
    if restored:
        second.commit(1, written)
    second.add(2, 2)
    second.finish()
    assert keys_of(path) == ([1, 2] if restored else [2])


# Orphans and logs


def test_end_deletes_orphans_but_no_file_of_a_newer_attempt(path):
    DeltaAttempt(path, 1).open().write(1)
    second = DeltaAttempt(path, 2).open()
    second.write(2)
    newer = DeltaAttempt(path, 3)
    newer.sink.prepare(newer.context)
    (task,) = newer.write(3)
    second.add(1, 4)
    second.finish()
    assert orphans_in(path) == [file["name"] for file in task["files"]]


@pytest.fixture
def with_lost_log(path, tmp_path):
    """Make a table with a row of each of two attempts, and delete the log."""
    DeltaAttempt(path, 1).open().add(1, 1)
    attempt = DeltaAttempt(path, 2, restored=1).open()
    attempt.add(2, 2)
    (tmp_path / "table" / "_statecheck").rename(tmp_path / "away")
    return attempt


@pytest.mark.usefixtures("with_lost_log")
def test_fresh_start_replaces_all_rows_of_a_lost_log(path):
    with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
        DeltaAttempt(path, 1, generation=2).open()
    third = DeltaAttempt(path, 3, generation=2).open()
    assert keys_of(path) == [1, 2]
    third.add(3, 3)
    third.finish()
    assert keys_of(path) == [3]
    assert keys_of(path, 4) == [1, 2]


def test_attempt_without_its_log_is_refused(path, with_lost_log):
    for call in (lambda: with_lost_log.add(3, 3), DeltaAttempt(path, 3, restored=2, restored_epoch=2).open):
        with pytest.raises(CorruptStateError, match="found none of the version that the table names; it was deleted"):
            call()
    DeltaAttempt(path, 4, generation=2).open()
    with pytest.raises(CorruptStateError, match=r"output of checkpoint 1 .* retracted and replaced"):
        DeltaAttempt(path, 5, restored=1, restored_epoch=1).open()
    assert keys_of(path) == [1, 2]


def test_deleted_records_are_noticed_before_the_output_must_be_replaced(path, tmp_path):
    DeltaAttempt(path, 1).open().add(1, 1)
    (records,) = tmp_path.glob("table/_statecheck/*/commits")
    records.rename(tmp_path / "away")
    with pytest.raises(CorruptStateError, match=r"the records of the output to replace .* found none"):
        DeltaAttempt(path, 2, generation=2).open()
    DeltaAttempt(path, 3, restored=1).open().add(2, 2)
    assert keys_of(path) == [1, 2]


# Maintenance by other writers


@pytest.mark.parametrize(
    "rewrite",
    [lambda table: table.delete("key = 1"), lambda table: table.update({"name": "'u'"}, predicate="key = 1")],
    ids=["delete", "update"],
)
def test_stage_continues_after_rows_were_rewritten_but_cannot_replace_them(path, rewrite):
    written = DeltaAttempt(path, 1).open().add(1, 1, 2)
    rewrite(table_at(path))
    with pytest.raises(CorruptStateError, match="rewritten"):
        DeltaAttempt(path, 2, generation=2).open()
    third = DeltaAttempt(path, 3, restored=1).open()
    third.commit(1, written)
    third.add(2, 3)
    assert 3 in keys_of(path)
    assert keys_of(path).count(2) == 1


def test_upsert_of_another_sink_counts_as_a_rewrite(path):
    DeltaAttempt(path, 1, merge_schema=True).open().add(1, 1, 2)
    DeltaAttempt(path, 1, job="other", merge_schema=True, upsert_by=["key"]).open().add(1, 2, name="theirs")
    with pytest.raises(CorruptStateError, match="rewritten"):
        DeltaAttempt(path, 2, generation=2).open()


def test_vacuum_after_a_replacement_deletes_the_replaced_files_only(path):
    DeltaAttempt(path, 1).open().add(1, 1)
    second = DeltaAttempt(path, 2, generation=2).open()
    second.add(2, 2)
    table_at(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    second.finish()
    DeltaAttempt(path, 3, restored=2, restored_epoch=2, generation=2).open().add(3, 3)
    assert keys_of(path) == [2, 3]


@pytest.mark.parametrize("restored", [None, 1])
@pytest.mark.parametrize("step", ["create", "commit"])
def test_superseded_attempt_that_creates_the_table_late_is_replaced_or_continued(path, monkeypatch, step, restored):
    zombie = DeltaAttempt(path, 1, schema=None).open()
    written = zombie.write(1)
    write, newer = getattr(DeltaTableAccess, step), []

    def overtaken(*args):
        monkeypatch.setattr(DeltaTableAccess, step, write)
        newer.append(DeltaAttempt(path, 2, schema=None, restored=restored).open())
        return write(*args)

    monkeypatch.setattr(DeltaTableAccess, step, overtaken)
    with suppress(StateCheckError):
        zombie.commit(1, written)
    (second,) = newer
    if restored:
        second.commit(1, written)
    second.add(2, 2)
    second.finish()
    assert keys_of(path) == ([1, 2] if restored else [2])
