"""Backends that cannot be restored."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    IncrementalKeyedStateHandle,
    KeyGroupRange,
)
from airflow_provider_statecheck.exceptions import (
    BackendRestoreError,
    CorruptStateError,
    InvalidConfigurationError,
    StateMigrationError,
    StorageError,
)
from airflow_provider_statecheck.state.backends.hash_state_backend import FsStateBackend, MemoryStateBackend
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


def test_each_byte_that_was_changed_is_noticed(keyed: KeyedHarness) -> None:
    handle = saved(keyed)
    data = handle.stream.data
    for position in range(0, len(data), 5):
        changed = bytes([*data[:position], data[position] ^ 0xFF, *data[position + 1 :]])
        broken = replace(handle, stream=ByteStreamStateHandle("x", changed))
        with pytest.raises(BackendRestoreError):
            keyed.open([broken])


def with_header(handle: Any, old: bytes, new: bytes) -> Any:
    data = handle.stream.data
    magic, length, _ = struct.unpack("<8sII", data[:16])
    header = data[16 : 16 + length].replace(old, new, 1)
    assert header != data[16 : 16 + length]
    prefix = struct.pack("<8sII", magic, length, zlib.crc32(header))
    return replace(handle, stream=ByteStreamStateHandle("x", prefix + header + data[16 + length :]))


def test_state_of_other_key_groups_is_refused(keyed: KeyedHarness) -> None:
    handle = saved(keyed)
    other = with_header(handle, b'"number_of_key_groups":16', b'"number_of_key_groups":32')
    with pytest.raises(BackendRestoreError, match="maximum parallelism"):
        keyed.open([other])


def test_newer_format_is_refused(keyed: KeyedHarness) -> None:
    newer = with_header(saved(keyed), b'{"version":1', b'{"version":2')
    with pytest.raises(BackendRestoreError, match="newer one"):
        keyed.open([newer])


def test_handle_with_too_few_offsets_is_refused(keyed: KeyedHarness) -> None:
    handle = saved(keyed)
    with pytest.raises(BackendRestoreError, match="broken"):
        keyed.open([replace(handle, offsets=handle.offsets[1:])])


def test_handle_of_another_backend_is_refused(keyed: KeyedHarness) -> None:
    other = IncrementalKeyedStateHandle(
        backend_id="b",
        key_group_range=KeyGroupRange(0, KEY_GROUPS - 1),
        checkpoint_id=1,
        meta=ByteStreamStateHandle("x", b""),
    )
    with pytest.raises(BackendRestoreError, match="another state backend"):
        keyed.open([other])


def test_only_the_key_groups_of_the_subtask_are_read(keyed: KeyedHarness) -> None:
    handle = saved(keyed)
    last = next(group for group in reversed(range(KEY_GROUPS)) if handle.offsets[group] >= 0)
    cut = handle.stream.data[: handle.offsets[last]]
    broken = replace(handle, stream=ByteStreamStateHandle("x", cut))
    assert keyed.open_range(KeyGroupRange(0, last - 1), [broken]).num_entries() > 0
    with pytest.raises(BackendRestoreError):
        keyed.open([broken])


def test_memory_and_filesystem_read_each_others_snapshots(keyed: KeyedHarness) -> None:
    handle = saved(keyed)
    keyed.backend = FsStateBackend()
    backend = keyed.open([handle])
    backend.set_current_key("key 3")
    assert backend.store.get_state(ValueStateDescriptor("n", int)).value() == 3
    (in_a_file,) = keyed.save(backend)
    keyed.backend = MemoryStateBackend()
    assert keyed.open([in_a_file]).num_entries() == 30
