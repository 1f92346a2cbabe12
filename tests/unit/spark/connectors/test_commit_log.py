"""The commit log of a sink, and its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError, StaleAttemptError
from airflow_provider_statecheck.spark.connectors.custom.two_phase_commit_sink import TransactionCommittable
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import CommitFiles, seal, unseal
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import (
    ALL_CHECKPOINTS,
    Ancestry,
    CommitLog,
    CommitRange,
    Start,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import open_target
from airflow_provider_statecheck.testing.sink_contract import SinkAttempt
from tests.unit.spark.connectors.folder_sink import FolderSink, keys_in, opened


def a_range(epoch: int, first: int, last: int, generation: int = 1) -> CommitRange:
    return CommitRange(generation=generation, epoch=epoch, first=first, last=last)


def a_log() -> CommitLog:
    """Return that of an attempt with three commits."""
    log = CommitLog().begun(1, Start(1))
    for checkpoint_id in (1, 2, 3):
        log = log.adding(1, 1, checkpoint_id)
    return log


def test_commits_of_one_attempt_are_one_range():
    assert a_log().committed == (a_range(1, 1, 3),)


def test_the_size_of_a_log_does_not_follow_the_number_of_checkpoints():
    log = a_log()
    for checkpoint_id in range(4, 1000):
        log = log.adding(1, 1, checkpoint_id)
    assert len(log.encode()) < len(a_log().encode()) + 5


def test_a_log_holds_what_was_committed_and_what_came_before_without_output():
    log = a_log().adding(1, 1, 7)
    assert log.holds(1, 3)
    assert log.holds(1, 5)
    assert not log.holds(1, 8)
    assert not log.holds(2, 3)


def test_the_newest_epoch_is_that_of_the_last_attempt_that_began():
    assert CommitLog().newest_epoch == 0
    assert a_log().begun(4, Start(1, 3, 1)).newest_epoch == 4


def test_what_came_after_the_restored_checkpoint_is_outside_the_line_of_the_new_attempt():
    log = a_log().begun(2, Start(1, 1, 1))
    line = log.ancestry_of(2)
    assert log.outside(line) == (a_range(1, 2, 3),)
    kept = log.retracting(line)
    assert kept.committed == (a_range(1, 1, 1),)
    assert kept.retracted == (a_range(1, 2, 3),)


@pytest.mark.parametrize(
    ("start", "outside"), [(Start(2), (a_range(1, 1, 3),)), (Start(1, 3, 1), ())], ids=["fresh", "newest restored"]
)
def test_all_or_nothing_may_be_outside_the_line_of_an_attempt(start, outside):
    log = a_log().begun(2, start)
    assert log.outside(log.ancestry_of(2)) == outside


def test_a_line_goes_over_an_attempt_that_committed_nothing():
    log = a_log().begun(2, Start(1, 1, 1)).begun(3, Start(1, 5, 2))
    assert log.ancestry_of(3).holds(1, 1)
    assert log.ancestry_of(3).holds(2, 5)
    assert log.outside(log.ancestry_of(3)) == (a_range(1, 2, 3),)


def test_a_line_ends_at_an_attempt_that_is_not_older():
    assert CommitLog().begun(1, Start(1, 2, 7)).ancestry_of(1) == Ancestry(((1, ALL_CHECKPOINTS),))


def a_line_of(epoch: int, *starts: tuple[int, Start]) -> Ancestry:
    log = CommitLog()
    for each in starts:
        log = log.begun(*each)
    return log.ancestry_of(epoch)


def test_a_line_holds_what_each_attempt_took_up_to_where_the_next_one_began():
    line = a_line_of(3, (1, Start(1)), (2, Start(1, 3, 1)), (3, Start(1, 3, 1)))
    assert line == Ancestry(((3, ALL_CHECKPOINTS), (1, 3)))
    assert [line.holds(3, 9), line.holds(1, 3), line.holds(1, 4), line.holds(2, 1)] == [True, True, False, False]


@pytest.mark.parametrize("later", [[], [(4, Start(1, 10, 3))]], ids=["at once", "over a later attempt"])
def test_a_checkpoint_of_an_attempt_that_wrote_elsewhere_in_between_is_told(later):
    starts = [(1, Start(1)), (3, Start(1, 9, 2)), *later]
    with pytest.raises(
        CorruptStateError,
        match=r"attempt 2, .* checkpoint 9, .* as attempt 1 did, found no record .* changed in between",
    ) as told:
        a_line_of(starts[-1][0], *starts)
    assert told.value.checkpoint_id == 9


@pytest.mark.parametrize(
    "starts",
    [[], [(4, Start(2, 9, 2))], [(1, Start(1))], [(2, Start(2))]],
    ids=["nothing", "only newer", "another generation", "known"],
)
def test_a_line_may_begin_with_a_checkpoint_that_was_taken_before_the_sink_came(starts):
    assert a_line_of(3, *starts, (3, Start(2, 9, 2))) == Ancestry(((3, ALL_CHECKPOINTS), (2, 9)))


def test_a_restored_checkpoint_whose_attempt_is_unknown_is_not_guessed_at():
    with pytest.raises(ValueError, match="found checkpoint 3 of attempt None"):
        Start(1, 3)
    text = a_log().begun(2, Start(1, 3, 1)).encode().replace("[1,3,1]", "[1,3,null]")
    with pytest.raises(CorruptStateError, match="Expected the log of a sink"):
        CommitLog.decode(text, "a log")


def test_a_log_survives_being_written_as_text():
    log = a_log().begun(2, Start(1, 1, 1))
    log = log.retracting(log.ancestry_of(2)).adding(1, 2, 4)
    assert CommitLog.decode(log.encode(), "a log") == log
    assert CommitLog.decode(CommitLog().encode(), "a log") == CommitLog()


def test_a_log_remembers_what_cannot_be_taken_back():
    log = a_log().adding(1, 1, 4, is_retractable=False).adding(1, 1, 5, is_retractable=False).adding(1, 1, 6)
    assert [(each.first, each.last, each.is_retractable) for each in log.committed] == [
        (1, 3, True),
        (4, 5, False),
        (6, 6, True),
    ]
    assert CommitLog.decode(log.encode(), "a log") == log
    back = log.begun(2, Start(1, 4, 1))
    assert [each.is_retractable for each in back.outside(back.ancestry_of(2))] == [False, True]


def test_generations_whose_output_was_replaced_are_forgotten():
    log = a_log().begun(2, Start(1, 3, 1)).begun(3, Start(2))
    assert log.retracting(log.ancestry_of(3)).starts == {3: Start(2)}
    assert log.retracting(log.ancestry_of(3)).retracted == ()
    assert log.retracting(log.ancestry_of(3)).forgotten == 2


def test_a_generation_with_output_is_kept():
    log = a_log().begun(2, Start(1, 1, 1))
    kept = log.retracting(log.ancestry_of(2))
    assert (set(kept.starts), kept.forgotten) == ({1, 2}, 0)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format_version": 9}', a_log().encode()[:-2]])
def test_text_that_is_no_log_is_told(text):
    with pytest.raises(CorruptStateError, match="Expected the log of a sink of format 2 in a log"):
        CommitLog.decode(text, "a log")


def files_in(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (folder / "log").rglob(f"{kind}/*.json"))


def log_in(folder: Path) -> CommitFiles:
    (lineage,) = (folder / "log").iterdir()
    return CommitFiles(open_target(str(folder / "log"), {}), lineage.name, TransactionCommittable)


def planned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a log with output to publish and output to retract."""
    opened(folder, 1).add(1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(FolderSink, "commit_transaction", _die)
        with pytest.raises(_Dies):
            opened(folder, 2, generation=2).add(2, 5)


class _Dies(Exception):
    """Stands for the end of a process."""


def _die(*_: Any) -> None:
    raise _Dies


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("attempts/1-*.json", "Expected the log of a sink .* Restore the file from a backup"),
        ("commits/1-1.json", "Expected the output of a checkpoint"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, name, message):
    opened(tmp_path, 1).add(1, 1)
    for file in (tmp_path / "log").rglob(name):
        file.write_text("{}")
    with pytest.raises(CorruptStateError, match=message):
        opened(tmp_path, 2, generation=2).finish()


def test_a_sealed_file_without_a_field_is_refused(tmp_path):
    opened(tmp_path, 1).add(1, 1)
    for kind, message in (("attempts", "the log of a sink"), ("commits", "the output of a checkpoint")):
        (file,) = (tmp_path / "log").rglob(f"{kind}/*.json")
        kept = file.read_bytes()
        file.write_bytes(seal({"epoch": 1}))
        with pytest.raises(CorruptStateError, match=f"Expected {message} in .*, found the fields epoch; .*start over"):
            opened(tmp_path, 2, generation=2).finish()
        file.write_bytes(kept)


def test_an_error_about_a_changed_record_names_no_digest_of_what_was_found():
    sealed = json.loads(seal({"epoch": 1}))
    digest = json.loads(seal({"epoch": 2}))["sha256"]
    assert digest != sealed["sha256"]
    with pytest.raises(CorruptStateError, match="another one") as caught:
        unseal(json.dumps({**sealed, "epoch": 2}).encode(), "a record", "file:///x")
    assert digest[:6] not in str(caught.value)


def test_a_file_without_a_digest_is_refused(tmp_path):
    opened(tmp_path, 1).add(1, 1)
    (record,) = (tmp_path / "log").rglob("commits/1-1.json")
    document = unseal(record.read_bytes(), "", "")
    record.write_text(json.dumps(document))
    with pytest.raises(CorruptStateError, match="Restore the file from a backup"):
        log_in(tmp_path).named_publication("1-1.json")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("attempts/2-*.json", lambda log: log.read()),
        ("attempts/2-*.json", lambda log: log.visible(*log.read())),
        ("commits/1-1.json", lambda log: log.publications(log.read()[1].retracted)),
        ("commits/2-2.json", lambda log: log.named_publication(log.read()[1].published)),
    ],
    ids=["log", "visible", "retracted", "published"],
)
def test_a_changed_byte_is_refused_or_changes_nothing(tmp_path, monkeypatch, name, read):
    planned(tmp_path, monkeypatch)
    log = log_in(tmp_path)
    (file,) = (tmp_path / "log").rglob(name)
    written, expected = file.read_bytes(), read(log)
    assert expected
    refused = 0
    for position in range(len(written)):
        file.write_bytes(_flipped(written, position, 0x20 if position % 2 else 0x01))
        refused += _is_refused(lambda: read(log), expected)
    assert refused > len(written) / 2


