"""What the keyed state in a checkpoint says, read as a restore at any parallelism reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import OperatorId, operator_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.assignment import assign_states
from airflow_provider_statecheck.checkpoint.states.handles import (
    OperatorState,
    OperatorSubtaskState,
    key_group_range_of,
)
from airflow_provider_statecheck.checkpoint.states.matching import RestoreTarget
from airflow_provider_statecheck.state.backends import BACKENDS
from airflow_provider_statecheck.state.keyed.abstract_backend import StateEnvironment
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import decode_schemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document
from airflow_provider_statecheck.storage.views.state_files import read_state

Content = dict[Any, Any]
ReadBackend = Callable[[Any], Content]
"""Takes a restored keyed backend and gives what it has for each key."""


@dataclass(frozen=True, kw_only=True)
class StateContent:
    """Reads the keyed state of the functions of a stage."""

    storage: CheckpointStorage
    checkpoint: CheckpointRecord
    backend: str = "arrow"

    def read(self, uid: str, key: KeyField, parallelism: int, read: ReadBackend) -> Content:
        """Return the content of a function by key, and see that no two subtasks have the same key."""
        content: Content = {}
        for backend in self._backends(self._state(uid), key, parallelism):
            part = read(backend)
            assert not part.keys() & content.keys()
            content |= part
            backend.dispose()
        return content

    def _state(self, uid: str) -> OperatorState:
        states = load_document(self.storage, self.checkpoint).operator_states
        return next(state for state in states if state.uid == uid)

    def _backends(self, state: OperatorState, key: KeyField, parallelism: int) -> Iterator[Any]:
        groups, restored = state.max_parallelism, _assigned(state, parallelism)
        assert state.coordinator_state is not None
        schemas = decode_schemas(json.loads(read_state(self.storage, state.coordinator_state)))
        for subtask in range(parallelism):
            environment = StateEnvironment(
                storage=self.storage,
                now_ms=lambda: 0,
                schemas=schemas,
            )
            yield (
                BACKENDS.find(self.backend)
                .create_from_config({})
                .create_keyed_state_backend(
                    environment,
                    "job",
                    state.operator_id,
                    KeySerializer((key,)),
                    groups,
                    key_group_range_of(subtask, parallelism, groups),
                    restored=restored.get((state.operator_id, subtask), OperatorSubtaskState()).managed_keyed,
                )
            )


def _assigned(state: OperatorState, parallelism: int) -> dict[tuple[OperatorId, int], OperatorSubtaskState]:
    target = RestoreTarget(
        operator_id=operator_id_of(state.uid or ""),
        uid=state.uid,
        parallelism=parallelism,
        max_parallelism=state.max_parallelism,
        is_max_parallelism_configured=True,
    )
    return assign_states([target], [state]).subtask_states


def values_and_maps(value: Any, entries: Any) -> ReadBackend:
    """
    Return what reads a value and a map for each key.

    :param value: Descriptor of the value.
    :param entries: Descriptor of the map.
    """

    def read(backend: Any) -> Content:
        single, several = backend.get_partitioned_state(value), backend.get_partitioned_state(entries)
        content = {}
        for key in [*backend.get_keys(value.name)]:
            backend.set_current_key(key)
            content[key] = (single.value(), dict(several.entries()))
        return content

    return read
