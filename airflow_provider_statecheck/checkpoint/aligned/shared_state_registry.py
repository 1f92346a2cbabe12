"""
Registry of files shared by checkpoints: Flink's ``SharedStateRegistry``.

A new coordinator rebuilds its content from the retained checkpoints.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import (
    CompletedCheckpoint,
    StateDiscarder,
    location_of,
)
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import RestoreMode, SharingStrategy
from airflow_provider_statecheck.checkpoint.states.handles import (
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
    PlaceholderStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import CoordinatorError, StateCheckError

log = logging.getLogger(__name__)

CONTENT_PREFIX = "sha256:"
"""The prefix of the path of a content-addressed file."""


@dataclass(frozen=True, slots=True)
class SharedStateKey:
    """The key under which the checkpoints of an operator share a file."""

    operator_id: OperatorId
    scope: str
    """The id of the backend that wrote the file, or the range of key groups if the path is a digest."""
    path: str

    @classmethod
    def of(cls, operator_id: OperatorId, handle: IncrementalKeyedStateHandle, path: str) -> SharedStateKey:
        """
        Return the key of one shared file of a handle.

        :param path: The path in the backend, or ``sha256:`` and the digest.
        """
        if not path.startswith(CONTENT_PREFIX):
            return cls(operator_id, handle.backend_id, path)
        groups = handle.key_group_range
        return cls(operator_id, f"{groups.start}-{groups.end}", path)


@dataclass(frozen=True, slots=True)
class SharedStateEntry:
    """A shared file and the checkpoints that use it."""

    handle: StreamStateHandle
    created_by: int
    """The id of the checkpoint that created it."""
    last_used: int
    """The id of the newest checkpoint that refers to it."""
    is_confirmed: bool = False
    """Whether a completed checkpoint contains it."""
    prevents_discard: bool = False
    """Whether the checkpoint that created it must not be deleted while the file is in use."""


class SharedStateRegistry:
    """
    Tracks shared files and deletes them after their last use.

    Files are registered when an acknowledgement arrives, and for every retained checkpoint when a coordinator starts.
    Before a call of :meth:`unregister_unused`, all retained and pending checkpoints must be registered. Files are deleted
    without the lock.

    :param discarder: The deleter of files.
    :param executor: The executor that deletes files, ``None`` for the calling thread.
    """

    def __init__(self, discarder: StateDiscarder, executor: Executor | None = None) -> None:
        self._discarder = discarder
        self._executor = executor
        self._lock = threading.Lock()
        self._entries: dict[SharedStateKey, SharedStateEntry] = {}
        self._replaced: list[SharedStateEntry] = []
        self._unshareable: set[int] = set()
        self._highest_not_claimed_id = 0
        self._is_closed = False

    @property
    def highest_not_claimed_id(self) -> int:
        """Return the id of the newest checkpoint restored without a claim; files up to it are never deleted."""
        return self._highest_not_claimed_id

    @property
    def entries(self) -> Mapping[SharedStateKey, SharedStateEntry]:
        """Return a copy of the registered entries."""
        with self._lock:
            return dict(self._entries)

    def register(
        self, key: SharedStateKey, handle: StreamStateHandle, checkpoint_id: int, *, prevents_discard: bool = False
    ) -> StreamStateHandle:
        """
        Register the use of a file by a checkpoint and return the handle to use.

        :param key: The key of the file.
        :param handle: The file, or a placeholder for the file already registered with the key.
        :param checkpoint_id: The checkpoint that refers to the file.
        :param prevents_discard: Whether the checkpoint that created the file must not be deleted while it is in use.
        :raises CoordinatorError: if a placeholder has an unknown key, or the registry was closed.
        """
        with self._lock:
            self._require_open()
            old = self._entries.get(key)
            entry = _new_entry(key, handle, checkpoint_id) if old is None else _used(old, handle, checkpoint_id)
            entry = replace(entry, prevents_discard=entry.prevents_discard or prevents_discard)
            self._entries[key] = entry
            if old is not None and location_of(old.handle) != location_of(entry.handle):
                # A pending checkpoint may refer to the replaced file and still be completed.
                self._replaced.append(old)
            surplus = self._unnamed([] if old is None or _is_placeholder(handle) else [handle])
        self._discard(surplus)
        return entry.handle

    def register_all(
        self, operator_states: Iterable[OperatorState], checkpoint_id: int
    ) -> dict[OperatorId, OperatorState]:
        """
        Register the shared files of operator states.

        :return: The states with the handles to use, by operator.
        :raises CoordinatorError: see :meth:`register`.
        """
        return {s.operator_id: self._register_operator(s, checkpoint_id) for s in operator_states}

    def register_all_after_restored(self, checkpoint: CompletedCheckpoint, mode: RestoreMode) -> None:
        """
        Register the files of a retained or restored checkpoint as confirmed.

        :param mode: The claim mode; without a claim, files of this checkpoint and of earlier ones are never deleted.
        :raises CoordinatorError: see :meth:`register`.
        """
        self.register_all(checkpoint.operator_states.values(), checkpoint.checkpoint_id)
        self.checkpoint_completed(checkpoint.checkpoint_id)
        original = checkpoint.restored_properties or checkpoint.properties
        with self._lock:
            if original.snapshot_type.sharing is SharingStrategy.NO_SHARING:
                self._unshareable.add(checkpoint.checkpoint_id)
            if mode is not RestoreMode.CLAIM:
                self._highest_not_claimed_id = max(self._highest_not_claimed_id, checkpoint.checkpoint_id)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Confirm the files that a completed checkpoint was the last to use."""
        with self._lock:
            for key, entry in self._entries.items():
                if entry.last_used == checkpoint_id:
                    self._entries[key] = replace(entry, is_confirmed=True)

    def unregister_unused(self, lowest_retained_id: int) -> frozenset[int]:
        """
        Unregister files that no retained checkpoint uses, and delete those that the job owns.

        :param lowest_retained_id: The id of the oldest retained checkpoint.
        :return: The ids of checkpoints that must not be deleted yet, because their files are in use.
        """
        with self._lock:
            unused = [e for e in self._all_entries() if e.last_used < lowest_retained_id]
            self._entries = {k: e for k, e in self._entries.items() if e.last_used >= lowest_retained_id}
            self._replaced = [e for e in self._replaced if e.last_used >= lowest_retained_id]
            needed = frozenset(e.created_by for e in self._all_entries() if self._holds_its_checkpoint(e))
            ours = self._unnamed(e.handle for e in unused if e.created_by > self._highest_not_claimed_id)
        self._discard(ours)
        return needed

    def close(self) -> None:
        """Reject further registrations; deletes in progress continue."""
        with self._lock:
            self._is_closed = True

    def _all_entries(self) -> Iterator[SharedStateEntry]:
        yield from self._entries.values()
        yield from self._replaced

    def _unnamed(self, handles: Iterable[StreamStateHandle]) -> list[StreamStateHandle]:
        # A file may have two keys, for example of the backends before and after a change of the parallelism.
        candidates = list(handles)
        named = {location_of(entry.handle) for entry in self._all_entries()} if candidates else set()
        return [handle for handle in candidates if location_of(handle) not in named]

    def _holds_its_checkpoint(self, entry: SharedStateEntry) -> bool:
        return entry.prevents_discard or entry.created_by in self._unshareable

    def _require_open(self) -> None:
        if self._is_closed:
            raise CoordinatorError(
                "Expected an open registry of shared state, found a closed one; the coordinator was shut down, create a new "
                "one."
            )

    def _register_operator(self, state: OperatorState, checkpoint_id: int) -> OperatorState:
        subtasks = {
            index: self._register_subtask(state.operator_id, subtask, checkpoint_id)
            for index, subtask in state.subtask_states.items()
        }
        return replace(state, subtask_states=subtasks)

    def _register_subtask(
        self, operator_id: OperatorId, state: OperatorSubtaskState, checkpoint_id: int
    ) -> OperatorSubtaskState:
        def registered(handles: tuple[KeyedStateHandle, ...]) -> tuple[KeyedStateHandle, ...]:
            return tuple(self._register_keyed(operator_id, handle, checkpoint_id) for handle in handles)

        return replace(state, managed_keyed=registered(state.managed_keyed), raw_keyed=registered(state.raw_keyed))

    def _register_keyed(
        self, operator_id: OperatorId, handle: KeyedStateHandle, checkpoint_id: int
    ) -> KeyedStateHandle:
        if not isinstance(handle, IncrementalKeyedStateHandle):
            return handle
        shared = tuple(
            (path, self.register(SharedStateKey.of(operator_id, handle, path), stream, checkpoint_id))
            for path, stream in handle.shared
        )
        return replace(handle, shared=shared)

    def _discard(self, handles: Iterable[StreamStateHandle]) -> None:
        for handle in handles:
            if self._executor is None:
                self._discard_one(handle)
            else:
                self._executor.submit(self._discard_one, handle)

    def _discard_one(self, handle: StreamStateHandle) -> None:
        try:
            self._discarder.discard_state(handle)
        except StateCheckError as error:
            log.warning("An unused shared file could not be deleted and is left to garbage collection: %s", error)


def _new_entry(key: SharedStateKey, handle: StreamStateHandle, checkpoint_id: int) -> SharedStateEntry:
    if _is_placeholder(handle):
        raise CoordinatorError(
            f"Expected the bytes of shared state {key.path!r} of operator {key.operator_id}, found a placeholder and no "
            f"earlier upload; upload the state with checkpoint {checkpoint_id}.",
            checkpoint_id=checkpoint_id,
        )
    return SharedStateEntry(handle, created_by=checkpoint_id, last_used=checkpoint_id)


def _used(entry: SharedStateEntry, handle: StreamStateHandle, checkpoint_id: int) -> SharedStateEntry:
    # An unconfirmed file may have been deleted in a failover; a new upload replaces it.
    is_replacement = (
        not _is_placeholder(handle) and not entry.is_confirmed and location_of(handle) != location_of(entry.handle)
    )
    current = handle if is_replacement else entry.handle
    return replace(entry, handle=current, last_used=max(entry.last_used, checkpoint_id))


def _is_placeholder(handle: StreamStateHandle) -> bool:
    return isinstance(handle, PlaceholderStateHandle)