def _flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]


def _is_refused(read: Callable[[], Any], expected: Any) -> bool:
    try:
        found = read()
    except CorruptStateError:
        return True
    assert found == expected
    return False


@pytest.mark.parametrize(
    ("name", "next_attempt", "message"),
    [
        ("attempts/1-*.json", {"restored": 1}, "found only records of its commits"),
        ("commits/1-1.json", {"generation": 2}, r"the records of the output to replace .* found none"),
    ],
    ids=["log", "record"],
)
def test_a_deleted_file_is_noticed_before_output_is_orphaned_or_replaced(tmp_path, name, next_attempt, message):
    opened(tmp_path, 1).add(1, 1)
    (file,) = (tmp_path / "log").rglob(name)
    file.unlink()
    with pytest.raises(CorruptStateError, match=message):
        opened(tmp_path, 2, **next_attempt)
    assert keys_in(tmp_path) == [1]


def test_output_of_a_lost_checkpoint_with_the_same_id_is_named_and_a_restart_replaces_it(tmp_path):
    opened(tmp_path, 1).add(1, 1)
    with pytest.raises(CorruptStateError, match="Clear the task with on_clear='restart' to replace it"):
        opened(tmp_path, 2).add(1, 5)
    opened(tmp_path, 3, generation=2).add(2, 5)
    assert keys_in(tmp_path) == [5]


