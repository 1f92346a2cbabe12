"""Restoring with ownership, the end of a manager, and its directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CoordinatorError, StorageError
from airflow_provider_statecheck.storage.file_merging.physical_files import ManagedDirectory
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultPlan, faulty_storage
from tests.unit.storage.file_merging.conftest import Make
from tests.unit.storage.file_merging.driving import ACROSS, EXCLUSIVE, SHARED, WITHIN, Driver, subtask


def test_a_restored_file_of_the_own_directories_is_owned(make: Make) -> None:
    old = make(epoch=1)
    first, second = old.write(b"first", 3), old.write(b"second", 3)
    old.durable(3)
    new = make(epoch=2)
    new.manager.restore_state_handles(3, subtask(), [first, second])

    found = new.manager.statistics
    assert (found.physical_file_count, found.physical_file_bytes) == (1, 11)
    assert (found.logical_file_count, found.logical_file_bytes) == (2, 11)
    assert new.manager.could_reuse_previous_state_handle(first)
    new.subsumed(3)
    assert new.files() == set()


def test_waste_of_a_restored_file_counts_as_physical_bytes(make: Make) -> None:
    old = make()
    old.write(b"x" * 90, 3)
    kept = old.saved(b"y" * 10, 3)
    new = make(epoch=2)
    new.manager.restore_state_handles(3, subtask(), [kept])
    assert new.manager.statistics.amplification == 10.0


def test_a_restored_file_takes_no_more_segments(make_local: Make) -> None:
    handle = make_local(merging_type=ACROSS).saved(b"x", 3)
    new = make_local(merging_type=ACROSS, epoch=2)
    new.manager.restore_state_handles(3, subtask(), [handle])
    assert new.write(b"y", 4).uri != handle.uri


@pytest.mark.parametrize("whose", ["another process", "another parallelism", "a file of another name"])
def test_a_foreign_file_is_read_only_never_deleted_and_not_counted(make: Make, whose: str) -> None:
    old, new = make(executor="1"), make(executor="2", epoch=2)
    handle = _foreign(old, whose)
    new.manager.restore_state_handles(3, subtask(), [handle])

    assert new.manager.statistics.physical_file_count == 0
    assert new.manager.could_reuse_previous_state_handle(handle)
    new.manager.reuse_previous_state_handles(4, [handle])
    new.subsumed(4)
    assert not new.manager.could_reuse_previous_state_handle(handle)
    assert new.read(handle) == b"theirs"


def _foreign(old: Driver, whose: str):
    if whose == "another process":
        return old.saved(b"theirs", 3, scope=EXCLUSIVE)
    if whose == "another parallelism":
        other = subtask(0, parallelism=16)
        old.manager.register_subtask(other)
        stream = old.manager.create_checkpoint_state_output_stream(other, 3, SHARED)
        stream.write(b"theirs")
        handle = stream.close_and_get_handle()
        old.manager.make_durable(other, 3)
        return handle
    handle = old.saved(b"theirs", 3)
    from dataclasses import replace

    uri = f"{handle.uri.rpartition('/')[0]}/somebody"
    old.storage.write_bytes(uri, b"theirs")
    return replace(handle, uri=uri)


def test_restoring_twice_changes_nothing(make: Make) -> None:
    handle = make().saved(b"x", 3)
    new = make(epoch=2)
    for _ in range(2):
        new.manager.restore_state_handles(3, subtask(), [handle, FileStateHandle("file:///x", 1)])
    assert new.manager.statistics.logical_file_count == 1
    new.subsumed(3)
    assert new.files() == set()


def test_restoring_what_is_missing_knows_nothing(make: Make) -> None:
    old = make()
    kept, lost = old.saved(b"kept", 2), old.saved(b"lost", 3)
    old.subsumed(1)
    old.storage.delete_file(lost.uri)
    new = make(epoch=2)
    with pytest.raises(CheckpointNotFoundError):
        new.manager.restore_state_handles(3, subtask(), [kept, lost])
    assert new.manager.statistics.logical_file_count == 0


def test_a_file_is_asked_for_once_however_many_segments_it_has(make: Make, storage: CheckpointStorage) -> None:
    old = make()
    handles = [old.write(b"x", 3) for _ in range(5)]
    old.durable(3)
    asked: list[str] = []

    class Asked(CheckpointStorage):
        def size(self, uri: str) -> int:
            asked.append(uri)
            return super().size(uri)

    counting = Asked(storage._fs, storage.base_uri)
    Driver.over(storage, through=counting).manager.restore_state_handles(3, subtask(), handles)
    assert len(asked) == 1


def test_closing_without_a_checkpoint_removes_the_empty_directories(make_local: Make) -> None:
    driver = make_local(buffer=1)
    for scope in (SHARED, EXCLUSIVE):
        stream = driver.stream(scope=scope)
        stream.write(b"x")
        stream.close()
    driver.aborted(1)
    driver.aborted(1, index=1)
    driver.manager.close()
    assert not _directories(driver)


def test_closing_after_aborts_only_removes_the_empty_directories(make_local: Make) -> None:
    driver = make_local(merging_type=ACROSS)
    for checkpoint in (1, 2):
        for scope in (SHARED, EXCLUSIVE):
            driver.saved(b"x", checkpoint, scope=scope)
        driver.aborted(checkpoint)
        driver.aborted(checkpoint, index=1)
    driver.manager.close()
    assert driver.files() == set()
    assert not _directories(driver)


def test_closing_keeps_what_a_completed_checkpoint_names(make: Make) -> None:
    driver = make(merging_type=ACROSS)
    handle = driver.saved(b"x", 1)
    driver.manager.notify_checkpoint_complete(subtask(), 1)
    driver.manager.close()
    assert driver.read(handle) == b"x"


def test_closing_keeps_the_directory_of_a_checkpoint_whose_end_is_unknown(make_local: Make) -> None:
    driver = make_local(buffer=1)
    stream = driver.stream()
    stream.write(b"x")
    stream.close()
    driver.manager.close()
    assert _directories(driver) == {"merged-0-8"}


def test_closing_never_removes_a_directory_with_files_of_others(make_local: Make) -> None:
    driver, other = make_local(), make_local(epoch=2)
    driver.saved(b"x", 1)
    driver.aborted(1)
    driver.aborted(1, index=1)
    theirs = other.saved(b"theirs", 2)
    driver.manager.close()
    assert other.files() == {theirs.uri}


def test_closing_gives_up_what_was_never_made_durable(make_collected: Make) -> None:
    driver = make_collected()
    driver.write(b"x")
    driver.manager.close()
    driver.manager.notify_checkpoint_complete(subtask(), 1)
    assert driver.files() == set()
    with pytest.raises(StorageError, match="discarded"):
        driver.durable()


def test_a_closed_manager_takes_nothing_and_deletes_nothing(make: Make) -> None:
    driver = make()
    handle, stream = driver.saved(b"x", 1), driver.stream(1)
    stream.write(b"open")
    driver.manager.close()
    driver.manager.close()
    with pytest.raises(CoordinatorError, match="closed"):
        driver.stream()
    with pytest.raises(CoordinatorError, match="closed"):
        driver.manager.register_subtask(subtask(1))
    with pytest.raises(CoordinatorError, match="closed"):
        stream.close_and_get_handle()
    driver.subsumed(1)
    driver.aborted(1)
    assert driver.files() == {handle.uri}
    assert driver.read(handle) == b"x"


def test_a_closed_manager_leaves_no_file_of_a_stream_that_was_open(make: Make) -> None:
    driver = make(buffer=1)
    stream = driver.stream()
    stream.write(b"open")
    driver.manager.close()
    stream.close()
    assert driver.files() == set()


def test_a_manager_that_never_knew_its_directories_closes(make: Make) -> None:
    from airflow_provider_statecheck.storage.file_merging.manager import FileMergingSnapshotManager

    FileMergingSnapshotManager("m", 1).close()


def test_directories_are_tracked_by_ids_so_that_repeated_or_lost_notifications_do_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / "managed"
    folder.mkdir()
    directory = ManagedDirectory(folder.as_uri())
    for checkpoint in (1, 1, 2, 3):
        directory.refer(checkpoint)
    for _ in range(3):
        directory.forget(3)
    directory.remove_if_unused()
    assert folder.exists()
    directory.subsume(2)
    directory.remove_if_unused()
    assert not folder.exists()


def test_no_directory_is_made_before_something_is_in_it(make_local: Make) -> None:
    driver = make_local()
    driver.stream().close()
    assert not _directories(driver)


def test_no_listing_happens_on_the_way(storage: CheckpointStorage) -> None:
    plan = FaultPlan()
    driver = Driver.over(storage, through=faulty_storage(storage, plan), merging_type=WITHIN)
    driver.saved(b"x", 1)
    driver.saved(b"x", 2)
    driver.subsumed(1)
    driver.manager.close()
    assert not {"list_files", "list_directories"} & set(plan.calls)


def _directories(driver: Driver) -> set[str]:
    base = Path(driver.storage.base_uri.removeprefix("file://"))
    return {path.name for path in base.rglob("*") if path.is_dir() and ("merged-" in path.name or "_tm_" in path.name)}
