"""A snapshot that writes all keyed state into one stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyedStateHandle,
    KeyGroupsStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import EMPTY_KEY_GROUP, KeyGroupRange
from airflow_provider_statecheck.exceptions import SnapshotCancelledError, StorageError
from airflow_provider_statecheck.state.backends.full_snapshot_format import encode_header, encode_section
from airflow_provider_statecheck.state.backends.state_rows import StateRows
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.state.snapshots import SnapshotResult
from airflow_provider_statecheck.storage.views.state_stream import CheckpointStateOutputStream


class Rows(Protocol):
    """Gives the rows of one state, as they were when the snapshot began."""

    def rows(self) -> StateRows:
        """Return the rows."""
        ...


class FullSnapshot:
    """
    Writes states as they were captured; it may run in another thread than the one that cancels it.

    :param key: What the keys are.
    :param number_of_key_groups: The maximum parallelism of the operator.
    :param key_group_range: The key groups of the subtask.
    :param states: What was captured.
    :param open_stream: Opens the stream.
    :param discard: Deletes what a stream left.
    """

    def __init__(
        self,
        *,
        key: SerializerSnapshot,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        states: Sequence[Rows],
        open_stream: Callable[[], CheckpointStateOutputStream],
        discard: Callable[[StreamStateHandle], None],
    ) -> None:
        self._key = key
        self._number_of_key_groups = number_of_key_groups
        self._key_group_range = key_group_range
        self._states = states
        self._open_stream = open_stream
        self._discard = discard
        self._lock = threading.Lock()
        self._stream: CheckpointStateOutputStream | None = None
        self._is_cancelled = False

    def run(self) -> SnapshotResult[KeyedStateHandle]:
        """
        Write the state; called once, perhaps in another thread.

        :raises StorageError: if the storage fails; then no file is left.
        :raises SnapshotCancelledError: if it was cancelled.
        """
        states = [rows for rows in (state.rows() for state in self._states) if rows.blocks]
        if not states:
            self._finish(None)
            return SnapshotResult.empty()
        stream = self._opened()
        try:
            offsets = tuple(self._write(stream, states))
            handle = stream.close_and_get_handle()
        except BaseException as error:
            stream.close()
            # What a closed stream says of itself is not what happened.
            if self._is_cancelled and isinstance(error, StorageError | ValueError):
                raise _cancelled() from error
            raise
        self._finish(handle)
        assert handle is not None  # noqa: S101 - the header was written
        return SnapshotResult(KeyGroupsStateHandle(self._key_group_range, offsets, handle), handle.state_size)

    def cancel(self) -> None:
        """End the writing and delete what it wrote; without effect once it is done."""
        with self._lock:
            self._is_cancelled = True
            stream = self._stream
        if stream is not None:
            stream.close()

    def _opened(self) -> CheckpointStateOutputStream:
        with self._lock:
            self._require_going_on()
            self._stream = self._open_stream()
            return self._stream

    def _write(self, stream: CheckpointStateOutputStream, states: Sequence[StateRows]) -> Iterator[int]:
        stream.write(encode_header(self._number_of_key_groups, self._key, states))
        blocks = [state.by_key_group() for state in states]
        for key_group in self._key_group_range:
            self._require_going_on()
            found = [[(index, batch) for batch in state.get(key_group, ())] for index, state in enumerate(blocks)]
            if not any(found):
                yield EMPTY_KEY_GROUP
                continue
            yield stream.get_pos()
            stream.write(encode_section(chain.from_iterable(found)))

    def _finish(self, handle: StreamStateHandle | None) -> None:
        if self._is_cancelled:
            if handle is not None:
                self._discard(handle)
            raise _cancelled()

    def _require_going_on(self) -> None:
        if self._is_cancelled:
            raise _cancelled()


def _cancelled() -> SnapshotCancelledError:
    return SnapshotCancelledError(
        "Expected a snapshot that goes on, found one that was cancelled; nothing of it is left."
    )
