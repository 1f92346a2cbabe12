"""What becomes of rows in a Delta table when attempts replace, restore and start over; and what a zombie can do."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    StaleAttemptError,
)
from airflow_provider_statecheck.spark.sinks.ledger import Ledger
from airflow_provider_statecheck.spark.sinks.target_files import OpenedTarget
from tests.unit.spark.sinks.attempts import SCHEMA, table_of
from tests.unit.spark.sinks.delta.attempts import DeltaAttempt, keys_of, log_of, table_at, versions_of

# Falling back


def test_rows_of_checkpoints_newer_than_the_restored_one_go_in_the_version_of_the_first_new_commit(path):
    first = DeltaAttempt(path, 1).open()
    for checkpoint in (1, 2, 3):
        first.add(checkpoint, checkpoint)
    second = DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()
    assert keys_of(path) == [1, 2, 3]
    second.add(4, 40)
    assert keys_of(path) == [1, 40]
    # No version between them has both or neither.
    assert versions_of(path) == [[], [1], [1, 2], [1, 2, 3], [1, 2, 3], [1, 40]]


def test_rows_newer_than_the_restored_checkpoint_go_at_the_end_if_nothing_replaced_them(path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    DeltaAttempt(path, 2, restored=1, restored_epoch=1).open().finish()
    assert keys_of(path) == [1]


def test_rows_that_wait_to_be_replaced_are_kept_for_an_attempt_that_restores_them_after_all(path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()
    third = DeltaAttempt(path, 3, restored=2, restored_epoch=1).open()
    third.add(3, 3)
    third.finish()
    assert keys_of(path) == [1, 2, 3]


@pytest.mark.parametrize("is_told", [True, False])
def test_a_checkpoint_whose_rows_were_replaced_cannot_be_restored(path, is_told):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    DeltaAttempt(path, 2, restored=1, restored_epoch=1).open().add(3, 3)
    with pytest.raises(CorruptStateError, match=r"output of checkpoint 2 .* checkpoint 3 of attempt 2 replaced it"):
        DeltaAttempt(path, 3, restored=2, restored_epoch=1 if is_told else None).open()
    assert keys_of(path) == [1, 3]


def test_a_checkpoint_whose_rows_went_at_the_end_of_an_attempt_cannot_be_restored(path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    DeltaAttempt(path, 2, restored=1, restored_epoch=1).open().finish()
    with pytest.raises(CorruptStateError, match="output of checkpoint 2"):
        DeltaAttempt(path, 3, restored=2, restored_epoch=1).open()


def test_a_commit_that_an_attempt_intended_and_left_is_made_by_whoever_restores_it(path, monkeypatch):
    first = DeltaAttempt(path, 1).open()
    written = first.write(1)
    monkeypatch.setattr("deltalake.DeltaTable.create_write_transaction", _dying)
    with pytest.raises(KeyboardInterrupt):
        first.commit(1, written)
    monkeypatch.undo()
    assert keys_of(path) == []
    DeltaAttempt(path, 2, restored=1, restored_epoch=1).open().commit(1, written)
    assert keys_of(path) == [1]


def test_a_commit_that_was_intended_on_a_branch_that_was_left_never_comes(path, monkeypatch):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    written = first.write(2)
    monkeypatch.setattr("deltalake.DeltaTable.create_write_transaction", _dying)
    with pytest.raises(KeyboardInterrupt):
        first.commit(2, written)
    monkeypatch.undo()
    second = DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()
    second.add(3, 3)
    second.commit(2, written)
    assert keys_of(path) == [1, 3]


def test_a_file_that_a_branch_which_was_left_intended_too_stays(path, monkeypatch):
    first = DeltaAttempt(path, 1).open()
    one = first.write(1)
    monkeypatch.setattr("deltalake.DeltaTable.create_write_transaction", _dying)
    with pytest.raises(KeyboardInterrupt):
        first.commit(2, [*one, *first.write(2)])
    monkeypatch.undo()
    second = DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()
    second.commit(1, one)
    second.add(3, 3)
    assert keys_of(path) == [1, 3]


def test_a_file_that_only_a_branch_which_was_left_has_committed_is_not_counted_as_committed(path):
    first = DeltaAttempt(path, 1).open()
    one = first.write(1)
    first.commit(2, [*one, *first.write(2)])
    second = DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()
    with pytest.raises(CorruptStateError, match="the same output with each commit of checkpoint 1"):
        second.commit(1, one)


def test_a_restored_checkpoint_is_not_committed_after_another_branch_was(path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    late = first.write(2)
    DeltaAttempt(path, 2, restored=1, restored_epoch=1).open().add(3, 3)
    third = DeltaAttempt(path, 3, restored=2, restored_epoch=1).open()
    with pytest.raises(CoordinatorError, match=r"a checkpoint after 3 of attempt 2"):
        third.commit(2, late)
    assert keys_of(path) == [1, 3]


# Starting over


def test_a_fresh_start_replaces_earlier_rows_in_the_version_of_its_first_commit(path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    second = DeltaAttempt(path, 2, generation=2).open()
    assert keys_of(path) == [1, 2]
    second.add(1, 10)
    assert versions_of(path) == [[], [1], [1, 2], [1, 2], [10]]


def test_a_checkpoint_of_the_same_number_in_a_new_generation_is_another_one(path):
    DeltaAttempt(path, 1).open().add(5, 1)
    second = DeltaAttempt(path, 2, generation=2).open()
    second.add(1, 10)
    second.add(5, 50)
    assert keys_of(path) == [10, 50]


def test_a_fresh_start_without_output_ends_with_none(path):
    DeltaAttempt(path, 1).open().add(1, 1)
    DeltaAttempt(path, 2, generation=2).open().finish()
    assert keys_of(path) == []


def test_a_fresh_start_is_refused_beside_earlier_rows_if_told_so(path):
    DeltaAttempt(path, 1).open().add(1, 1, 2)
    with pytest.raises(EnvironmentNotReadyError, match=r"found 2 rows of 1 checkpoint\(s\).*restore from checkpoint 1"):
        DeltaAttempt(path, 2, generation=2, on_earlier_output="refuse").open()
    DeltaAttempt(path, 2, restored=1, restored_epoch=1, on_earlier_output="refuse").open()


def test_a_fresh_start_replaces_rows_whose_records_are_lost(path, tmp_path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    (tmp_path / "table" / "_statecheck").rename(tmp_path / "away")
    DeltaAttempt(path, 2, generation=2).open().add(2, 2)
    assert keys_of(path) == [2]


def test_a_restored_attempt_without_its_records_is_refused(path, tmp_path):
    DeltaAttempt(path, 1).open().add(1, 1)
    (tmp_path / "table" / "_statecheck").rename(tmp_path / "away")
    with pytest.raises(CorruptStateError, match="record of checkpoint 1 below _statecheck"):
        DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()


# Rows of others


def test_two_lineages_never_touch_each_others_rows(path):
    DeltaAttempt(path, 1, job="a").open().add(1, 1)
    DeltaAttempt(path, 1, job="b").open().add(1, 2)
    DeltaAttempt(path, 2, job="a", generation=2).open().add(1, 3)
    assert keys_of(path) == [2, 3]


def test_rows_of_strangers_stay(path):
    write_deltalake(path, table_of([100]))
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    write_deltalake(path, table_of([101]), mode="append")
    DeltaAttempt(path, 2, generation=2).open().add(1, 2)
    assert keys_of(path) == [2, 100, 101]


def test_replaced_rows_are_read_by_their_version_until_vacuum(path):
    DeltaAttempt(path, 1).open().add(1, 1)
    second = DeltaAttempt(path, 2, generation=2).open()
    second.add(1, 2)
    second.finish()
    assert keys_of(path, version=1) == [1]
    table_at(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert keys_of(path) == [2]


def test_rows_that_somebody_rewrote_cannot_be_taken_back(path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    table_at(path).optimize.compact()
    with pytest.raises(
        CorruptStateError, match=r"another writer has rewritten 2 of them.*OPTIMIZE.*Delete the rows of this job"
    ):
        DeltaAttempt(path, 2, generation=2).open()
    assert keys_of(path) == [1, 2]


def test_rewritten_rows_are_no_hindrance_to_going_on(path):
    first = DeltaAttempt(path, 1).open()
    written = first.add(1, 1)
    first.add(2, 2)
    table_at(path).optimize.compact()
    second = DeltaAttempt(path, 2, restored=2, restored_epoch=1).open()
    second.commit(1, written)
    second.commit(3, [*written, *second.write(3)])
    second.finish()
    assert keys_of(path) == [1, 2, 3]


def test_rows_that_somebody_deleted_as_whole_files_are_no_hindrance(path):
    DeltaAttempt(path, 1).open().add(1, 1)
    table_at(path).delete()
    DeltaAttempt(path, 2, generation=2).open().add(1, 2)
    assert keys_of(path) == [2]


def test_a_table_that_only_grows_lets_nothing_be_replaced(path):
    DeltaTable.create(path, SCHEMA, configuration={"delta.appendOnly": "true"})
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    DeltaAttempt(path, 2, restored=1, restored_epoch=1).open().add(2, 2)
    with pytest.raises(EnvironmentNotReadyError, match="append-only"):
        DeltaAttempt(path, 3, generation=2).open()
    assert keys_of(path) == [1, 2]


# Zombies


def test_an_attempt_of_a_lower_epoch_cannot_open(path):
    DeltaAttempt(path, 2).open()
    with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
        DeltaAttempt(path, 1).open()


def test_a_zombie_cannot_commit(path):
    first = DeltaAttempt(path, 1).open()
    written = first.write(1)
    DeltaAttempt(path, 2).open()
    with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
        first.commit(1, written)
    with pytest.raises(StaleAttemptError):
        first.finish()
    assert keys_of(path) == []


@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_a_zombie_that_has_looked_already_is_refused_by_the_commit_itself(path, monkeypatch, schema):
    first = DeltaAttempt(path, 1, schema=schema).open()
    written = first.write(1)
    _before_the_next_version(monkeypatch, lambda: DeltaAttempt(path, 2).open())
    with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
        first.commit(1, written)
    assert keys_of(path) == []


def test_a_zombie_cannot_commit_again_what_was_replaced(path):
    first = DeltaAttempt(path, 1).open()
    written = first.add(1, 1)
    DeltaAttempt(path, 2, generation=2).open().add(2, 2)
    with pytest.raises(StaleAttemptError):
        first.commit(1, written)
    assert keys_of(path) == [2]


@pytest.mark.parametrize("restored", [0, 1])
@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_a_commit_that_an_older_attempt_makes_while_the_next_one_opens_is_known_to_that(
    path, monkeypatch, schema, restored
):
    first = DeltaAttempt(path, 1, schema=schema).open()
    written = first.write(1)
    second = DeltaAttempt(path, 2, schema=schema, restored=restored or None, restored_epoch=restored or None)
    begin = Ledger.begin_attempt

    def behind_a_commit(ledger, *args):
        monkeypatch.undo()
        first.commit(1, written)
        begin(ledger, *args)

    monkeypatch.setattr(Ledger, "begin_attempt", behind_a_commit)
    second.open()
    assert keys_of(path) == [1]
    if restored:
        second.commit(1, written)
    second.add(2, 2)
    second.finish()
    assert keys_of(path) == ([1, 2] if restored else [2])


def test_an_attempt_that_is_overtaken_while_it_opens_stops_there(path, monkeypatch):
    DeltaAttempt(path, 1).open()
    _before_the_next_version(monkeypatch, lambda: DeltaAttempt(path, 3).open())
    with pytest.raises(StaleAttemptError, match="attempt 3"):
        DeltaAttempt(path, 2).open()


def test_files_that_no_commit_names_go_at_the_end(path):
    DeltaAttempt(path, 1).open().write(1)
    second = DeltaAttempt(path, 2).open()
    second.write(2)
    second.add(1, 3)
    second.finish()
    assert len(second.files.list_files(f"statecheck-{second.files.lineage}")) == 1
    assert keys_of(path) == [3]


def test_files_of_a_newer_attempt_and_those_of_old_versions_stay_at_the_end_of_an_older_one(path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    second = DeltaAttempt(path, 2, generation=2).open()
    second.add(1, 2)
    newer = DeltaAttempt(path, 3, generation=2)
    newer.sink._target = OpenedTarget.of(path, newer.context, None)
    newer.write(3)
    second.finish()
    assert len(second.files.list_files(f"statecheck-{second.files.lineage}")) == 3
    assert keys_of(path, version=1) == [1]


def test_opening_twice_is_opening_once(path):
    attempt = DeltaAttempt(path, 1).open()
    version = table_at(path).version()
    attempt.open()
    assert table_at(path).version() == version


def test_an_attempt_does_not_fall_back_behind_its_own_commits(path):
    first = DeltaAttempt(path, 1).open()
    first.add(1, 1)
    second = DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()
    second.add(2, 2)
    again = DeltaAttempt(path, 2)
    with pytest.raises(CoordinatorError, match="register a new attempt"):
        again.open()


def test_the_history_of_the_table_tells_who_changed_it_and_why(path):
    first = DeltaAttempt(path, 1).open()
    first.add(7, 1)
    told = next(action["commitInfo"] for action in log_of(path, 1) if "commitInfo" in action)
    assert told["statecheck"] == {
        "attempt": "commits",
        "job": "balances",
        "uid": "stage/sink",
        "epoch": 1,
        "checkpoint": 7,
        "generation": 1,
        "retracted": 0,
    }


def _before_the_next_version(monkeypatch, step):
    """Let something happen between the last look at the table and the commit."""
    from airflow_provider_statecheck.spark.sinks.delta.delta_table import DeltaTableAccess

    done: list[str] = []

    def patched(name):
        method = getattr(DeltaTableAccess, name)

        def meanwhile(*args):
            if not done:
                done.append(name)
                step()
            return method(*args)

        monkeypatch.setattr(DeltaTableAccess, name, meanwhile)

    patched("commit")
    patched("create")


def _dying(*_, **__):
    raise KeyboardInterrupt


def test_a_zombie_is_refused_by_a_table_that_somebody_else_has_made_meanwhile(path):
    zombie = DeltaAttempt(path, 1, schema=None).open()
    written = zombie.write(1)
    DeltaAttempt(path, 2, schema=None).open()
    DeltaTable.create(path, SCHEMA)
    with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
        zombie.commit(1, written)
    assert keys_of(path) == []


def test_a_table_that_was_made_anew_before_a_retry_is_told(path, tmp_path, caplog):
    DeltaAttempt(path, 1).open().add(1, 1)
    DeltaAttempt(path, 2, restored=1, restored_epoch=1).open()
    assert "does not know" not in caplog.text
    (tmp_path / "table").rename(tmp_path / "away")
    DeltaTable.create(path, SCHEMA)
    DeltaAttempt(path, 3, restored=1, restored_epoch=1).open()
    assert "does not know attempt 1, which took the restored checkpoint 1" in caplog.text
