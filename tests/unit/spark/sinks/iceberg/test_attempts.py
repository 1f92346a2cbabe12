"""What becomes of output in a table when attempts replace, restore and start over."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    StaleAttemptError,
)
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_writer import files_of
from tests.unit.spark.sinks.iceberg.tables import (
    TABLE,
    Attempt,
    append_as_somebody_else,
    create_table,
    ledger_in,
    opened,
    seen_in,
    table_in,
)

# Going on


def test_output_of_each_checkpoint_is_seen_when_it_is_committed(folder):
    attempt = Attempt(folder, 1).open()
    first, second = attempt.write(1, 2), attempt.write(3)
    assert seen_in(folder) == []
    attempt.commit(1, first)
    assert seen_in(folder) == [1, 2]
    attempt.commit(2, second)
    attempt.finish()
    assert seen_in(folder) == [1, 2, 3]


def test_a_commit_that_is_repeated_adds_nothing(folder):
    first = Attempt(folder, 1).open()
    written = first.add(1, 1)
    first.commit(1, written)
    first.die()
    second = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    second.commit(1, written)
    second.add(2, 2)
    second.finish()
    assert seen_in(folder) == [1, 2]


def test_a_commit_that_never_came_is_made_by_the_next_attempt(folder):
    first = Attempt(folder, 1).open()
    one, two = first.write(1), first.write(2)
    first.die()
    second = Attempt(folder, 2, restored=2, restored_epoch=1).open()
    second.commit(1, one)
    second.commit(2, two)
    second.add(3, 3)
    second.finish()
    assert seen_in(folder) == [1, 2, 3]


def test_files_that_no_checkpoint_named_are_never_seen(folder):
    first = Attempt(folder, 1).open()
    first.write(1)
    first.die()
    second = Attempt(folder, 2).open()
    second.add(1, 1)
    second.finish()
    assert seen_in(folder) == [1]


def test_a_checkpoint_without_rows_makes_no_snapshot(folder):
    attempt = Attempt(folder, 1).open()
    attempt.add(1, 1)
    with table_in(folder) as table:
        before = table.current_snapshot().snapshot_id
    attempt.commit(2, attempt.write())
    attempt.commit(2, attempt.write())
    attempt.finish()
    with table_in(folder) as table:
        assert table.current_snapshot().snapshot_id == before


def test_the_same_checkpoint_with_other_output_is_refused(folder):
    attempt = Attempt(folder, 1).open()
    attempt.add(1, 1)
    with pytest.raises(CorruptStateError, match="same output with each commit of checkpoint 1"):
        attempt.add(1, 2, 3)
    assert seen_in(folder) == [1]


def test_a_table_that_was_made_anew_meanwhile_is_not_written_to(folder):
    attempt = Attempt(folder, 1).open()
    written = attempt.write(1)
    make_anew(folder)
    with pytest.raises(CorruptStateError, match="attempt 1 opened, found one of no attempt"):
        attempt.commit(1, written)
    with pytest.raises(CorruptStateError, match="was recreated"):
        attempt.finish()
    assert seen_in(folder) == []


def test_a_table_that_was_made_anew_before_a_retry_is_told(folder, caplog):
    Attempt(folder, 1).open().add(1, 1)
    Attempt(folder, 2, restored=1, restored_epoch=1).open()
    assert "does not know" not in caplog.text
    make_anew(folder)
    Attempt(folder, 3, restored=1, restored_epoch=1).open()
    assert "sales.orders does not know attempt 1, which took the restored checkpoint 1" in caplog.text


def make_anew(folder):
    with opened(folder) as catalog:
        catalog.drop_table(TABLE)
    create_table(folder)


def test_a_checkpoint_that_comes_after_newer_ones_is_refused(folder):
    attempt = Attempt(folder, 1).open()
    attempt.add(2, 2)
    with pytest.raises(CoordinatorError, match="found checkpoint 1 of attempt 1"):
        attempt.add(1, 1)
    assert seen_in(folder) == [2]


def test_a_snapshot_says_which_checkpoint_it_is(folder):
    Attempt(folder, 1).open().add(7, 1)
    with table_in(folder) as table:
        summary = table.current_snapshot().summary
    names = ("job", "uid", "checkpoint", "generation", "epoch")
    assert [summary[f"statecheck.{name}"] for name in names] == ["balances", "stage/sink", "7", "1", "1"]


# Falling back


def test_output_newer_than_the_restored_checkpoint_is_replaced_by_the_first_new_commit(folder):
    first = Attempt(folder, 1).open()
    for checkpoint in (1, 2, 3):
        first.add(checkpoint, checkpoint)
    second = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    assert seen_in(folder) == [1, 2, 3]
    second.add(4, 40)
    assert seen_in(folder) == [1, 40]


def test_output_newer_than_the_restored_checkpoint_goes_at_the_end_if_nothing_replaced_it(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    Attempt(folder, 2, restored=1, restored_epoch=1).open().finish()
    assert seen_in(folder) == [1]


def test_a_first_commit_without_rows_replaces_output_too(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    second = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    second.commit(3, second.write())
    assert seen_in(folder) == [1]


def test_output_that_waits_to_be_replaced_is_kept_for_an_attempt_that_restores_it_after_all(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    Attempt(folder, 2, restored=1, restored_epoch=1).open()
    third = Attempt(folder, 3, restored=2, restored_epoch=1).open()
    third.add(3, 3)
    third.finish()
    assert seen_in(folder) == [1, 2, 3]


def test_a_checkpoint_whose_output_was_replaced_cannot_be_restored(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    Attempt(folder, 2, restored=1, restored_epoch=1).open().add(3, 3)
    with pytest.raises(
        CorruptStateError, match=r"output of checkpoint 2 .* when checkpoint 3 of attempt 2 replaced it"
    ):
        Attempt(folder, 3, restored=2, restored_epoch=1).open()
    assert seen_in(folder) == [1, 3]


def test_the_line_of_a_restored_checkpoint_is_that_of_the_attempt_that_took_it(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    late = Attempt(folder, 2, restored=1, restored_epoch=1).open().write(3)
    # Checkpoint 3 was complete, and the process died before it was committed.
    third = Attempt(folder, 3, restored=3, restored_epoch=2).open()
    third.commit(3, late)
    third.add(4, 4)
    assert seen_in(folder) == [1, 3, 4]


def test_an_open_commit_of_a_branch_that_was_left_adds_nothing(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    late = first.write(2)
    second = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    second.add(3, 3)
    second.commit(2, late)
    second.commit(2, late)
    second.finish()
    assert seen_in(folder) == [1, 3]
    with pytest.raises(CorruptStateError, match="output of checkpoint 2"):
        Attempt(folder, 3, restored=2, restored_epoch=1).open()


def test_an_open_commit_newer_than_the_restored_checkpoint_is_kept_until_it_is_replaced(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    late = first.write(2)
    Attempt(folder, 2, restored=1, restored_epoch=1).open().commit(2, late)
    third = Attempt(folder, 3, restored=2, restored_epoch=1).open()
    third.add(3, 3)
    assert seen_in(folder) == [1, 2, 3]


def test_a_restored_checkpoint_without_committables_keeps_what_it_goes_on_from(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    second = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    second.add(2, 2)
    third = Attempt(folder, 3, restored=3, restored_epoch=2).open()
    third.commit(3, [])
    third.add(4, 4)
    third.finish()
    assert seen_in(folder) == [1, 2, 4]


def test_an_attempt_restores_nothing_else_after_its_own_first_commit(folder):
    Attempt(folder, 1).open().add(1, 1)
    second = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    second.add(2, 2)
    with pytest.raises(CoordinatorError, match="keep its restored checkpoint after its first commit"):
        Attempt(folder, 2).open()
    Attempt(folder, 2, restored=1, restored_epoch=1).open()


# Starting over


def test_a_fresh_start_replaces_earlier_output_with_its_first_commit(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    second = Attempt(folder, 2, generation=2).open()
    assert seen_in(folder) == [1, 2]
    second.add(3, 30)
    assert seen_in(folder) == [30]
    second.add(4, 40)
    assert seen_in(folder) == [30, 40]


def test_a_fresh_start_without_output_ends_with_an_empty_table(folder):
    Attempt(folder, 1).open().add(1, 1)
    Attempt(folder, 2, generation=2).open().finish()
    assert seen_in(folder) == []


def test_a_fresh_start_that_fails_leaves_what_was_there(folder):
    Attempt(folder, 1).open().add(1, 1)
    second = Attempt(folder, 2, generation=2).open()
    second.write(2)
    second.die()
    assert seen_in(folder) == [1]


def test_the_ledger_forgets_generations_of_which_nothing_is_left(folder):
    Attempt(folder, 1).open().add(1, 1)
    Attempt(folder, 2, generation=2).open().add(2, 2)
    Attempt(folder, 3, generation=3).open().add(3, 3)
    ledger = ledger_in(folder)
    assert ledger is not None
    assert (set(ledger.starts), ledger.retracted, len(ledger.commits)) == ({3}, frozenset(), 1)


def test_a_fresh_start_is_refused_beside_earlier_output_if_told_so(folder):
    Attempt(folder, 1).open().add(1, 1)
    with pytest.raises(EnvironmentNotReadyError, match=r"found 1 rows of 1 checkpoint"):
        Attempt(folder, 2, generation=2, on_earlier_output="refuse").open()
    Attempt(folder, 2, restored=1, restored_epoch=1, on_earlier_output="refuse").open()


# Zombies


@pytest.mark.parametrize("act", [lambda a: a.add(2, 2), lambda a: a.finish(), lambda a: a.open()])
def test_an_attempt_that_a_newer_one_has_followed_can_do_nothing(folder, act):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    second = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    with pytest.raises(StaleAttemptError, match="attempt 2 took it over"):
        act(first)
    second.add(2, 20)
    assert seen_in(folder) == [1, 20]


# Others


def test_rows_of_others_stay_whatever_is_replaced(folder):
    append_as_somebody_else(folder, 100)
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    append_as_somebody_else(folder, 101)
    other = Attempt(folder, 1, job="another").open()
    other.add(1, 50)
    second = Attempt(folder, 2, generation=2).open()
    second.add(2, 2)
    second.finish()
    assert seen_in(folder) == [2, 50, 100, 101]


def test_files_with_names_of_others_are_never_taken_out(folder):
    Attempt(folder, 1).open().add(1, 1)
    ledger = ledger_in(folder)
    assert ledger is not None
    with table_in(folder) as table:
        assert len(files_of(table, "471f45535aca", ledger.commits, "sales.orders")) == 1
        with pytest.raises(CorruptStateError, match="found 0"):
            files_of(table, "000000000000", ledger.commits, "sales.orders")


def test_output_of_another_job_is_never_committed(folder):
    theirs = Attempt(folder, 1, job="another").open()
    written = theirs.write(50)
    ours = Attempt(folder, 1).open()
    with pytest.raises(IncompatibleCheckpointError, match="checkpoint 1 of 'stage/sink' of job 'another'"):
        ours.commit(1, written)
    theirs.commit(1, written)
    ours.commit(1, written)
    ours.add(2, 2)
    assert seen_in(folder) == [2, 50]


def test_output_of_another_job_in_another_table_is_left_to_it(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    create_table(elsewhere)
    written = Attempt(elsewhere, 1, job="another").open().write(50)
    ours = Attempt(folder, 1).open()
    ours.commit(1, written)
    ours.add(2, 2)
    assert seen_in(folder) == [2]


# What others do to the table


def _delete(folder, condition):
    with table_in(folder) as table:
        table.delete(condition)


def test_output_that_somebody_has_rewritten_is_not_replaced_but_refused_before_any_work(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1, 2)
    _delete(folder, "key = 1")
    with pytest.raises(CorruptStateError, match=r"Expected 1 files of 1 checkpoint\(s\) .* found 0"):
        Attempt(folder, 2, generation=2).open()
    ledger = ledger_in(folder)
    assert ledger is not None
    assert ledger.epoch == 1
    assert seen_in(folder) == [2]


def test_output_that_somebody_has_rewritten_can_be_gone_on_from(folder):
    Attempt(folder, 1).open().add(1, 1, 2)
    _delete(folder, "key = 1")
    second = Attempt(folder, 2, restored=1, restored_epoch=1).open()
    second.add(2, 3)
    second.finish()
    assert seen_in(folder) == [2, 3]


def test_a_table_that_was_rolled_back_behind_the_restored_checkpoint_is_refused(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    with table_in(folder) as table:
        before = table.current_snapshot().snapshot_id
    first.add(2, 2)
    with table_in(folder) as table:
        table.manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(CorruptStateError, match="rolled back"):
        Attempt(folder, 2, restored=2, restored_epoch=1).open()


def test_expired_snapshots_take_nothing_from_what_is_known(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    written = first.add(3, 3)
    append_as_somebody_else(folder, 100)
    with table_in(folder) as table:
        keep = {ref.snapshot_id for ref in table.metadata.refs.values()}
        table.maintenance.expire_snapshots().by_ids(
            [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in keep]
        ).commit()
        assert len(table.metadata.snapshots) == 2
    second = Attempt(folder, 2, restored=3, restored_epoch=1).open()
    second.commit(3, written)
    assert seen_in(folder) == [1, 2, 3, 100]
    third = Attempt(folder, 3, restored=1, restored_epoch=1).open()
    third.add(4, 4)
    assert seen_in(folder) == [1, 4, 100]


def test_the_branch_of_the_ledger_is_never_forgotten_by_age(tmp_path):
    create_table(tmp_path, properties={"history.expire.max-ref-age-ms": "1"})
    Attempt(tmp_path, 1).open().add(1, 1)
    with table_in(tmp_path) as table:
        branches = [ref for name, ref in table.metadata.refs.items() if name != "main"]
    assert [ref.max_ref_age_ms for ref in branches] == [2**63 - 1]


def test_the_metadata_of_a_table_holds_one_ledger_however_many_commits_there_were(folder):
    attempt = Attempt(folder, 1).open()
    for checkpoint in range(1, 6):
        attempt.add(checkpoint, checkpoint)
    with table_in(folder) as table:
        ledgers = [s for s in table.metadata.snapshots if "statecheck.ledger" in s.summary.additional_properties]
        lists = list((folder / "warehouse").rglob("snap-*.avro"))
        assert len(ledgers) == 1
        assert len(lists) == len(table.metadata.snapshots)
