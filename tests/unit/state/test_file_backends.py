"""What the backends with full snapshots add to the contract of all backends."""

from __future__ import annotations

import logging
import pickle
import random
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSubtaskState,
    streams_of_subtask,
)
from airflow_provider_statecheck.exceptions import (
    BackendRestoreError,
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    StateMigrationError,
    StorageError,
)
from airflow_provider_statecheck.state.backends import (
    AbstractFileStateBackend,
    ArrowStateBackend,
    FsStateBackend,
    MemoryStateBackend,
    SnapshotMode,
    load_state_backend,
    restoring,
)
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import (
    FsCheckpointStorageAccess,
    load_checkpoint_storage,
)
from airflow_provider_statecheck.storage.views.state_files import CheckpointStorageAccess, read_state
from airflow_provider_statecheck.storage.views.state_streams import StateWriting
from airflow_provider_statecheck.testing.function_harness import ATTEMPT, KEY_GROUPS, KeyedHarness
from airflow_provider_statecheck.testing.keyed_ttl_contract import TTL


def harness(backend: Any) -> KeyedHarness:
    return KeyedHarness(backend, CheckpointStorage.open(f"memory://{uuid.uuid4().hex}"))


def with_value(keyed: KeyedHarness, value: str) -> Any:
    backend: Any = keyed.open()
    backend.set_current_key("a")
    backend.store.get_state(ValueStateDescriptor("v", str)).update(value)
    return backend


def test_state_of_the_memory_backend_travels_in_its_handle() -> None:
    keyed = harness(MemoryStateBackend())
    (handle,) = keyed.save(with_value(keyed, "x"))
    assert all(isinstance(stream, ByteStreamStateHandle) for stream in streams_of_subtask(subtask(handle)))
    assert keyed.files() == set()


def test_checkpoint_of_the_filesystem_backend_owns_all_its_files() -> None:
    keyed = harness(FsStateBackend())
    backend = with_value(keyed, "x" * 5000)
    (first,), (second,) = keyed.save(backend), keyed.save(backend)
    assert first.shared == second.shared == ()
    assert uris(first)
    assert uris(second)
    assert not uris(first) & uris(second)


@pytest.mark.parametrize("mode", SnapshotMode)
@pytest.mark.parametrize("earlier", SnapshotMode)
def test_each_mode_reads_the_snapshots_of_each_other(earlier: SnapshotMode, mode: SnapshotMode) -> None:
    keyed = harness(ArrowStateBackend(mode=earlier))
    handles = keyed.save(with_value(keyed, "x" * 5000))
    assert bool(uris(*handles)) is (earlier is not SnapshotMode.INLINE)
    keyed.backend = ArrowStateBackend(mode=mode)

    assert read(keyed.open(handles)) == "x" * 5000


@pytest.mark.parametrize("arguments", [{"mode": "full"}, {"mode": True}, {"max_state_size": 0}])
def test_another_mode_and_a_limit_of_nothing_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"Expected {next(iter(arguments))}"):
        ArrowStateBackend(**arguments)


def subtask(*handles: KeyedStateHandle) -> OperatorSubtaskState:
    return OperatorSubtaskState(managed_keyed=handles)


def uris(*handles: KeyedStateHandle) -> set[str]:
    streams = streams_of_subtask(subtask(*handles))
    return {stream.uri for stream in streams if isinstance(stream, FileStateHandle)}


@pytest.mark.parametrize("is_claimed", [True, False], ids=["claimed", "unclaimed"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SnapshotMode.INCREMENTAL, SnapshotMode.FULL),
        (SnapshotMode.FULL, SnapshotMode.INCREMENTAL),
        (SnapshotMode.FULL, SnapshotMode.FULL),
    ],
)
def test_no_snapshot_needs_the_files_of_a_checkpoint_that_is_deleted(
    before: SnapshotMode, after: SnapshotMode, is_claimed: bool
) -> None:
    keyed = harness(ArrowStateBackend(mode=before))
    handles = keyed.save(with_value(keyed, "x" * 5000))
    keyed.backend = ArrowStateBackend(mode=after)
    backend: Any = keyed.open(handles)
    if is_claimed:
        read(backend)
    again = keyed.save(backend)
    assert uris(*handles)
    assert not uris(*handles) & uris(*again)
    backend.notify_checkpoint_complete(again[0].checkpoint_id)
    for uri in uris(*handles):
        keyed.storage.delete_file(uri)
    later = keyed.save(backend)
    assert bool(uris(*again) & uris(*later)) is (after is SnapshotMode.INCREMENTAL)
    for found in (keyed.open(again), keyed.open(later), backend):
        assert read(found) == "x" * 5000


