"""Master hooks and operator coordinators that the tests of the coordinator's parts are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import OperatorId, operator_id_of


class JsonSerializer:
    """Writes version 2 and reads versions 1 and 2."""

    version = 2

    def serialize(self, data: Any) -> bytes:
        return json.dumps(data).encode()

    def deserialize(self, version: int, data: bytes) -> Any:
        if version not in (1, 2):
            raise ValueError(f"no version {version}")
        return json.loads(data) if version == 2 else data.decode()


class RecordingHook:
    """A hook that saves what it holds and notes what it is told."""

    def __init__(self, identifier: Any, data: Any = None, serializer: Any = None, fails_at: str = "") -> None:
        self.identifier = identifier
        self.data = data
        self.serializer = serializer
        self.fails_at = fails_at
        self.told: list[tuple[Any, ...]] = []

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, executor: Executor) -> Future[Any] | None:
        self._hear("trigger", checkpoint_id, timestamp)
        return None if self.data is None else executor.submit(lambda: self.data)

    def restore_checkpoint(self, checkpoint_id: int, data: Any) -> None:
        self._hear("restore", checkpoint_id, data)

    def reset(self) -> None:
        self._hear("reset")

    def close(self) -> None:
        self._hear("close")

    def create_checkpoint_data_serializer(self) -> Any:
        return self.serializer

    def _hear(self, *what: Any) -> None:
        self.told.append(what)
        if what[0] == self.fails_at:
            raise RuntimeError(f"cannot {what[0]}")


def with_data(identifier: str, data: Any = "x") -> RecordingHook:
    return RecordingHook(identifier, data, JsonSerializer())


Answer = Callable[[Future[bytes | None]], None]


class RecordingCoordinator:
    """The coordinator of an operator; it notes what it is told."""

    def __init__(self, uid: str, answer: Answer = lambda result: result.set_result(b"x"), fails_at: str = "") -> None:
        self.operator_id: OperatorId = operator_id_of(uid)
        self.answer = answer
        self.fails_at = fails_at
        self.told: list[tuple[Any, ...]] = []

    def checkpoint(self, checkpoint_id: int, result: Future[bytes | None]) -> None:
        self._hear("checkpoint", checkpoint_id)
        self.answer(result)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._hear("complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._hear("aborted", checkpoint_id)

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        self._hear("reset", checkpoint_id, state)

    def abort_current_triggering(self) -> None:
        self._hear("give up")

    def _hear(self, *what: Any) -> None:
        self.told.append(what)
        if what[0] == self.fails_at:
            raise RuntimeError(f"cannot {what[0]}")
