"""State of a subtask in merged files: segments, durability, and the space that they waste."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.properties import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyedStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
    streams_of,
)
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import MemoryBackendCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStorageWorkerView,
    FileMergingSnapshotManager,
    files_to_retire,
    read_state,
)
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.keyed_files import keyed
from tests.unit.storage.views.places import ATTEMPT, EXCLUSIVE, SHARED, files, job_of, make_access, save

DEFAULT = CheckpointStorageLocationReference.default()


@dataclass
class Environment:
    restored_streams: Iterable[StreamStateHandle] = ()


def merging(
    storage: CheckpointStorage, restored: Iterable[StreamStateHandle] = (), inline_threshold: int = 0, **options: Any
) -> CheckpointStorageWorkerView:
    config = CheckpointConfig()
    for name, value in options.items():
        setattr(config, f"file_merging_{name}", value)
    manager = FileMergingSnapshotManager(ATTEMPT.epoch, config)
    access = make_access(storage, inline_threshold=inline_threshold)
    return access.to_file_merging_storage(manager, Environment(restored))


def write(view: CheckpointStorageWorkerView, *pieces: bytes, scope: Any = SHARED) -> list[Any]:
    streams = view.resolve_checkpoint_storage_location(4, DEFAULT)
    return [save(streams.create_checkpoint_state_output_stream(scope), data) for data in pieces]


def durable(view: CheckpointStorageWorkerView, *handles: StreamStateHandle) -> list[Any]:
    """Return the final handles."""
    (state,) = view.make_durable([keyed(*handles)])
    (handle,) = state.subtask_states[0].managed_keyed
    assert isinstance(handle, KeyedStateHandle)
    return [stream for _, stream in handle.shared]


class TestSegments:
    def test_the_state_of_a_scope_is_one_file_that_is_written_before_the_acknowledgement(
        self, storage: CheckpointStorage
    ) -> None:
        plan = FaultPlan()
        view = merging(faulty_storage(storage, plan))
        shared, exclusive = write(view, b"a", b"bc"), write(view, b"d", b"ef", scope=EXCLUSIVE)
        assert plan.calls == []
        final = durable(view, *shared, *exclusive)
        assert plan.calls == ["write_bytes"] * 2
        assert [read_state(storage, handle) for handle in final] == [b"a", b"bc", b"d", b"ef"]
        assert {handle.uri for handle in final} == files(storage)
        assert {handle.file_size for handle in final} == {3}

    def test_exclusive_segments_lie_in_the_checkpoint_and_shared_ones_beside_it(
        self, storage: CheckpointStorage
    ) -> None:
        view = merging(storage)
        (shared,), (exclusive,) = write(view, b"a"), write(view, b"b", scope=EXCLUSIVE)
        assert shared.uri.startswith(f"{job_of(storage)}/shared/{ATTEMPT.operator_id}/state/{ATTEMPT.epoch}-")
        assert exclusive.uri.startswith(f"{job_of(storage)}/chk-4/{ATTEMPT.epoch}-")

    def test_a_single_state_is_a_file_like_without_merging(self, storage: CheckpointStorage) -> None:
        view = merging(storage)
        (final,) = durable(view, *write(view, b"abc"))
        assert isinstance(final, FileStateHandle)
        assert read_state(storage, final) == b"abc"

    def test_small_and_empty_state_is_in_no_file(self, storage: CheckpointStorage) -> None:
        view = merging(storage, inline_threshold=2)
        small, empty = write(view, b"ab", b"")
        assert isinstance(small, ByteStreamStateHandle)
        assert empty is None
        assert durable(view, small) == [small]
        assert files(storage) == set()

    def test_a_discarded_stream_leaves_nothing_in_the_file(self, storage: CheckpointStorage) -> None:
        view = merging(storage)
        stream = view.resolve_checkpoint_storage_location(4, DEFAULT).create_checkpoint_state_output_stream(SHARED)
        stream.write(b"discarded")
        stream.close()
        final = durable(view, *write(view, b"a", b"b"))
        assert {handle.file_size for handle in final} == {2}

    def test_a_full_file_is_published_at_once_and_another_begun(self, storage: CheckpointStorage) -> None:
        view = merging(storage, max_file_size=4)
        first, second, third = write(view, b"ab", b"cd", b"ef")
        assert files(storage) == {first.uri} == {second.uri}
        assert third.uri != first.uri
        assert [read_state(storage, h) for h in durable(view, first, second, third)] == [b"ab", b"cd", b"ef"]

    def test_large_state_has_a_file_of_its_own(self, storage: CheckpointStorage) -> None:
        view = merging(storage, max_file_size=4)
        small, large, other = write(view, b"a", b"large", b"b")
        assert small.uri == other.uri != large.uri
        assert isinstance(durable(view, small, large, other)[1], FileStateHandle)

    def test_savepoints_are_merged_in_their_own_directory(self, storage: CheckpointStorage) -> None:
        directory = f"{storage.base_uri}/savepoints/savepoint-000000-{'a' * 12}"
        view = merging(storage)
        reference = CheckpointStorageLocationReference.of_path(directory)
        streams = view.resolve_checkpoint_storage_location(2, reference)
        handles = [save(streams.create_checkpoint_state_output_stream(scope), b"a") for scope in (SHARED, EXCLUSIVE)]
        assert {handle.uri.rpartition("/")[0] for handle in durable(view, *handles)} == {directory}
        assert len(files(storage)) == 1

    def test_state_of_tasks_is_not_merged(self, storage: CheckpointStorage) -> None:
        view = merging(storage)
        assert isinstance(save(view.create_task_owned_state_stream(), b"a"), FileStateHandle)
        assert view.create_task_owned_checkpoint_state_toolset() is not None

    def test_without_a_manager_and_in_memory_nothing_is_merged(self, storage: CheckpointStorage) -> None:
        access, memory = make_access(storage), MemoryBackendCheckpointStorageAccess(ATTEMPT, storage)
        assert access.to_file_merging_storage(None, Environment()) is access
        for view in (access, merging(storage).to_file_merging_storage(None, Environment())):
            handles = write(view, b"a", b"b")
            assert {type(handle) for handle in handles} == {FileStateHandle}
            assert durable(view, *handles) == handles
        assert (
            memory.to_file_merging_storage(FileMergingSnapshotManager(1, CheckpointConfig()), Environment()) is memory
        )

    def test_streams_of_several_threads_share_a_file(self, storage: CheckpointStorage) -> None:
        view, pieces = merging(storage), [bytes([i]) * (i + 1) for i in range(64)]
        with ThreadPoolExecutor(8) as pool:
            handles = list(pool.map(lambda data: write(view, data)[0], pieces))
        assert [read_state(storage, handle) for handle in durable(view, *handles)] == pieces
        assert len(files(storage)) == 1


class TestDurability:
    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_a_file_that_cannot_be_written_is_told_and_may_be_tried_again(
        self, storage: CheckpointStorage, mode: FaultMode
    ) -> None:
        view = merging(faulty_storage(storage, FaultPlan(1, mode)))
        handles = write(view, b"a", b"b")
        with pytest.raises(StorageError, match="Injected"):
            view.make_durable([keyed(*handles)])
        assert [read_state(storage, handle) for handle in durable(view, *handles)] == [b"a", b"b"]

    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_a_full_file_that_cannot_be_written_fails_its_stream_and_is_not_forgotten(
        self, storage: CheckpointStorage, mode: FaultMode
    ) -> None:
        view = merging(faulty_storage(storage, FaultPlan(1, mode)), max_file_size=2)
        (first,) = write(view, b"a")
        with pytest.raises(StorageError, match="Injected"):
            write(view, b"b")
        view.make_durable([])
        assert read_state(storage, first) == b"a"

    def test_what_is_durable_is_not_written_again(self, storage: CheckpointStorage) -> None:
        plan = FaultPlan()
        view = merging(faulty_storage(storage, plan))
        first = durable(view, *write(view, b"a", b"b"))
        second = durable(view, *write(view, b"c", b"d"))
        assert plan.calls == ["write_bytes"] * 2
        assert first[0].uri != second[0].uri

    def test_handles_of_other_writers_stay_as_they_are(self, storage: CheckpointStorage) -> None:
        others: list[StreamStateHandle] = [
            segment("memory://x/y", 0, 5, 9),
            FileStateHandle("memory://x/z", 3),
            ByteStreamStateHandle("n", b""),
        ]
        (state,) = merging(storage).make_durable([keyed(*others)])
        assert set(others) <= set(streams_of(state))


def segment(uri: str, start: int, length: int, file_size: int, scope: Any = SHARED) -> SegmentFileStateHandle:
    return SegmentFileStateHandle(uri, start, length, scope, f"{uri}-{start}", "", file_size)


class TestSpace:
    def test_a_file_of_which_little_is_referenced_is_rewritten(self, storage: CheckpointStorage) -> None:
        wasteful, thrifty = segment("memory://f/1", 0, 10, 100), segment("memory://f/2", 0, 90, 100)
        streams = merging(storage, [wasteful, thrifty, thrifty], max_space_amplification=1.5)
        found = streams.resolve_checkpoint_storage_location(5, DEFAULT)
        assert [found.could_reuse_state_handle(handle) for handle in (wasteful, thrifty)] == [False, True]

    def test_state_that_each_checkpoint_rewrites_hides_no_waste(self, storage: CheckpointStorage) -> None:
        wasteful, exclusive = segment("memory://f/1", 0, 10, 100), segment("memory://f/2", 0, 500, 500, EXCLUSIVE)
        streams = merging(storage, [wasteful, exclusive], max_space_amplification=2.0)
        assert not streams.resolve_checkpoint_storage_location(5, DEFAULT).could_reuse_state_handle(wasteful)

    @pytest.mark.parametrize("limit", [2.5, float("inf")])
    def test_below_the_limit_everything_may_stay(self, storage: CheckpointStorage, limit: float) -> None:
        half = segment("memory://f/1", 0, 50, 100)
        view = merging(storage, [half], max_space_amplification=limit)
        assert view.resolve_checkpoint_storage_location(5, DEFAULT).could_reuse_state_handle(half)

    def test_whole_files_inline_state_and_files_of_unknown_size_may_always_stay(
        self, storage: CheckpointStorage
    ) -> None:
        known: list[StreamStateHandle] = [
            segment("memory://f/1", 5, 1, 0),
            FileStateHandle("memory://f/2", 1),
            ByteStreamStateHandle("n", b"x"),
        ]
        found = merging(storage, known, max_space_amplification=1.1).resolve_checkpoint_storage_location(5, DEFAULT)
        assert all(found.could_reuse_state_handle(handle) for handle in known)

    def test_files_of_the_same_checkpoint_may_be_reused_without_merging(self, storage: CheckpointStorage) -> None:
        streams = make_access(storage).resolve_checkpoint_storage_location(5, DEFAULT)
        assert streams.could_reuse_state_handle(segment("memory://f/1", 0, 1, 100))

    @given(
        lengths=st.lists(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=5), max_size=6),
        limit=st.floats(1.01, 5),
    )
    def test_without_the_rewritten_files_the_limit_is_kept_and_no_file_is_rewritten_for_nothing(
        self, lengths: list[list[tuple[int, bool]]], limit: float
    ) -> None:
        live = []
        for number, pieces in enumerate(lengths):
            size, start = sum(length for length, _ in pieces), 0
            for length, is_live in pieces:
                live += [segment(f"memory://f/{number}", start, length, size)] if is_live else []
                start += length
        retired = files_to_retire(live, limit)
        sizes = {handle.uri: handle.file_size for handle in live}
        referenced = {uri: sum(h.length for h in live if h.uri == uri) for uri in sizes}
        after = sum(referenced[uri] if uri in retired else size for uri, size in sizes.items())
        assert after <= limit * sum(referenced.values()) + 1e-6
        assert all(referenced[uri] < sizes[uri] for uri in retired)
