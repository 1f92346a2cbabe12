"""Streams become segments: positions, handles, emptiness, failure and reuse of files."""

from __future__ import annotations

import hashlib
import threading

import pytest

from airflow_provider_statecheck.exceptions import CoordinatorError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.file_merging.conftest import Make
from tests.unit.storage.file_merging.driving import ACROSS, EXCLUSIVE, SHARED, Driver, subtask


def test_segments_of_one_subtask_lie_one_after_the_other_in_one_file(make: Make) -> None:
    driver = make()
    first, second = driver.write(b"abc"), driver.write(b"defgh" * 10)
    driver.durable()

    assert (first.start, first.length, second.start, second.length) == (0, 3, 3, 50)
    assert driver.files() == {first.uri} == {second.uri}
    assert (driver.read(first), driver.read(second)) == (b"abc", b"defgh" * 10)


def test_a_handle_says_where_what_and_whose_it_is(make: Make) -> None:
    handle = make().write(b"state", scope=EXCLUSIVE)

    assert handle.scope is EXCLUSIVE
    assert handle.sha256 == hashlib.sha256(b"state").hexdigest()
    assert handle.logical_id != make().write(b"state").logical_id


def test_nothing_written_is_no_segment_and_no_file(make: Make) -> None:
    driver = make()
    stream = driver.stream()
    stream.write(b"")

    assert stream.close_and_get_handle() is None
    assert driver.files() == set()
    assert driver.manager.statistics.physical_file_count == 0


def test_the_first_write_takes_a_file(make: Make) -> None:
    driver = make()
    stream = driver.stream()
    assert driver.manager.statistics.physical_file_count == 0
    stream.write(b"x")
    assert driver.manager.statistics.physical_file_count == 1
    stream.close()


def test_the_position_counts_buffered_bytes(make: Make) -> None:
    stream = make(buffer=100).stream()
    stream.write(b"abc")
    stream.flush_to_file()
    stream.write(b"de")
    assert stream.get_pos() == 5
    stream.close()


def test_flushed_bytes_of_a_local_file_are_on_disk(make_local: Make) -> None:
    driver = make_local(buffer=100)
    stream = driver.stream()
    stream.write(b"abc")
    assert driver.files() == set()
    stream.flush_to_file()
    (uri,) = driver.files()
    assert driver.storage.read_bytes(uri) == b"abc"
    stream.write(b"de")
    handle = stream.close_and_get_handle()
    assert handle is not None
    assert driver.read(handle) == b"abcde"


def test_a_full_buffer_flushes_itself(make_local: Make) -> None:
    driver = make_local(buffer=4)
    stream = driver.stream()
    stream.write(b"abcd")
    (uri,) = driver.files()
    assert driver.storage.size(uri) == 4
    stream.close()


def test_one_file_is_written_by_one_stream_at_a_time(make: Make) -> None:
    driver = make()
    first, second = driver.stream(), driver.stream()
    first.write(b"one")
    second.write(b"two")
    one, two = first.close_and_get_handle(), second.close_and_get_handle()
    driver.durable()

    assert one is not None
    assert two is not None
    assert one.uri != two.uri
    assert (driver.read(one), driver.read(two)) == (b"one", b"two")


def test_a_closed_stream_takes_nothing_and_gives_nothing(make: Make) -> None:
    stream = make().stream()
    stream.write(b"x")
    stream.close_and_get_handle()

    with pytest.raises(StorageError, match="closed"):
        stream.write(b"y")
    with pytest.raises(StorageError, match="closed"):
        stream.flush_to_file()
    with pytest.raises(StorageError, match="closed"):
        stream.close_and_get_handle()


def test_closing_after_the_handle_keeps_the_segment(make: Make) -> None:
    driver = make()
    stream = driver.stream()
    stream.write(b"kept")
    handle = stream.close_and_get_handle()
    stream.close()
    driver.durable()
    assert handle is not None
    assert driver.read(handle) == b"kept"


def test_a_stream_closed_exceptionally_leaves_no_file_if_it_was_alone_in_it(make: Make) -> None:
    driver = make(buffer=1)
    stream = driver.stream()
    stream.write(b"garbage")
    stream.close()

    assert driver.files() == set()
    assert driver.manager.statistics.physical_file_count == 0


def test_a_file_whose_stream_was_closed_exceptionally_is_not_reused(make: Make) -> None:
    driver = make(buffer=1)
    good = driver.write(b"good")
    stream = driver.stream()
    stream.write(b"garbage")
    stream.close()
    later = driver.write(b"later")
    driver.durable()

    assert later.uri != good.uri
    assert (driver.read(good), driver.read(later)) == (b"good", b"later")


def test_the_file_of_an_exceptional_close_goes_with_its_last_segment(make: Make) -> None:
    driver = make(buffer=1)
    good = driver.saved(b"good")
    stream = driver.stream()
    stream.write(b"garbage")
    stream.close()
    driver.subsumed(1)
    assert good.uri not in driver.files()


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_a_failed_write_closes_the_stream_and_leaves_nothing(local: CheckpointStorage, mode: FaultMode) -> None:
    driver = Driver.over(local, through=faulty_storage(local, FaultPlan(1, mode)), buffer=1)
    stream = driver.stream()
    with pytest.raises(StorageError, match="Injected"):
        stream.write(b"x")
    with pytest.raises(StorageError, match="closed"):
        stream.write(b"x")
    assert driver.files() == set()
    assert driver.read(driver.write(b"next")) == b"next"


def test_a_full_file_is_closed_and_not_reused(make: Make) -> None:
    driver = make(max_file_size=4)
    first, second = driver.write(b"abcd"), driver.write(b"e")
    assert first.uri != second.uri


def test_a_file_below_the_limit_takes_one_more_segment_of_any_size(make: Make) -> None:
    driver = make(max_file_size=4)
    first, second = driver.write(b"abc"), driver.write(b"defghijk")
    assert first.uri == second.uri


def test_a_subtask_must_be_registered(make: Make) -> None:
    driver = make(subtasks=1)
    with pytest.raises(CoordinatorError, match="register_subtask"):
        driver.stream(index=5)


def test_many_threads_write_at_once(make: Make) -> None:
    driver = make(subtasks=4, merging_type=ACROSS, max_file_size=2000)
    found: list[tuple[bytes, object]] = []

    def work(index: int) -> None:
        for number in range(30):
            data = f"{index}-{number};".encode() * (number + 1)
            handle = driver.write(data, checkpoint=number // 10, index=index, scope=EXCLUSIVE if number % 2 else SHARED)
            driver.manager.make_durable(subtask(index), number // 10)
            found.append((data, handle))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 120
    assert all(driver.read(handle) == data for data, handle in found)  # type: ignore[arg-type]
