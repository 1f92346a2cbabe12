"""Snapshots of operator state for tests, and what they restore to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import OperatorStateHandle, OperatorSubtaskState
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend, read_restored
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory

Handles = tuple[OperatorStateHandle, ...]


def numbers(name: str = "numbers", element_type: Any = int) -> ListStateDescriptor[Any]:
    return ListStateDescriptor(name, element_type)


def rates(name: str = "rates", key_type: Any = str, value_type: Any = float) -> MapStateDescriptor[Any]:
    return MapStateDescriptor(name, key_type, value_type)


def saved(backend: DefaultOperatorStateBackend, streams: CheckpointStreamFactory) -> Handles:
    """Return the handles of a snapshot: one, or none."""
    handle = backend.snapshot(1, 0, streams).run().handle
    return () if handle is None else (handle,)


def saved_subtask(backend: DefaultOperatorStateBackend, streams: CheckpointStreamFactory) -> OperatorSubtaskState:
    return OperatorSubtaskState(managed_operator=saved(backend, streams))


def restored(
    storage: CheckpointStorage, handles: Sequence[OperatorStateHandle], subtask: int = 0
) -> DefaultOperatorStateBackend:
    return DefaultOperatorStateBackend(read_restored(storage, handles), subtask=subtask)
