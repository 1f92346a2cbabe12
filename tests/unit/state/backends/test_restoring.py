"""Backends that cannot be restored."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
)
from airflow_provider_statecheck.exceptions import (
    BackendRestoreError,
    CorruptStateError,
    InvalidConfigurationError,
    StateMigrationError,
    StorageError,
)
from airflow_provider_statecheck.state.backends.file_state_backends import FsStateBackend, MemoryStateBackend
from airflow_provider_statecheck.state.backends.state_backend import restoring
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.function_harness import KEY_GROUPS, KeyedHarness


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
    create, of_task = keyed.backend.create_keyed_state_backend, (keyed._environment(0, 1), "job", "operator")
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