def test_state_that_is_claimed_during_a_snapshot_moves_with_its_completion() -> None:
    keyed = harness(FsStateBackend())
    handles = keyed.save(with_value(keyed, "x"))
    backend: Any = keyed.open(handles)
    snapshot = keyed.snapshot(backend)
    assert read(backend) == "x"
    written = snapshot.run().handle
    assert written is not None
    backend.notify_checkpoint_complete(written.checkpoint_id)
    for uri in uris(*handles):
        keyed.storage.delete_file(uri)
    assert read(keyed.open(keyed.save(backend))) == "x"


def test_changed_rows_in_a_handle_are_noticed_when_they_are_read() -> None:
    keyed = harness(MemoryStateBackend())
    (handle,) = keyed.save(with_value(keyed, "x"))
    ((path, stream),) = handle.private
    assert isinstance(stream, ByteStreamStateHandle)
    changed = bytes(byte ^ 0xFF for byte in stream.data)
    backend: Any = keyed.open([replace(handle, private=((path, replace(stream, data=changed)),))])
    with pytest.raises(CorruptStateError):
        read(backend)


def read(backend: Any) -> str:
    backend.set_current_key("a")
    value: str = backend.store.get_state(ValueStateDescriptor("v", str)).value()
    return value


def test_unclaimed_state_is_copied_with_all_of_its_runs() -> None:
    keyed = harness(ArrowStateBackend())
    backend = with_value(keyed, "old")
    state = backend.store.get_state(ValueStateDescriptor("v", str))
    for key in ("b", "c"):
        backend.set_current_key(key)
        state.update("y" * 5000)
    handles = keyed.save(backend)
    backend.notify_checkpoint_complete(1)
    backend.set_current_key("a")
    state.update("x")
    backend.set_current_key("b")
    state.clear()
    runs = keyed.save(backend)
    assert uris(*handles) & uris(*runs)
    for _ in range(2):
        keyed.backend = FsStateBackend()
        runs = keyed.save(keyed.open(runs))
    restored = keyed.open(runs)
    assert (restored.num_entries(), read(restored)) == (2, "x")


@pytest.mark.parametrize(("given", "found"), [({}, 1), ({"state.backend.incremental": "false"}, 0)])
def test_snapshots_are_incremental_as_configured(given: dict[str, str], found: int) -> None:
    keyed = harness(load_state_backend(None, given))
    (handle,) = keyed.save(with_value(keyed, "x"))
    assert (len(handle.shared), len(handle.private)) == (found, 1 - found)


@pytest.mark.parametrize("kind", [FsStateBackend, MemoryStateBackend])
def test_settings_of_state_files_hold_for_every_backend(kind: Any) -> None:
    sizes = [0, 0]
    for index, compression in enumerate(("none", "zstd")):
        keyed = harness(load_state_backend(kind(), {"state.backend.arrow.compression": compression}))
        (handle,) = keyed.save(with_value(keyed, "x" * 5000))
        sizes[index] = handle.private[0][1].state_size
    assert sizes[1] < sizes[0] / 5


def test_limit_holds_for_a_state_whatever_the_size_of_files_is() -> None:
    keyed = harness(MemoryStateBackend(config={"state.backend.arrow.part-bytes": "1"}, max_state_size=4000))
    backend: Any = keyed.open()
    for number in range(100):
        backend.set_current_key(str(number))
        backend.store.get_state(ValueStateDescriptor("v", str)).update(random.Random(number).randbytes(50).hex())
    with pytest.raises(StorageError, match="at most 4000 bytes"):
        keyed.save(backend)


def test_state_above_the_limit_is_refused_naming_it() -> None:
    keyed = harness(MemoryStateBackend(max_state_size=4000))
    backend = with_value(keyed, random.Random(1).randbytes(5000).hex())
    with pytest.raises(StorageError, match="at most 4000 bytes"):
        keyed.save(backend)
    backend.store.get_state(ValueStateDescriptor("v", str)).update("x")
    assert len(keyed.save(backend)) == 1


@pytest.mark.parametrize("size", [0, -1])
def test_limit_must_be_above_zero(size: int) -> None:
    with pytest.raises(InvalidConfigurationError, match="max_state_size"):
        MemoryStateBackend(max_state_size=size)
    assert MemoryStateBackend().max_state_size == 5 * 1024 * 1024


