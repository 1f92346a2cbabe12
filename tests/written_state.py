"""Checkpoints of one stage with keyed state, written with any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION
from airflow_provider_statecheck.checkpoint.states.assignment import redistribute_keyed
from airflow_provider_statecheck.checkpoint.states.handles import (
    OperatorState,
    OperatorSubtaskState,
    key_group_range_of,
)
from airflow_provider_statecheck.spark.stages.stage_state import coordinator_state
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.backends import ArrowStateBackend, FsStateBackend
from airflow_provider_statecheck.state.keyed.abstract_backend import StateEnvironment
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle, encode_metadata
from airflow_provider_statecheck.storage.views.checkpoint_storages import (
    FsCheckpointStorageAccess,
    FsCheckpointStreamFactory,
)
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

GROUPS = 16
STAGE, FUNCTION = "stage", "balance"
TEXT_KEY = KeySerializer((KeyField("account", pa.string()),))
SMALL = ArrowStateSettings(block_rows=2, part_bytes=2048, memtable_bytes=1, cache_bytes=4096)
BACKENDS: dict[str, Callable[[], Any]] = {"fs": FsStateBackend, "arrow": lambda: ArrowStateBackend(SMALL)}
"""A backend whose snapshots have all state, and one whose snapshots reference files of earlier ones."""
EACH_BACKEND = ["arrow", pytest.param("fs", marks=pytest.mark.soak)]
"""Parameters of tests that only read: the handles of both differ in nothing but the owners of their files."""


def file_streams(storage: CheckpointStorage, directory: str = "", *, epoch: int = 1) -> FsCheckpointStreamFactory:
    """Return streams that put all state into files of a directory, by default one below the root of the storage."""
    directory = directory or f"{storage.base_uri}/state"
    writing = StateWriting(epoch=epoch, inline_threshold=0)
    return FsCheckpointStreamFactory(storage=storage, exclusive=directory, shared=directory, writing=writing)


@dataclass
class StatefulJob:
    """One function whose subtasks are opened, changed and saved again and again."""

    storage: CheckpointStorage
    backend: Any
    descriptors: Sequence[Any]
    keys: KeySerializer = TEXT_KEY
    job_name: str = "job"
    stage: str = STAGE
    function: str = FUNCTION
    max_parallelism: int = GROUPS
    now_ms: int = 1_000_000
    taken: int = 0
    states: list[Any] = field(default_factory=list)

    @property
    def uid(self) -> str:
        return f"{self.stage}/{self.function}"

    def open(self, parallelism: int, operator: OperatorState | None = None) -> None:
        """Begin anew, or with the state of a checkpoint."""
        found = {} if operator is None else operator.subtask_states
        old = [
            found.get(i, OperatorSubtaskState()).managed_keyed for i in range(operator.parallelism if operator else 0)
        ]
        dealt = redistribute_keyed(old, parallelism, self.max_parallelism) if old else [()] * parallelism
        self.close()
        self.states = [self._opened(i, parallelism, handles) for i, handles in enumerate(dealt)]

    def state(self, key: Any, name: str, namespace: str | None = None) -> Any:
        """Return a state with a key as the current one."""
        group = self.keys.key_group_of(key, self.max_parallelism)
        (backend,) = (each for each in self.states if group in each.key_group_range)
        backend.set_current_key(key)
        descriptor = next(each for each in self.descriptors if each.name == name)
        return backend.get_partitioned_state(descriptor, *(() if namespace is None else (namespace,)))

    def save(self, **values: Any) -> str:
        """Take a checkpoint and return its pointer."""
        return self.publish(self.operator(), **values)

    def operator(self) -> OperatorState:
        """Save the state of all subtasks."""
        self.taken += 1
        attempt = AttemptRef(job_id=job_id_of(self.job_name), operator_id=operator_id_of(self.stage), epoch=1)
        view = FsCheckpointStorageAccess(self.storage, attempt, writing=StateWriting(epoch=1, inline_threshold=0))
        streams = view.resolve_checkpoint_storage_location(self.taken, DEFAULT_LOCATION)
        subtasks = {}
        for index, backend in enumerate(self.states):
            snapshot = backend.snapshot(self.taken, self.now_ms, streams)
            handle = snapshot.run().handle
            if handle is not None:
                subtasks[index] = OperatorSubtaskState(managed_keyed=(handle,))
            backend.notify_checkpoint_complete(self.taken)
        return OperatorState(
            operator_id=operator_id_of(self.uid),
            uid=self.uid,
            parallelism=len(self.states),
            max_parallelism=self.max_parallelism,
            subtask_states=subtasks,
            coordinator_state=coordinator_state(encode_schemas(self.schemas())),
        )

    def schemas(self) -> OperatorSchemas:
        return OperatorSchemas(
            key=self.keys.snapshot(), keyed=tuple(RegisteredState.of(each).schema() for each in self.descriptors)
        )

    def publish(self, *operators: OperatorState, **values: Any) -> str:
        """Write metadata and return the pointer."""
        document = CheckpointDocument(
            job_id=job_id_of(self.job_name),
            job_name=self.job_name,
            operator_id=operator_id_of(self.stage),
            uid=self.stage,
            checkpoint_id=self.taken,
            epoch=1,
            generation=1,
            snapshots=(),
            state=InlineStateHandle(value={"stage": {"checkpoint": self.taken, "now_ms": self.now_ms} | values}),
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            operator_states=operators,
        )
        pointer = f"{self._job}/chk-{self.taken}"
        uri = f"{pointer}/_metadata"
        self.storage.write_bytes(uri, encode_metadata(document, uri=uri), overwrite=True)
        return pointer

    def close(self) -> None:
        for each in self.states:
            each.dispose()
        self.states = []

    @property
    def _job(self) -> str:
        return f"{self.storage.base_uri}/{job_id_of(self.job_name)}"

    def _opened(self, index: int, parallelism: int, handles: Iterable[Any]) -> Any:
        environment = StateEnvironment(
            storage=self.storage,
            now_ms=lambda: self.now_ms,
        )
        owned = key_group_range_of(index, parallelism, self.max_parallelism)
        opened = self.backend.create_keyed_state_backend(
            environment,
            job_id_of(self.job_name),
            self.uid,
            self.keys,
            self.max_parallelism,
            owned,
            restored=tuple(handles),
        )
        for descriptor in self.descriptors:
            opened.get_partitioned_state(descriptor)
        return opened
