"""Arrow backends over a directory, with storage that counts what is read and fails when it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    KeyedStateHandle,
    KeyGroupRange,
)
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend, ArrowSnapshot
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.arrow.run_files import StateFiles, decode_meta
from airflow_provider_statecheck.state.backends import ArrowStateBackend
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.keyed.abstract_backend import StateEnvironment
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeyField, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

GROUPS = 16
OPERATOR = "0f" * 16
SMALL = ArrowStateSettings(block_rows=4, part_bytes=4096)
BY_NUMBER = KeySerializer((KeyField("id", pa.int64()),))
VALUE: ValueStateDescriptor[Any] = ValueStateDescriptor("value", int)
BY_TEXT_AND_NUMBER = KeySerializer((KeyField("name", pa.string()), KeyField("id", pa.int32())))


class Job:
    """
    A job with one operator.

    :param place: Directory, or URI, of the checkpoint storage.
    :param inline: Up to how many bytes state travels in its handle.
    """

    def __init__(
        self,
        place: Path | str,
        keys: KeySerializer = BY_NUMBER,
        settings: ArrowStateSettings = SMALL,
        *,
        inline: int = 0,
        now_ms: int = 0,
    ) -> None:
        self.storage = CheckpointStorage.open(place if isinstance(place, str) else place.as_uri())
        self.keys = keys
        self.settings = settings
        self.now_ms = now_ms
        self.checkpoint_id = 0
        """Number of the last snapshot."""
        self._inline = inline
        self._base = f"{self.storage.base_uri}/{new_key()}"

    def open(
        self,
        *restored: KeyedStateHandle | None,
        owned: KeyGroupRange | None = None,
        schemas: OperatorSchemas | None = None,
    ) -> ArrowKeyedStateBackend:
        environment = StateEnvironment(
            storage=self.storage,
            now_ms=lambda: self.now_ms,
            schemas=schemas,
        )
        return ArrowStateBackend(self.settings).create_keyed_state_backend(
            environment,
            "job",
            "operator",
            self.keys,
            GROUPS,
            owned or KeyGroupRange(0, GROUPS - 1),
            restored=[handle for handle in restored if handle is not None],
        )

    def streams(self) -> FsCheckpointStreamFactory:
        self.checkpoint_id += 1
        return FsCheckpointStreamFactory(
            storage=self.storage,
            exclusive=f"{self._base}/chk-{self.checkpoint_id}",
            shared=f"{self._base}/shared/{OPERATOR}/state",
            writing=StateWriting(epoch=1, inline_threshold=self._inline),
        )

    @staticmethod
    def state(backend: ArrowKeyedStateBackend, descriptor: Any, namespace: str = "") -> Any:
        """Return a state of any kind."""
        return backend.get_partitioned_state(descriptor, namespace)

    def capture(self, backend: ArrowKeyedStateBackend) -> ArrowSnapshot:
        """Return a snapshot of the current state that is not yet written."""
        streams = self.streams()
        return backend.snapshot(self.checkpoint_id, 0, streams)

    def save(self, backend: ArrowKeyedStateBackend) -> KeyedStateHandle:
        handle = self.capture(backend).run().handle
        assert isinstance(handle, KeyedStateHandle)
        return handle

    def described(self, handle: KeyedStateHandle) -> dict[str, StateFiles]:
        """Return what the description of a snapshot says of each state."""
        assert handle.meta is not None
        meta = decode_meta(read_state(self.storage, handle.meta), dict((*handle.shared, *handle.private)), "the test")
        return {files.state.name: files for files in meta.states}

    def batch(self, keys: Sequence[Any]) -> KeyBatch:
        """Return distinct keys as a batch."""
        ordered = sorted(keys, key=lambda key: self.keys.key_group_of(key, GROUPS))
        groups = [self.keys.key_group_of(key, GROUPS) for key in ordered]
        return KeyBatch(pa.array(groups, pa.int32()), self.keys.to_columns(ordered))

    def put(self, backend: ArrowKeyedStateBackend, keys: range, value: int | None = None) -> None:
        """Write a value for keys, by default each key itself."""
        batch = self.batch(keys)
        values = batch.columns[0] if value is None else pa.array([value] * len(batch), pa.int64())
        backend.batch_state(VALUE).put(batch, values)

    def filled(self, keys: range, value: int | None = None) -> ArrowKeyedStateBackend:
        backend = self.open()
        self.put(backend, keys, value)
        return backend

    def values(self, backend: ArrowKeyedStateBackend, keys: range) -> list[int | None]:
        batch = self.batch(keys)
        found = dict(zip(self.listed(batch), backend.batch_state(VALUE).get(batch).to_pylist(), strict=True))
        return [found[key] for key in keys]

    def listed(self, batch: KeyBatch) -> list[Any]:
        return self.keys.from_columns(batch.columns)

    def files(self) -> set[str]:
        return set(self.storage.list_files(self.storage.base_uri))


class FailingStreams:
    """Streams of which the one with a number fails when its handle is asked for."""

    def __init__(self, streams: FsCheckpointStreamFactory, fails_at: int) -> None:
        self._streams = streams
        self._left = fails_at

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> Any:
        stream = self._streams.create_checkpoint_state_output_stream(scope)
        self._left -= 1
        return _FailingStream(stream) if self._left < 0 else stream

    def could_reuse_state_handle(self, handle: Any) -> bool:
        return self._streams.could_reuse_state_handle(handle)


class _FailingStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close_and_get_handle(self) -> Any:
        self._stream.close()
        raise StorageError("the disk is full")