@pytest.mark.parametrize("backend", [FsStateBackend(), MemoryStateBackend(max_state_size=10)])
def test_backends_are_storages_of_their_own(tmp_path: Path, backend: AbstractFileStateBackend) -> None:
    config = CheckpointConfig()
    config.checkpoint_storage = backend
    storage = CheckpointStorage.open(tmp_path.as_uri())
    stream = load_checkpoint_storage(storage, ATTEMPT, config).create_task_owned_state_stream()
    stream.write(b"x" * 10)
    stream.flush_to_file()
    handle = stream.close_and_get_handle()
    assert isinstance(
        handle, {"filesystem": FileStateHandle, "memory": ByteStreamStateHandle}[backend.get_identifier()]
    )


def test_operator_state_is_restored() -> None:
    keyed = harness(FsStateBackend())
    environment = keyed.environment
    backend = keyed.backend.create_operator_state_backend(environment, "operator")
    assert isinstance(backend, DefaultOperatorStateBackend)
    descriptor: Any = ListStateDescriptor("l", int)
    backend.get_list_state(descriptor).add(1)
    handle = backend.snapshot(1, 0, keyed.streams()).run().handle
    assert handle is not None
    again = keyed.backend.create_operator_state_backend(environment, "operator", restored=[handle])
    assert list(again.get_list_state(descriptor)) == [1]
    for name in keyed.files():
        keyed.storage.delete_file(f"{keyed.storage.base_uri}/{name}")
    with pytest.raises(BackendRestoreError, match="operator could not be restored"):
        keyed.backend.create_operator_state_backend(environment, "operator", restored=[handle])


def test_full_snapshot_leaves_out_what_is_expired() -> None:
    keyed = harness(MemoryStateBackend())
    backend: Any = keyed.open()
    fill_expiring(backend, "a")
    keyed.now_ms += 60
    fill_expiring(backend, "b")
    backend.set_current_key("a")
    backend.store.get_list_state(ListStateDescriptor("l", int, ttl=TTL)).add(2)
    keyed.now_ms += 60
    handles = keyed.save(backend)
    keyed.now_ms -= 60
    restored = keyed.open(handles)
    assert restored.num_entries() == 4
    restored.set_current_key("a")
    assert list(restored.store.get_list_state(ListStateDescriptor("l", int, ttl=TTL)).get()) == [2]


def fill_expiring(backend: Any, key: str, ttl: StateTtlConfig = TTL) -> None:
    backend.set_current_key(key)
    backend.store.get_state(ValueStateDescriptor("v", int, ttl=ttl)).update(1)
    backend.store.get_list_state(ListStateDescriptor("l", int, ttl=ttl)).add(1)
    backend.store.get_map_state(MapStateDescriptor("m", str, int, ttl=ttl)).put("x", 1)


def test_snapshot_in_which_all_is_expired_is_empty() -> None:
    keyed = harness(MemoryStateBackend())
    backend: Any = keyed.open()
    fill_expiring(backend, "a")
    keyed.now_ms += 100
    assert keyed.save(backend) == ()


def test_snapshots_of_several_versions_are_carried_on_side_by_side() -> None:
    import pyarrow as pa

    keyed = harness(MemoryStateBackend())
    parts = [keyed.open(index=index, parallelism=2) for index in range(2)]
    keys = [f"key {number}" for number in range(20)]
    for key in keys:
        owner = keyed.owner_of(key, parts)
        owner.set_current_key(key)
        narrow = pa.int32() if owner is parts[0] else pa.int64()
        owner.store.get_state(ValueStateDescriptor("v", narrow)).update(len(key))
    ((carried,), (backend,)) = keyed.reopen(parts, 1), keyed.reopen(keyed.reopen(parts, 1), 1)
    assert carried.num_entries() == 20
    for key in keys:
        backend.set_current_key(key)
        assert backend.store.get_state(ValueStateDescriptor("v", pa.int64())).value() == len(key)


NEW = {"execution.checkpointing.dir": "file:///new/chk", "execution.checkpointing.savepoint-dir": "file:///new/sp"}
OLD = {"state.checkpoints.dir": "file:///old/chk", "state.savepoints.dir": "file:///old/sp"}


class Backend(AbstractFileStateBackend):
    """Keeps state in files."""

    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> CheckpointStorageAccess:
        return FsCheckpointStorageAccess(storage, attempt, writing=writing)

    def get_identifier(self) -> str:
        return "own"


@pytest.mark.parametrize(
    ("backend", "paths"),
    [
        (Backend("file:///arg/chk", "file:///arg/sp", NEW), ("file:///arg/chk", "file:///arg/sp")),
        (Backend("file:///arg/chk", None, NEW), ("file:///arg/chk", "file:///new/sp")),
        (Backend("s3://bucket/chk/"), ("s3://bucket/chk", None)),
        (Backend(config=OLD | NEW), ("file:///new/chk", "file:///new/sp")),
        (Backend(config=CheckpointConfig.from_mapping(NEW)), ("file:///new/chk", "file:///new/sp")),
        (pickle.loads(pickle.dumps(Backend(config=NEW))), ("file:///new/chk", "file:///new/sp")),
        (Backend(), (None, None)),
    ],
    ids=["arguments", "each by itself", "slash at the end", "new spelling", "settings", "another process", "neither"],
)
def test_paths_are_those_of_arguments_and_then_of_the_configuration(backend: Backend, paths: tuple[str, str]) -> None:
    assert (backend.checkpoint_path, backend.savepoint_path) == paths


