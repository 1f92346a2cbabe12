"""Streams of state: inline or a file, whole or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import epoch_name, epoch_of
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, FileStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import (
    BufferedStateOutputStream,
    StateWriting,
    open_state_stream,
)
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.views.places import files, save


@pytest.fixture
def directory(job: str) -> str:
    return f"{job}/chk-1"


@pytest.fixture
def new_stream(storage: CheckpointStorage, directory: str) -> Callable[..., BufferedStateOutputStream]:
    def open_stream(threshold: int = 1000, *, through: Any = None, **settings: Any) -> BufferedStateOutputStream:
        writing = StateWriting(epoch=7, inline_threshold=threshold, **settings)
        return open_state_stream(through or storage, directory, writing)

    return open_stream


New = Callable[..., BufferedStateOutputStream]


@pytest.mark.parametrize("size", [1, 999, 1000])
def test_up_to_the_threshold_state_travels_in_its_handle(
    new_stream: New, storage: CheckpointStorage, size: int
) -> None:
    handle = save(new_stream(1000), b"x" * size)
    assert isinstance(handle, ByteStreamStateHandle)
    assert handle.data == b"x" * size
    assert files(storage) == set()


def test_above_the_threshold_state_is_a_file(new_stream: New, storage: CheckpointStorage) -> None:
    handle = save(new_stream(1000), b"x" * 1001)
    assert isinstance(handle, FileStateHandle)
    assert files(storage) == {handle.uri}
    assert read_state(storage, handle) == b"x" * 1001


@pytest.mark.parametrize("data", [None, b""])
def test_nothing_written_is_no_handle_and_no_file(
    new_stream: New, storage: CheckpointStorage, data: bytes | None
) -> None:
    stream = new_stream(0)
    if data is not None:
        stream.write(data)
    stream.flush_to_file()
    assert stream.close_and_get_handle() is None
    assert files(storage) == set()


def test_threshold_zero_always_makes_a_file(new_stream: New) -> None:
    assert isinstance(save(new_stream(0), b"x"), FileStateHandle)


def test_what_was_flushed_is_a_file_however_small(new_stream: New) -> None:
    stream = new_stream(1000)
    stream.write(b"x")
    stream.flush_to_file()
    assert isinstance(stream.close_and_get_handle(), FileStateHandle)


def test_flushing_nothing_does_not_send_later_bytes_to_a_file(new_stream: New) -> None:
    stream = new_stream(1000)
    stream.flush_to_file()
    assert isinstance(save(stream, b"x"), ByteStreamStateHandle)


def test_equal_small_states_have_handles_of_their_own(new_stream: New) -> None:
    assert save(new_stream(), b"x") != save(new_stream(), b"x")


def test_a_file_name_carries_the_epoch_of_its_writer(new_stream: New) -> None:
    assert epoch_of(save(new_stream(0), b"x").uri.rpartition("/")[2]) == 7


def test_the_position_counts_buffered_bytes(new_stream: New) -> None:
    stream = new_stream(0, write_buffer_size=4)
    stream.write(b"abc")
    assert stream.get_pos() == 3
    stream.write(b"defgh")
    assert stream.get_pos() == 8


def test_bytes_beyond_the_buffer_come_back_in_order(new_stream: New, storage: CheckpointStorage) -> None:
    stream = new_stream(0, write_buffer_size=3)
    for part in (b"ab", b"cdef", b"", b"g"):
        stream.write(part)
    assert read_state(storage, save(stream, b"h")) == b"abcdefgh"


def test_nothing_is_on_storage_before_the_handle_is_asked_for(new_stream: New, storage: CheckpointStorage) -> None:
    stream = new_stream(0, write_buffer_size=1)
    stream.write(b"abc")
    stream.flush_to_file()
    assert files(storage) == set()
    stream.close()
    assert files(storage) == set()


def test_a_closed_stream_takes_nothing(new_stream: New) -> None:
    stream = new_stream()
    stream.close()
    stream.close()
    with pytest.raises(StorageError, match="closed"):
        stream.write(b"x")
    with pytest.raises(StorageError, match="closed"):
        stream.flush_to_file()
    with pytest.raises(StorageError, match="closed"):
        stream.close_and_get_handle()


@pytest.mark.parametrize("threshold", [0, 1000])
def test_a_second_handle_is_an_error(new_stream: New, threshold: int) -> None:
    stream = new_stream(threshold)
    save(stream, b"x")
    with pytest.raises(StorageError, match="closed"):
        stream.close_and_get_handle()


def test_closing_after_the_handle_was_given_keeps_the_file(new_stream: New, storage: CheckpointStorage) -> None:
    stream = new_stream(0)
    handle = save(stream, b"x")
    stream.close()
    assert files(storage) == {handle.uri}


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_a_failed_publication_leaves_no_file_and_spares_its_neighbours(
    new_stream: New, storage: CheckpointStorage, directory: str, mode: FaultMode
) -> None:
    storage.write_bytes(f"{directory}/neighbour", b"other")
    stream = new_stream(0, through=faulty_storage(storage, FaultPlan(1, mode)))
    stream.write(b"x")
    with pytest.raises(StorageError, match="Injected"):
        stream.close_and_get_handle()
    assert files(storage) == {f"{directory}/neighbour"}
    with pytest.raises(StorageError, match="closed"):
        stream.write(b"y")


def test_a_failed_deletion_does_not_hide_why_publishing_failed(new_stream: New, storage: CheckpointStorage) -> None:
    plan = FaultPlan(1, FaultMode.REPLY_LOST, times=2)
    stream = new_stream(0, through=faulty_storage(storage, plan))
    stream.write(b"x")
    with pytest.raises(StorageError, match="after write_bytes"):
        stream.close_and_get_handle()
    assert plan.calls == ["write_bytes", "delete_file"]


def _named(storage: CheckpointStorage, directory: str, names: Iterator[str]) -> BufferedStateOutputStream:
    return open_state_stream(storage, directory, StateWriting(epoch=1, inline_threshold=0), lambda _: next(names))


def test_a_taken_name_is_left_alone_and_another_tried(storage: CheckpointStorage, directory: str) -> None:
    taken, free = epoch_name(1), epoch_name(1)
    storage.write_bytes(f"{directory}/{taken}", b"other")
    handle = save(_named(storage, directory, iter([taken, taken, free])), b"mine")
    assert handle.uri == f"{directory}/{free}"
    assert storage.read_bytes(f"{directory}/{taken}") == b"other"


def test_ten_taken_names_are_an_error_that_says_the_last_cause(storage: CheckpointStorage, directory: str) -> None:
    taken = epoch_name(1)
    storage.write_bytes(f"{directory}/{taken}", b"other")
    names = iter([*[taken] * 10, epoch_name(1)])
    with pytest.raises(StorageError, match="10 random names taken") as caught:
        save(_named(storage, directory, names), b"mine")
    assert isinstance(caught.value.__cause__, StorageError)
    assert files(storage) == {f"{directory}/{taken}"}
    assert len(list(names)) == 1


def test_a_buffer_smaller_than_the_threshold_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="at least the inline threshold"):
        BufferedStateOutputStream(lambda data: ByteStreamStateHandle("x", data), buffer_size=9, inline_threshold=10)


def test_the_effective_buffer_holds_what_travels_inline() -> None:
    assert StateWriting(epoch=1, inline_threshold=5000).effective_buffer_size == 5000
    assert StateWriting(epoch=1, inline_threshold=10).effective_buffer_size == 4096


@pytest.mark.parametrize("threshold", [-1, 1024 * 1024 + 1])
def test_a_threshold_out_of_range_is_refused(threshold: int) -> None:
    with pytest.raises(InvalidConfigurationError, match="inline threshold"):
        StateWriting(epoch=1, inline_threshold=threshold)


def test_the_default_threshold_is_20_kib_and_the_largest_one_mib() -> None:
    assert StateWriting(epoch=1).inline_threshold == 20 * 1024
    assert StateWriting(epoch=1, inline_threshold=1024 * 1024).inline_threshold == 1024 * 1024


def test_an_empty_write_buffer_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="write buffer"):
        StateWriting(epoch=1, write_buffer_size=0)


def test_a_machine_without_space_is_a_storage_error_and_closes_the_stream(
    new_stream: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = new_stream(0)
    monkeypatch.setattr(stream._buffer, "write", _full_disk)
    with pytest.raises(StorageError, match="No space left"):
        stream.write(b"x")
    with pytest.raises(StorageError, match="closed"):
        stream.write(b"x")


def _full_disk(_: bytes) -> int:
    raise OSError(28, "No space left on device")
