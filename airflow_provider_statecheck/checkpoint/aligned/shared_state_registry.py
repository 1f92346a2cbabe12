"""
Reference counts of files shared by checkpoints: Flink's ``SharedStateRegistry``.

It is derived from the retained checkpoints, so that a coordinator that starts builds an equal one anew.
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
"""Begins the path of a file that is known by what is in it, whichever backend wrote it."""


@dataclass(frozen=True, slots=True)
class SharedStateKey:
    """Under which name the checkpoints of an operator share a file."""

    operator_id: OperatorId
    scope: str
    """The backend that wrote it, or the range of key groups if its name is a digest."""
    path: str

    @classmethod
    def of(cls, operator_id: OperatorId, handle: IncrementalKeyedStateHandle, path: str) -> SharedStateKey:
        """
        Return the key of one shared file of a handle.

        :param path: Its path in the backend, or ``sha256:`` and its digest.
        """
        if not path.startswith(CONTENT_PREFIX):
            return cls(operator_id, handle.backend_id, path)
        groups = handle.key_group_range
        return cls(operator_id, f"{groups.start}-{groups.end}", path)


@dataclass(frozen=True, slots=True)
class SharedStateEntry:
    """A shared file and who needs it."""

    handle: StreamStateHandle
    created_by: int
    """The checkpoint with which it came."""
    last_used: int
    """The newest checkpoint that names it."""
    is_confirmed: bool = False
    """Whether it is part of a completed checkpoint."""
    prevents_discard: bool = False
    """Whether the checkpoint with which it came must stay as long as the file is used."""


class SharedStateRegistry:
    """
    Knows every shared file and deletes it when no checkpoint needs it.

    A file is registered when the acknowledgement that names it arrives, whatever becomes of the checkpoint, and again
    for every retained checkpoint when a coordinator starts. Only what was registered here is known here: whoever calls
    :meth:`unregister_unused` has registered all checkpoints that are retained or pending. Files are deleted outside of
    the lock.

    :param discarder: Who deletes.
    :param executor: Where files are deleted; the calling thread if there is none.
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
        """Return the newest checkpoint that was restored without a claim: files of it and of older ones are not ours."""
        return self._highest_not_claimed_id

    @property
    def entries(self) -> Mapping[SharedStateKey, SharedStateEntry]:
        """Return a copy of what is registered."""
        with self._lock:
            return dict(self._entries)

    def register(
        self, key: SharedStateKey, handle: StreamStateHandle, checkpoint_id: int, *, prevents_discard: bool = False
    ) -> StreamStateHandle:
        """
        Note that a checkpoint names a file, and return the handle to use for it.

        :param handle: The file, or a placeholder for the one that is known under the key.
        :param prevents_discard: Whether the checkpoint that brought the file must stay as long as the file is used.
        :raises CoordinatorError: for a placeholder under an unknown key, and after the registry was closed.
        """
        with self._lock:
            self._require_open()
            old = self._entries.get(key)
            entry = _new_entry(key, handle, checkpoint_id) if old is None else _used(old, handle, checkpoint_id)
            entry = replace(entry, prevents_discard=entry.prevents_discard or prevents_discard)
            self._entries[key] = entry
            if old is not None and location_of(old.handle) != location_of(entry.handle):
                # A checkpoint that is still pending may name it, and be completed.
                self._replaced.append(old)
            surplus = self._unnamed([] if old is None or _is_placeholder(handle) else [handle])
        self._discard(surplus)
        return entry.handle

    def register_all(
        self, operator_states: Iterable[OperatorState], checkpoint_id: int
    ) -> dict[OperatorId, OperatorState]:
        """
        Register the shared files of a checkpoint, or of one operator's part in it.

        :return: The states with the handles to use.
        :raises CoordinatorError: as :meth:`register`.
        """
        return {s.operator_id: self._register_operator(s, checkpoint_id) for s in operator_states}

    def register_all_after_restored(self, checkpoint: CompletedCheckpoint, mode: RestoreMode) -> None:
        """
        Register the files of a checkpoint that is retained or was restored; all of them are confirmed.

        :param mode: Without a claim, neither its files nor those of older ones are ever deleted here.
        :raises CoordinatorError: as :meth:`register`.
        """
        self.register_all(checkpoint.operator_states.values(), checkpoint.checkpoint_id)
        self.checkpoint_completed(checkpoint.checkpoint_id)
        was = checkpoint.restored_properties or checkpoint.properties
        with self._lock:
            if was.snapshot_type.sharing is SharingStrategy.NO_SHARING:
                self._unshareable.add(checkpoint.checkpoint_id)
            if mode is not RestoreMode.CLAIM:
                self._highest_not_claimed_id = max(self._highest_not_claimed_id, checkpoint.checkpoint_id)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete: what it used last is confirmed."""
        with self._lock:
            for key, entry in self._entries.items():
                if entry.last_used == checkpoint_id:
                    self._entries[key] = replace(entry, is_confirmed=True)

    def unregister_unused(self, lowest_retained_id: int) -> frozenset[int]:
        """
        Forget, and delete where they are ours, the files that no retained checkpoint uses.

        :param lowest_retained_id: The oldest checkpoint that is retained.
        :return: The checkpoints that must not be deleted yet, because files in them are used.
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
        """Register nothing more; what is being deleted goes on."""
        with self._lock:
            self._is_closed = True

    def _all_entries(self) -> Iterator[SharedStateEntry]:
        yield from self._entries.values()
        yield from self._replaced

    def _unnamed(self, handles: Iterable[StreamStateHandle]) -> list[StreamStateHandle]:
        # One file may be registered under two names, for example of the backends before and after a change of parallelism.
        candidates = list(handles)
        named = {location_of(entry.handle) for entry in self._all_entries()} if candidates else set()
        return [handle for handle in candidates if location_of(handle) not in named]

    def _holds_its_checkpoint(self, entry: SharedStateEntry) -> bool:
        return entry.prevents_discard or entry.created_by in self._unshareable

    def _require_open(self) -> None:
        if self._is_closed:
            raise CoordinatorError(
                "Expected an open registry of shared state, found a closed one; the coordinator was shut down, register "
                "with the one that follows it."
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
            # It is an orphan now: no checkpoint names it, and the sweep of its epoch finds it.
            log.warning("A shared file that no checkpoint uses could not be deleted: %s", error)


def _new_entry(key: SharedStateKey, handle: StreamStateHandle, checkpoint_id: int) -> SharedStateEntry:
    if _is_placeholder(handle):
        raise CoordinatorError(
            f"Expected the bytes of shared state {key.path!r} of operator {key.operator_id}, found a placeholder and no "
            f"earlier upload; the task has to upload it with checkpoint {checkpoint_id}.",
            checkpoint_id=checkpoint_id,
        )
    return SharedStateEntry(handle, created_by=checkpoint_id, last_used=checkpoint_id)


def _used(entry: SharedStateEntry, handle: StreamStateHandle, checkpoint_id: int) -> SharedStateEntry:
    # What is in no completed checkpoint may be gone since a failover; the task that uploads again knows better.
    is_better = (
        not _is_placeholder(handle) and not entry.is_confirmed and location_of(handle) != location_of(entry.handle)
    )
    kept = handle if is_better else entry.handle
    return replace(entry, handle=kept, last_used=max(entry.last_used, checkpoint_id))


def _is_placeholder(handle: StreamStateHandle) -> bool:
    return isinstance(handle, PlaceholderStateHandle)