def test_old_spelling_of_a_setting_is_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        old = Backend(config=OLD)
    assert (old.checkpoint_path, old.savepoint_path) == ("file:///old/chk", "file:///old/sp")
    assert "state.checkpoints.dir" in caplog.text


@pytest.mark.parametrize("path", ["/data/chk", "data", "", "file://", "file:///", "s3://bucket", "s3:///"])
@pytest.mark.parametrize("name", ["base_checkpoint_path", "base_savepoint_path"])
def test_a_path_without_scheme_or_path_or_of_a_root_is_refused(name: str, path: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=name):
        Backend(*((path, None) if name == "base_checkpoint_path" else (None, path)))


@pytest.mark.parametrize("has_directory", [True, False])
def test_a_pointer_of_any_job_is_resolved(tmp_path: Path, has_directory: bool) -> None:
    storage = CheckpointStorage.open(str(tmp_path))
    directory = f"{storage.base_uri}/{'a' * 32}/chk-1"
    storage.write_bytes(f"{directory}/_metadata", b"meta")
    backend = Backend("file:///somewhere/else" if has_directory else None)
    found = backend.resolve_checkpoint(directory)
    assert found.external_pointer == directory
    assert read_state(storage, found.metadata_handle) == b"meta"
    found.dispose()
    with pytest.raises(CheckpointNotFoundError):
        backend.resolve_checkpoint(directory)


def test_what_is_no_pointer_is_refused() -> None:
    for pointer in (None, ""):
        with pytest.raises(InvalidConfigurationError):
            Backend().resolve_checkpoint(pointer)
    with pytest.raises(StorageError):
        Backend().resolve_checkpoint("no uri")


@pytest.fixture
def keyed() -> KeyedHarness:
    return KeyedHarness(MemoryStateBackend(), CheckpointStorage.open("memory://restoring"))


def saved(keyed: KeyedHarness) -> Any:
    backend: Any = keyed.open()
    for number in range(30):
        backend.set_current_key(f"key {number}")
        backend.store.get_state(ValueStateDescriptor("n", int)).update(number)
    (handle,) = keyed.save(backend)
    return handle


@pytest.mark.parametrize("error", [StorageError("gone"), CorruptStateError("changed"), OSError("no such host")])
def test_failure_says_that_the_backend_could_not_be_restored(error: Exception) -> None:
    with (
        pytest.raises(BackendRestoreError, match=f"of balances could not be restored: {error}") as failure,
        restoring("balances"),
    ):
        raise error
    assert failure.value.failures == (error,)


@pytest.mark.parametrize("error", [StateMigrationError("other"), InvalidConfigurationError("bad"), ZeroDivisionError()])
def test_errors_that_no_other_copy_would_cure_go_on_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)), restoring("balances"):
        raise error


def test_state_of_other_key_groups_is_refused(keyed: KeyedHarness) -> None:
    handle = saved(keyed)
    groups = 2 * KEY_GROUPS
    create, of_task = keyed.backend.create_keyed_state_backend, (keyed.environment, "job", "operator")
    with pytest.raises(BackendRestoreError, match="maximum parallelism"):
        create(*of_task, keyed.keys, groups, KeyGroupRange(0, groups - 1), restored=[handle])


def test_handle_of_another_backend_is_refused(keyed: KeyedHarness) -> None:
    other = KeyedStateHandle(
        backend_id="b",
        key_group_range=KeyGroupRange(0, KEY_GROUPS - 1),
        checkpoint_id=1,
        meta=ByteStreamStateHandle("x", b""),
    )
    with pytest.raises(BackendRestoreError, match="those of 'b'"):
        keyed.open([other])


def test_memory_and_filesystem_read_each_others_snapshots(keyed: KeyedHarness) -> None:
    handle = saved(keyed)
    keyed.backend = FsStateBackend()
    backend = keyed.open([handle])
    backend.set_current_key("key 3")
    assert backend.store.get_state(ValueStateDescriptor("n", int)).value() == 3
    (in_a_file,) = keyed.save(backend)
    keyed.backend = MemoryStateBackend()
    assert keyed.open([in_a_file]).num_entries() == 30
