"""Which file a segment goes to, and in which directory."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_statecheck.checkpoint.layout import epoch_of, job_uri
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.storage.file_merging.manager import (
    FileMergingOptions,
    FileMergingSnapshotManager,
    FileMergingType,
)
from airflow_provider_statecheck.storage.file_merging.physical_files import SubtaskKey, manager_id
from tests.unit.storage.file_merging.conftest import Make
from tests.unit.storage.file_merging.driving import ACROSS, EXCLUSIVE, JOB, OPERATOR, SHARED, WITHIN, subtask


def test_shared_state_lies_in_a_directory_of_its_subtask(make: Make) -> None:
    driver = make()
    handle = driver.write(b"x", index=1)
    root = job_uri(driver.storage.base_uri, JOB)
    assert handle.uri.rpartition("/")[0] == f"{root}/shared/{OPERATOR}/merged-1-8"
    assert driver.manager.managed_directory(subtask(1), SHARED) == handle.uri.rpartition("/")[0]


def test_exclusive_state_lies_in_the_directory_of_its_process(make: Make) -> None:
    handle = make(executor="host:1/a").write(b"x", scope=EXCLUSIVE)
    assert handle.uri.rpartition("/")[0].endswith(f"/taskowned/job_{JOB}_tm_host_1_a")


def test_a_process_needs_an_id() -> None:
    with pytest.raises(InvalidConfigurationError, match="executor"):
        manager_id(JOB, " ")


def test_a_file_name_carries_the_epoch_of_its_writer(make: Make) -> None:
    handle = make(epoch=7).write(b"x")
    assert epoch_of(handle.uri.rpartition("/")[2]) == 7


def test_another_parallelism_is_another_subtask() -> None:
    assert subtask(1, 2).managed_directory != subtask(1, 4).managed_directory


def test_a_subtask_index_is_below_the_parallelism() -> None:
    with pytest.raises(InvalidConfigurationError, match="parallelism"):
        SubtaskKey(job_id=JOB, operator_id=OPERATOR, subtask_index=2, parallelism=2)


@pytest.mark.parametrize(("merging_type", "is_same"), [(WITHIN, False), (ACROSS, True)], ids=["within", "across"])
def test_files_are_shared_over_checkpoints_only_across_them(
    make_local: Make, merging_type: FileMergingType, *, is_same: bool
) -> None:
    driver = make_local(merging_type=merging_type)
    assert (driver.saved(b"x", 1).uri == driver.saved(b"y", 2).uri) is is_same


def test_within_a_checkpoint_files_are_shared_by_its_streams(make: Make) -> None:
    driver = make(merging_type=WITHIN)
    one, _, again = driver.write(b"x", 1), driver.write(b"y", 2), driver.write(b"z", 1)
    assert one.uri == again.uri


def test_subtasks_share_files_of_exclusive_state_only(make: Make) -> None:
    driver = make()
    assert driver.write(b"x", index=0, scope=EXCLUSIVE).uri == driver.write(b"y", index=1, scope=EXCLUSIVE).uri
    assert driver.write(b"x", index=0).uri != driver.write(b"y", index=1).uri


def test_a_pool_that_does_not_block_begins_another_file(make: Make) -> None:
    driver = make()
    streams = [driver.stream() for _ in range(5)]
    for stream in streams:
        stream.write(b"x")
    assert driver.manager.statistics.physical_file_count == 5
    for stream in streams:
        stream.close()


@pytest.mark.parametrize(("subtasks", "files"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_blocking_pool_has_a_file_for_so_many_subtasks(make: Make, subtasks: int, files: int) -> None:
    driver = make(subtasks=subtasks, is_pool_blocking=True, max_subtasks_per_file=4)
    open_streams = [driver.stream(scope=EXCLUSIVE) for _ in range(files)]
    for stream in open_streams:
        stream.write(b"x")
    waiting = threading.Thread(target=driver.write, args=(b"y",), kwargs={"scope": EXCLUSIVE})
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert driver.manager.statistics.physical_file_count == files
    open_streams[0].close_and_get_handle()
    waiting.join(10)
    assert not waiting.is_alive()
    assert driver.manager.statistics.physical_file_count == files
    for stream in open_streams:
        stream.close()


def test_a_blocking_pool_makes_a_new_file_for_one_that_is_full(make: Make) -> None:
    driver = make(subtasks=1, is_pool_blocking=True, max_file_size=2)
    assert driver.write(b"ab", scope=EXCLUSIVE).uri != driver.write(b"cd", scope=EXCLUSIVE).uri


def test_who_waits_for_a_file_hears_that_the_manager_closed(make: Make) -> None:
    driver = make(subtasks=1, is_pool_blocking=True)
    holder, failures = driver.stream(), []

    def wait() -> None:
        try:
            driver.write(b"y")
        except CoordinatorError as error:
            failures.append(error)

    holder.write(b"x")
    waiting = threading.Thread(target=wait)
    waiting.start()
    driver.manager.close()
    waiting.join(10)
    holder.close()
    assert len(failures) == 1


def test_directories_are_said_once(make: Make) -> None:
    driver = make()
    driver.init(driver.storage)
    with pytest.raises(InvalidConfigurationError, match="first call"):
        driver.init(driver.storage, shared=f"{driver.storage.base_uri}/elsewhere")
    with pytest.raises(InvalidConfigurationError, match="first call"):
        driver.init(driver.storage, buffer=17)


def test_directories_lie_below_the_checkpoint_directory(make: Make) -> None:
    with pytest.raises(InvalidConfigurationError, match="below"):
        make().init(make().storage, taskowned="file:///elsewhere")
    with pytest.raises(InvalidConfigurationError, match="buffer"):
        make().init(make().storage, buffer=0)


def test_a_manager_must_know_its_directories_first() -> None:
    with pytest.raises(CoordinatorError, match="init_file_system"):
        FileMergingSnapshotManager("m", 1).register_subtask(subtask())


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_file_size": 0},
        {"max_space_amplification": 1.0},
        {"max_space_amplification": float("nan")},
        {"max_subtasks_per_file": 0},
    ],
    ids=str,
)
def test_an_option_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidConfigurationError, match=next(iter(wrong))):
        FileMergingOptions(**wrong)  # type: ignore[arg-type]


def test_the_defaults_are_those_of_flink() -> None:
    options = FileMergingOptions()
    assert (options.max_file_size, options.max_space_amplification) == (32 * 1024 * 1024, 2.0)
    assert (options.max_subtasks_per_file, options.is_pool_blocking, options.merging_type) == (4, False, WITHIN)