def test_records_of_replaced_output_and_files_of_older_attempts_are_deleted(tmp_path):
    first = opened(tmp_path, 1)
    for checkpoint in range(1, 6):
        first.add(checkpoint, checkpoint)
    second = opened(tmp_path, 2, generation=2)
    second.add(6, 6)
    assert files_in(tmp_path, "commits") == ["2-6.json"]
    second.finish()
    assert {name.partition("-")[0] for name in files_in(tmp_path, "attempts")} == {"2"}


def test_size_of_the_log_does_not_grow_with_fresh_starts(tmp_path):
    sizes = set()
    for generation in range(1, 8):
        attempt = opened(tmp_path, generation, generation=generation)
        attempt.add(generation, generation)
        attempt.finish()
        (log,) = (tmp_path / "log").rglob("attempts/*.json")
        sizes.add(len(log.read_text()))
    assert keys_in(tmp_path) == [7]
    assert len(sizes) <= 2


def test_superseded_attempt_whose_file_was_deleted_cannot_return(tmp_path):
    zombie = opened(tmp_path, 1)
    late = zombie.write(1)
    second = opened(tmp_path, 2)
    second.add(2, 2)
    second.finish()
    assert {name.partition("-")[0] for name in files_in(tmp_path, "attempts")} == {"2"}
    with pytest.raises(StaleAttemptError, match="retry or clear the task until its attempt is above 2"):
        zombie.commit(1, late)
    assert keys_in(tmp_path) == [2]


def test_a_log_that_was_truncated_to_nothing_is_refused_and_not_taken_for_a_claim(tmp_path, monkeypatch):
    opened(tmp_path, 1).add(1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(CommitFiles, "forget_attempts_before", lambda *_: None)
        opened(tmp_path, 2, 1).add(2, 2)
    (newest,) = (tmp_path / "log").rglob("attempts/2-*.json")
    newest.write_bytes(b"")
    with pytest.raises(CorruptStateError, match=r"Expected the log of a sink in .*, found b''"):
        log_in(tmp_path).read()
    with pytest.raises(CorruptStateError):
        opened(tmp_path, 3, 2)
    assert keys_in(tmp_path) == [1, 2]


def test_a_log_can_be_in_an_object_store(object_store, tmp_path):
    object_store.faults.clear()
    log = f"s3://{object_store.make_bucket()}/log"

    def started(epoch: int, restored: int | None = None) -> SinkAttempt:
        sink = FolderSink(tmp_path, log=log, storage_options=object_store.storage_options)
        return SinkAttempt(sink, epoch, restored=restored).open()

    first = started(1)
    first.add(1, 1)
    first.add(2, 2)
    second = started(2, 1)
    second.add(3, 20)
    second.finish()
    with pytest.raises(StaleAttemptError):
        first.add(3, 3)
    assert keys_in(tmp_path) == [1, 20]
