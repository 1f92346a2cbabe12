"""Streams of state and metadata: whole or nothing, inline within a budget, and never over another's."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.ids import epoch_name, epoch_of
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    FileStateHandle,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
    StreamStateHandle,
    streams_of,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import publish_metadata
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import (
    DEFAULT_INLINE_BUDGET,
    CheckpointStateOutputStream,
    StateWriting,
    open_state_stream,
    spill_above_budget,
)
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.views.places import ATTEMPT, files, job_of, save


@pytest.fixture
def directory(job: str) -> str:
    return f"{job}/chk-1"


@pytest.fixture
def new_stream(storage: CheckpointStorage, directory: str) -> Callable[..., CheckpointStateOutputStream]:
    def open_stream(threshold: int = 1000, *, through: Any = None, **settings: Any) -> CheckpointStateOutputStream:
        writing = StateWriting(epoch=7, inline_threshold=threshold, **settings)
        return open_state_stream(through or storage, directory, writing)

    return open_stream


New = Callable[..., CheckpointStateOutputStream]


@pytest.mark.parametrize("size", [1, 999, 1000])
def test_up_to_the_threshold_state_travels_in_its_handle(
    new_stream: New, storage: CheckpointStorage, size: int
) -> None:
    handle = save(new_stream(1000), b"x" * size)
    assert isinstance(handle, ByteStreamStateHandle)
    assert handle.data == b"x" * size
    assert files(storage) == set()


@pytest.mark.parametrize(("threshold", "size"), [(1000, 1001), (0, 1)])
def test_above_the_threshold_state_is_a_file_named_by_the_epoch_of_its_writer(
    new_stream: New, storage: CheckpointStorage, threshold: int, size: int
) -> None:
    handle = save(new_stream(threshold), b"x" * size)
    assert isinstance(handle, FileStateHandle)
    assert epoch_of(handle.uri.rpartition("/")[2]) == 7
    assert files(storage) == {handle.uri}
    assert read_state(storage, handle) == b"x" * size


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
    for call in (lambda: stream.write(b"x"), stream.flush_to_file, stream.close_and_get_handle):
        with pytest.raises(StorageError, match="closed"):
            call()


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


def _named(storage: CheckpointStorage, directory: str, names: Iterator[str]) -> CheckpointStateOutputStream:
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
        CheckpointStateOutputStream(lambda data: ByteStreamStateHandle("x", data), buffer_size=9, inline_threshold=10)


def test_the_effective_buffer_holds_what_travels_inline() -> None:
    assert StateWriting(epoch=1, inline_threshold=5000).effective_buffer_size == 5000
    assert StateWriting(epoch=1, inline_threshold=10).effective_buffer_size == 4096


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inline_threshold": -1}, "inline threshold"),
        ({"inline_threshold": 1024 * 1024 + 1}, "inline threshold"),
        ({"write_buffer_size": 0}, "write buffer"),
    ],
)
def test_sizes_out_of_range_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=message):
        StateWriting(epoch=1, **settings)


def test_the_default_threshold_is_20_kib_and_the_largest_one_mib() -> None:
    assert StateWriting(epoch=1).inline_threshold == 20 * 1024
    assert StateWriting(epoch=1, inline_threshold=1024 * 1024).inline_threshold == 1024 * 1024


def test_a_machine_without_space_is_a_storage_error_and_closes_the_stream(
    new_stream: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda **_: FullDisk())
    stream = new_stream(0)
    with pytest.raises(StorageError, match="No space left"):
        stream.write(b"x")
    with pytest.raises(StorageError, match="closed"):
        stream.write(b"x")


class FullDisk(io.BytesIO):
    def write(self, _: Any, /) -> int:
        raise OSError(28, "No space left on device")


def test_the_slower_of_two_writers_of_metadata_fails_and_harms_nothing(storage: CheckpointStorage) -> None:
    directory = f"{job_of(storage)}/chk-4"
    publish_metadata(storage, directory, b"fast")
    with pytest.raises(StorageError, match="other bytes"):
        publish_metadata(storage, directory, b"slow")
    assert storage.read_bytes(f"{directory}/_metadata") == b"fast"


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_publishing_metadata_may_be_repeated_after_a_failure(storage: CheckpointStorage, mode: FaultMode) -> None:
    directory = f"{job_of(storage)}/chk-4"
    faulty = faulty_storage(storage, FaultPlan(1, mode))
    with pytest.raises(StorageError, match="Injected"):
        publish_metadata(faulty, directory, b"x")
    assert storage.exists(f"{directory}/_metadata") is (mode is FaultMode.REPLY_LOST)
    publish_metadata(faulty, directory, b"x")
    assert storage.read_bytes(f"{directory}/_metadata") == b"x"


def test_a_completed_checkpoint_can_be_disposed_of(storage: CheckpointStorage) -> None:
    publish_metadata(storage, f"{job_of(storage)}/chk-4", b"meta")
    completed = resolve_checkpoint(storage, f"{job_of(storage)}/chk-4")
    shared = f"{job_of(storage)}/shared/{ATTEMPT.operator_id}/state/1-{'a' * 32}"
    storage.write_bytes(shared, b"kept")
    completed.dispose()
    completed.dispose()
    assert files(storage) == {shared}


META = (("list", OperatorStateMeta((0,), DistributionMode.SPLIT_DISTRIBUTE)),)


def _state(*streams: StreamStateHandle, coordinator: StreamStateHandle | None = None) -> OperatorState:
    return OperatorState(
        operator_id=ATTEMPT.operator_id,
        uid="totals",
        parallelism=max(1, len(streams)),
        max_parallelism=128,
        subtask_states={
            i: OperatorSubtaskState(managed_operator=(OperatorStateHandle(META, s),)) for i, s in enumerate(streams)
        },
        coordinator_state=coordinator,
    )


def _inline(name: str, size: int) -> ByteStreamStateHandle:
    return ByteStreamStateHandle(name, (name * size).encode()[:size])


def _inline_bytes(states: tuple[OperatorState, ...]) -> int:
    streams = {s for state in states for s in streams_of(state) if isinstance(s, ByteStreamStateHandle)}
    return sum(s.state_size for s in streams)


def test_what_fits_stays_in_its_handles(storage: CheckpointStorage, job: str) -> None:
    states = (_state(_inline("a", 5), coordinator=_inline("b", 5)),)
    assert spill_above_budget(states, storage, directory=f"{job}/chk-1", epoch=3, budget=10) == states
    assert files(storage) == set()


def test_the_largest_go_to_files_until_the_rest_fits(storage: CheckpointStorage, job: str) -> None:
    states = (_state(_inline("a", 4), _inline("b", 9)), _state(_inline("c", 6), coordinator=_inline("d", 2)))
    spilled = spill_above_budget(states, storage, directory=f"{job}/chk-1", epoch=3, budget=12)
    streams = [s for state in spilled for s in streams_of(state)]
    assert [isinstance(s, FileStateHandle) for s in streams] == [False, True, False, False]
    assert [read_state(storage, s) for s in streams] == [read_state(storage, s) for x in states for s in streams_of(x)]
    assert _inline_bytes(spilled) == 12


def test_files_lie_in_the_checkpoint_and_carry_the_epoch(storage: CheckpointStorage, job: str) -> None:
    spill_above_budget((_state(_inline("a", 4)),), storage, directory=f"{job}/chk-1", epoch=3, budget=0)
    (uri,) = files(storage)
    assert uri.startswith(f"{job}/chk-1/")
    assert epoch_of(uri.rpartition("/")[2]) == 3


def test_state_that_is_named_twice_counts_and_goes_once(storage: CheckpointStorage, job: str) -> None:
    same = _inline("a", 6)
    assert spill_above_budget((_state(same, same),), storage, directory=f"{job}/chk-1", epoch=3, budget=6) == (
        _state(same, same),
    )
    spill_above_budget((_state(same, same),), storage, directory=f"{job}/chk-1", epoch=3, budget=5)
    assert len(files(storage)) == 1


def test_equal_state_of_two_subtasks_goes_to_two_files(storage: CheckpointStorage, job: str) -> None:
    equal = _state(ByteStreamStateHandle("a", b"same"), ByteStreamStateHandle("b", b"same"))
    spill_above_budget((equal,), storage, directory=f"{job}/chk-1", epoch=3, budget=0)
    assert len(files(storage)) == 2


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
@pytest.mark.parametrize("point", [1, 2])
def test_repeating_after_a_failure_gives_the_same_states_and_files(
    storage: CheckpointStorage, job: str, mode: FaultMode, point: int
) -> None:
    states, directory = (_state(_inline("a", 6), _inline("b", 6)),), f"{job}/chk-1"
    with pytest.raises(StorageError, match="Injected"):
        spill_above_budget(
            states, faulty_storage(storage, FaultPlan(point, mode)), directory=directory, epoch=3, budget=0
        )
    first = spill_above_budget(states, storage, directory=directory, epoch=3, budget=0)
    assert spill_above_budget(states, storage, directory=directory, epoch=3, budget=0) == first
    assert len(files(storage)) == 2


def test_a_budget_below_zero_is_refused(storage: CheckpointStorage, job: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="inline budget"):
        spill_above_budget((), storage, directory=f"{job}/chk-1", epoch=3, budget=-1)
    assert DEFAULT_INLINE_BUDGET == 16 * 1024 * 1024


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes=st.lists(st.integers(1, 20), max_size=8), budget=st.integers(0, 60))
def test_the_rest_fits_and_no_byte_is_lost(memory: CheckpointStorage, sizes: list[int], budget: int) -> None:
    states = (_state(*(_inline(chr(97 + i), size) for i, size in enumerate(sizes))),)
    spilled = spill_above_budget(
        states, memory, directory=f"{memory.base_uri}/{'a' * 32}/chk-1", epoch=3, budget=budget
    )
    assert _inline_bytes(spilled) <= budget
    before, after = ([read_state(memory, s) for s in streams_of(x[0])] for x in (states, spilled))
    assert before == after
