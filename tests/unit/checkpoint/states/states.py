"""State for tests."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
    key_group_ranges,
)
from airflow_provider_statecheck.checkpoint.states.matching import RestoreTarget

SPLIT, UNION, BROADCAST = DistributionMode


def file(name: str) -> FileStateHandle:
    return FileStateHandle(f"file:///base/{name}", 100)


def operator_handle(
    stream: str, mode: DistributionMode = SPLIT, /, **states: tuple[int, ...] | list[int]
) -> OperatorStateHandle:
    """Make a handle of named lists, given by the offsets of their elements."""
    named = tuple((name, OperatorStateMeta(tuple(offsets), mode)) for name, offsets in states.items())
    return OperatorStateHandle(named, file(stream))


def keyed_handle(key_groups: KeyGroupRange, stream: str = "keyed") -> KeyedStateHandle:
    """Make a handle of one file."""
    return KeyedStateHandle(
        backend_id="b", key_group_range=key_groups, checkpoint_id=3, shared=((stream, file(stream)),)
    )


def keyed_subtasks(parallelism: int, max_parallelism: int) -> dict[int, OperatorSubtaskState]:
    ranges = key_group_ranges(parallelism, max_parallelism)
    return {i: OperatorSubtaskState(managed_keyed=(keyed_handle(r, f"keyed-{i}"),)) for i, r in enumerate(ranges)}


def make_state(uid: str = "sum", **changes: Any) -> OperatorState:
    values: dict[str, Any] = {
        "operator_id": operator_id_of(uid or "generated"),
        "uid": uid,
        "name": uid.title(),
        "parallelism": 2,
        "max_parallelism": 128,
    }
    return OperatorState(**values | changes)


def make_full_state(uid: str = "sum", **changes: Any) -> OperatorState:
    parallelism, max_parallelism = changes.get("parallelism", 2), changes.get("max_parallelism", 128)
    return make_state(uid, subtask_states=keyed_subtasks(parallelism, max_parallelism), **changes)


def make_target(uid: str = "sum", **changes: Any) -> RestoreTarget:
    values: dict[str, Any] = {
        "operator_id": operator_id_of(uid or "generated"),
        "uid": uid,
        "parallelism": 2,
        "max_parallelism": 128,
    }
    return RestoreTarget(**values | changes)
