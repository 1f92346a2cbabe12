"""Which subtask of a restored operator gets which handles of keyed state: those that hold key groups of its range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupsStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import (
    KeyGroupRange,
    KeyGroupRangeOffsets,
    key_group_ranges,
)

Handles = tuple[KeyedStateHandle, ...]


def intersection_of(handle: KeyedStateHandle, key_group_range: KeyGroupRange) -> KeyedStateHandle | None:
    """
    Return what a handle holds of a range, or ``None`` where that is nothing.

    Files of incremental state are not cut by key groups: such a handle comes back with all its files and the common range,
    and whoever reads it skips keys outside of that. What lies outside may be out of date: its subtask can have written since.
    """
    common = handle.key_group_range.intersection(key_group_range)
    if not common:
        return None
    if not isinstance(handle, KeyGroupsStateHandle):
        return replace(handle, key_group_range=common)
    offsets = KeyGroupRangeOffsets(handle.key_group_range, handle.offsets).get_intersection(common)
    return KeyGroupsStateHandle(common, offsets.offsets, handle.stream)


def redistribute_keyed(old: Sequence[Handles], new_parallelism: int, max_parallelism: int) -> tuple[Handles, ...]:
    """
    Return the handles of each subtask of the restored operator; with as many subtasks as before each gets its own.

    :param old: Those of each subtask that wrote them, in order.
    :raises InvalidConfigurationError: for a parallelism out of bounds, or offsets that do not fit a handle's range.
    """
    if len(old) == new_parallelism:
        return tuple(map(tuple, old))
    handles = [handle for subtask in old for handle in subtask]
    return tuple(_within(handles, own) for own in key_group_ranges(new_parallelism, max_parallelism))


def _within(handles: list[KeyedStateHandle], own: KeyGroupRange) -> Handles:
    parts = (intersection_of(handle, own) for handle in handles)
    return tuple(part for part in parts if part is not None)
