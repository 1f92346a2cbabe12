"""Streams of a checkpoint with something the matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.views.fs_location import FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.fs_state_stream import FsCheckpointStateOutputStream


class _Streams:
    """Streams of a checkpoint with something the matter."""

    def __init__(self, target: FsCheckpointStreamFactory) -> None:
        self.was_used = False
        self._target = target

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> FsCheckpointStateOutputStream:
        self.was_used = True
        return self._changed(self._target.create_checkpoint_state_output_stream(scope))

    def _changed(self, stream: FsCheckpointStateOutputStream) -> FsCheckpointStateOutputStream:
        raise NotImplementedError


class CancellingStreams(_Streams):
    """
    Streams during whose writing the snapshot is cancelled.

    :param method: Of the stream, before or after which that happens.
    :param is_after: Whether it is after it.
    """

    def __init__(
        self, target: FsCheckpointStreamFactory, cancel: Callable[[], None], method: str, *, is_after: bool
    ) -> None:
        super().__init__(target)
        self._cancel = cancel
        self._method = method
        self._is_after = is_after

    def _changed(self, stream: FsCheckpointStateOutputStream) -> FsCheckpointStateOutputStream:
        original = getattr(stream, self._method)

        def cancel_too(*arguments: Any) -> Any:
            if not self._is_after:
                self._cancel()
            found = original(*arguments)
            self._cancel()
            return found

        setattr(stream, self._method, cancel_too)
        return stream


class FailingStreams(_Streams):
    """Streams that cannot be closed."""

    def _changed(self, stream: FsCheckpointStateOutputStream) -> FsCheckpointStateOutputStream:
        def fail() -> Any:
            stream.close()
            raise StorageError("The disk is full.")

        stream.close_and_get_handle = fail  # type: ignore[method-assign]
        return stream
