"""Which files a backend begins with: those of its handles, of which it skips the blocks of other key groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    SegmentFileStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, StateMigrationError
from airflow_provider_statecheck.state.arrow.meta import SnapshotMeta, StateFiles, decode_meta
from airflow_provider_statecheck.state.arrow.part import Part, Parts
from airflow_provider_statecheck.state.serializers.serializer import Outcome
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact
from airflow_provider_statecheck.storage.views.state_files import read_state

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer

BACKEND_ID = "arrow"
"""Of all subtasks alike: after a change of parallelism two of them name the same file, and it must be one for the registry."""


def restored_files(
    handles: Sequence[KeyedStateHandle],
    storage: CheckpointStorage,
    keys: KeySerializer,
    number_of_key_groups: int,
    owned: KeyGroupRange,
) -> dict[str, StateFiles]:
    """
    Return the files of each state by its name; only the description in each handle is read.

    :raises CheckpointNotFoundError: if a description is missing.
    :raises CorruptStateError: if it was changed.
    :raises IncompatibleCheckpointError: if another backend, a newer version or one of other key groups wrote it.
    :raises StateMigrationError: if the keys are of another type.
    """
    states: dict[str, list[StateFiles]] = {}
    for handle in sorted(handles, key=lambda handle: handle.key_group_range.start):
        meta = _read(handle, storage)
        _require_fitting(meta, keys, number_of_key_groups)
        for files in meta.states:
            readable = owned.intersection(handle.key_group_range)
            states.setdefault(files.state.name, []).append(_within(files, readable))
    return {name: _joined(found) for name, found in states.items()}


def _read(handle: KeyedStateHandle, storage: CheckpointStorage) -> SnapshotMeta:
    if not isinstance(handle, IncrementalKeyedStateHandle) or handle.backend_id != BACKEND_ID or handle.meta is None:
        found = f"that of {handle.backend_id}" if isinstance(handle, IncrementalKeyedStateHandle) else "a full snapshot"
        raise IncompatibleCheckpointError(
            f"Expected state that the state backend arrow wrote, found {found}; restore it with the backend that wrote it."
        )
    stream = handle.meta
    is_file = isinstance(stream, FileStateHandle | SegmentFileStateHandle)
    where = redact(stream.uri) if is_file else f"checkpoint {handle.checkpoint_id}"  # type: ignore[union-attr]
    return decode_meta(read_state(storage, stream), dict((*handle.shared, *handle.private)), where)


def _require_fitting(meta: SnapshotMeta, keys: KeySerializer, number_of_key_groups: int) -> None:
    if meta.number_of_key_groups != number_of_key_groups:
        raise IncompatibleCheckpointError(
            f"Expected state of {number_of_key_groups} key groups, found one of {meta.number_of_key_groups}; the maximum "
            f"parallelism of an operator cannot be changed."
        )
    verdict = keys.resolve_compatibility(meta.key)
    if verdict.outcome is Outcome.INCOMPATIBLE:
        raise StateMigrationError(f"Expected keys that fit the restored state, but {verdict.reason}.")


def _within(files: StateFiles, owned: KeyGroupRange) -> StateFiles:
    runs = (tuple(filter(None, (part.within(owned) for part in parts))) for parts in files.runs)
    return StateFiles(files.state, tuple(parts for parts in runs if parts))


def _joined(found: Sequence[StateFiles]) -> StateFiles:
    """Return the files of several subtasks, whose key groups differ, with as few runs as one of them had."""
    levels = zip_longest(*(reversed(files.runs) for files in found), fillvalue=())
    runs = [_ordered(part for parts in level for part in parts) for level in levels]
    return StateFiles(found[0].state, tuple(reversed(runs)))


def _ordered(parts: Iterable[Part]) -> Parts:
    return tuple(sorted(parts, key=lambda part: int(part.key_groups[0])))
