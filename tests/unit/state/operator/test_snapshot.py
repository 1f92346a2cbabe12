"""Snapshots of operator state: what is in them, and what is left of one that does not get to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    DistributionMode,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    SnapshotCancelledError,
    StorageError,
)
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend, OperatorStateSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream
from tests.unit.state.operator.snapshots import numbers, rates, restored


@pytest.fixture
def backend() -> DefaultOperatorStateBackend:
    """A backend with a list of 1 and 2 and a map."""
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(numbers()).update([1, 2])
    backend.get_broadcast_state(rates()).put("a", 0.5)
    return backend


Backend = DefaultOperatorStateBackend


def files(storage: CheckpointStorage) -> list[str]:
    return sorted(storage.list_files(storage.base_uri))


def test_without_any_registered_state_nothing_is_saved(
    storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    result = DefaultOperatorStateBackend().snapshot(1, 0, streams).run()
    assert result.handle is None
    assert result.new_bytes == 0
    assert files(storage) == []


def test_registered_but_empty_state_is_saved(streams: FsCheckpointStreamFactory) -> None:
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(numbers())
    result = backend.snapshot(1, 0, streams).run()
    assert result.handle is not None
    assert [(name, meta.offsets) for name, meta in result.handle.states] == [("numbers", ())]


def test_run_writes_one_file_of_this_checkpoint_alone(
    backend: Backend, storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    snapshot = backend.snapshot(1, 0, streams)
    assert files(storage) == []
    result = snapshot.run()
    assert result.handle is not None
    uri = result.handle.stream.uri  # type: ignore[union-attr]
    assert uri.startswith(streams.exclusive)
    assert files(storage) == [uri.removeprefix(f"{storage.base_uri}/")]
    assert result.new_bytes == result.handle.state_size == storage.size(uri)


def test_each_element_of_a_list_has_an_offset_and_a_map_has_one(
    backend: Backend, streams: FsCheckpointStreamFactory
) -> None:
    backend.get_broadcast_state(rates()).put("b", 1.5)
    backend.get_union_list_state(numbers("union")).update([7, 8, 9])
    handle = backend.snapshot(1, 0, streams).run().handle
    assert handle is not None
    found = {name: (meta.mode, len(set(meta.offsets))) for name, meta in handle.states}
    assert found == {
        "numbers": (DistributionMode.SPLIT_DISTRIBUTE, 2),
        "broadcast/rates": (DistributionMode.BROADCAST, 1),
        "union": (DistributionMode.UNION, 3),
    }


CHANGES: dict[str, Callable[[Backend], Any]] = {
    "add": lambda backend: backend.get_list_state(numbers()).add(3),
    "clear": lambda backend: backend.get_list_state(numbers()).clear(),
    "put": lambda backend: backend.get_broadcast_state(rates()).put("b", 1.0),
    "remove": lambda backend: backend.get_broadcast_state(rates()).remove("a"),
    "clear map": lambda backend: backend.get_broadcast_state(rates()).clear(),
    "registration": lambda backend: backend.get_list_state(numbers("new")).add(1),
    "broadcast registration": lambda backend: backend.get_broadcast_state(rates("new")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_later_changes_are_not_in_the_snapshot(
    backend: Backend, storage: CheckpointStorage, streams: FsCheckpointStreamFactory, change: Callable[[Backend], Any]
) -> None:
    snapshot = backend.snapshot(1, 0, streams)
    change(backend)
    handle = snapshot.run().handle
    assert handle is not None
    found = restored(storage, [handle])
    assert found.get_registered_state_names() == {"numbers"}
    assert found.get_registered_broadcast_state_names() == {"rates"}
    assert list(found.get_list_state(numbers())) == [1, 2]
    assert dict(found.get_broadcast_state(rates())) == {"a": 0.5}


def test_snapshots_that_run_at_once_have_their_own_versions(
    backend: Backend, storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    first = backend.snapshot(1, 0, streams)
    backend.get_list_state(numbers()).add(3)
    second = backend.snapshot(2, 0, streams)
    later, earlier = second.run().handle, first.run().handle
    assert earlier is not None
    assert later is not None
    assert list(restored(storage, [earlier]).get_list_state(numbers())) == [1, 2]
    assert list(restored(storage, [later]).get_list_state(numbers())) == [1, 2, 3]


class Watched:
    """A stream that does something before a step of it."""

    def __init__(self, stream: CheckpointStateOutputStream, before: Callable[[str], None]) -> None:
        self._stream = stream
        self._before = before
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self._before("write")
        self._stream.write(data)

    def close_and_get_handle(self) -> Any:
        self._before("close_and_get_handle")
        return self._stream.close_and_get_handle()

    def close(self) -> None:
        self.is_closed = True
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class WatchedStreams:
    def __init__(self, streams: FsCheckpointStreamFactory) -> None:
        self._streams = streams
        self.before: Callable[[str], None] = lambda step: None
        self.opened: list[Watched] = []

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> Any:
        stream = self._streams.create_checkpoint_state_output_stream(scope)
        self.opened.append(Watched(stream, lambda step: self.before(step)))
        return self.opened[-1]

    def could_reuse_state_handle(self, handle: StreamStateHandle) -> bool:
        return self._streams.could_reuse_state_handle(handle)


@pytest.fixture
def watched(streams: FsCheckpointStreamFactory) -> WatchedStreams:
    return WatchedStreams(streams)


def test_a_snapshot_that_is_cancelled_before_it_runs_opens_no_stream(backend: Backend, watched: WatchedStreams) -> None:
    snapshot = backend.snapshot(1, 0, watched)
    snapshot.cancel()
    with pytest.raises(SnapshotCancelledError):
        snapshot.run()
    assert watched.opened == []


def test_a_snapshot_that_is_cancelled_while_it_writes_leaves_no_file(
    backend: Backend, storage: CheckpointStorage, watched: WatchedStreams
) -> None:
    snapshot = backend.snapshot(1, 0, watched)
    steps: list[str] = []

    def cancel_at_once(step: str) -> None:
        steps.append(step)
        snapshot.cancel()

    watched.before = cancel_at_once
    with pytest.raises(SnapshotCancelledError):
        snapshot.run()
    assert steps == ["write"]
    assert watched.opened[0].is_closed
    assert files(storage) == []


def test_a_snapshot_that_is_cancelled_after_its_last_byte_leaves_no_file(
    backend: Backend, storage: CheckpointStorage, watched: WatchedStreams
) -> None:
    steps: list[str] = []
    watched.before = steps.append
    backend.snapshot(1, 0, watched).run()
    before = files(storage)
    snapshot = backend.snapshot(2, 0, watched)
    left = iter(range(steps.count("write"), 0, -1))
    watched.before = lambda step: snapshot.cancel() if next(left) == 1 else None
    with pytest.raises(SnapshotCancelledError):
        snapshot.run()
    assert files(storage) == before


def test_a_cancel_after_the_end_has_no_effect(
    backend: Backend, storage: CheckpointStorage, streams: FsCheckpointStreamFactory
) -> None:
    snapshot = backend.snapshot(1, 0, streams)
    handle = snapshot.run().handle
    snapshot.cancel()
    assert handle is not None
    assert list(restored(storage, [handle]).get_list_state(numbers())) == [1, 2]


@pytest.mark.parametrize("failing", ["write", "close_and_get_handle"])
def test_a_snapshot_that_fails_leaves_no_file(
    backend: Backend, storage: CheckpointStorage, watched: WatchedStreams, failing: str
) -> None:
    def fail(step: str) -> None:
        if step == failing:
            raise StorageError("no space left")

    watched.before = fail
    with pytest.raises(StorageError, match="no space left"):
        backend.snapshot(1, 0, watched).run()
    assert watched.opened[0].is_closed
    assert files(storage) == []


def test_disposing_the_backend_ends_running_snapshots(backend: Backend, watched: WatchedStreams) -> None:
    snapshots: list[OperatorStateSnapshot] = [backend.snapshot(i, 0, watched) for i in (1, 2)]
    backend.dispose()
    for snapshot in snapshots:
        with pytest.raises(SnapshotCancelledError):
            snapshot.run()


def test_a_disposed_backend_takes_no_snapshot(backend: Backend, watched: WatchedStreams) -> None:
    backend.dispose()
    with pytest.raises(CoordinatorError, match="found it disposed"):
        backend.snapshot(1, 0, watched)
