"""Raw operator state: partitions of bytes that a function writes by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.states.assignment import redistribute
from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    OperatorStateHandle,
    OperatorStateMeta,
)
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    CorruptStateError,
)
from airflow_provider_statecheck.state.operator.states import (
    RawOperatorStateOutput,
    StatePartitionStreamProvider,
    raw_operator_state_inputs,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import (
    FsCheckpointStreamFactory,
    MemoryCheckpointStreamFactory,
)


def opened(streams: FsCheckpointStreamFactory | MemoryCheckpointStreamFactory) -> RawOperatorStateOutput:
    stream = streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
    return RawOperatorStateOutput(stream)


def written(
    streams: FsCheckpointStreamFactory | MemoryCheckpointStreamFactory, *partitions: bytes
) -> OperatorStateHandle:
    output = opened(streams)
    for partition in partitions:
        output.start_new_partition()
        output.write(partition[:3])
        output.write(partition[3:])
    handle = output.close_and_get_handle()
    assert handle is not None
    return handle


def read(storage: CheckpointStorage, *handles: OperatorStateHandle) -> list[bytes]:
    return [provider.get_stream().read() for provider in raw_operator_state_inputs(storage, handles)]


def test_each_partition_comes_back(storage: CheckpointStorage, streams: FsCheckpointStreamFactory) -> None:
    assert read(storage, written(streams, b"first", b"", b"third")) == [b"first", b"", b"third"]


def test_what_is_written_before_the_first_partition_is_one(
    storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    output = opened(streams)
    output.write(b"a")
    output.start_new_partition()
    output.write(b"b")
    handle = output.close_and_get_handle()
    assert handle is not None
    assert read(storage, handle) == [b"a", b"b"]


def test_nothing_written_is_no_state(storage: CheckpointStorage, streams: FsCheckpointStreamFactory) -> None:
    assert opened(streams).close_and_get_handle() is None
    assert list(storage.list_files(storage.base_uri)) == []


def test_what_was_given_up_leaves_no_file(storage: CheckpointStorage, streams: FsCheckpointStreamFactory) -> None:
    output = opened(streams)
    output.start_new_partition()
    output.write(b"a")
    output.start_new_partition()
    output.close()
    assert list(storage.list_files(storage.base_uri)) == []


def test_closed_raw_state_takes_no_bytes(streams: FsCheckpointStreamFactory) -> None:
    output = opened(streams)
    output.write(b"a")
    output.close_and_get_handle()
    for step in (lambda: output.write(b"b"), output.start_new_partition, output.close_and_get_handle):
        with pytest.raises(CoordinatorError, match="found it closed"):
            step()


def test_a_partition_cannot_be_read_into_the_next_one(
    storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    (first, _) = raw_operator_state_inputs(storage, [written(streams, b"first", b"second")])
    assert first.get_stream().read(100) == b"first"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    of_subtasks=st.lists(st.lists(st.binary(max_size=8), min_size=1, max_size=4), min_size=1, max_size=4),
    parallelism=st.integers(1, 6),
)
def test_partitions_are_dealt_out_whole(
    storage: CheckpointStorage, of_subtasks: list[list[bytes]], parallelism: int
) -> None:
    streams = MemoryCheckpointStreamFactory(max_state_size=10_000)
    old = [(written(streams, *partitions),) for partitions in of_subtasks]
    dealt = [read(storage, *handles) for handles in redistribute(old, len(old), parallelism)]
    assert [p for partitions in dealt for p in partitions] == [p for partitions in of_subtasks for p in partitions]


def test_the_error_of_a_missing_file_comes_when_the_stream_is_asked_for(
    storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    handle = written(streams, b"a", b"b")
    storage.delete_file(handle.stream.uri)  # type: ignore[union-attr]
    providers = list(raw_operator_state_inputs(storage, [handle]))
    assert len(providers) == 2
    for provider in providers:
        with pytest.raises(CheckpointNotFoundError):
            provider.get_stream()


@pytest.mark.parametrize("offset", [1, 9, 1000])
def test_an_offset_of_no_partition_is_told_when_the_stream_is_asked_for(
    storage: CheckpointStorage, streams: FsCheckpointStreamFactory, offset: int
) -> None:
    handle = written(streams, b"a")
    ((name, meta),) = handle.states
    wrong = replace(handle, states=((name, OperatorStateMeta(offsets=(offset,), mode=meta.mode)),))
    (provider,) = raw_operator_state_inputs(storage, [wrong])
    with pytest.raises(CorruptStateError, match=f"at byte {offset}"):
        provider.get_stream()


def test_a_provider_raises_its_error_at_each_access() -> None:
    error = OSError("gone")
    provider = StatePartitionStreamProvider(error)
    for _ in range(2):
        with pytest.raises(OSError, match="gone") as caught:
            provider.get_stream()
        assert caught.value is error
