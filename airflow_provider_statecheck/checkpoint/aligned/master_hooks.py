"""Hooks that save state outside of operators with a checkpoint: Flink's master hooks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.states.handles import MasterState
from airflow_provider_statecheck.exceptions import CoordinatorError

log = logging.getLogger(__name__)

Data = TypeVar("Data")


class MasterStateSerializer(Protocol[Data]):
    """Serializer for the data of a hook; it must read the data of its earlier versions."""

    @property
    def version(self) -> int:
        """Return the version that ``serialize`` writes."""
        ...

    def serialize(self, data: Data) -> bytes:
        """Return the data as bytes."""
        ...

    def deserialize(self, version: int, data: bytes) -> Data:
        """Return the data from the bytes of a version."""
        ...


class MasterTriggerRestoreHook(Protocol[Data]):
    """
    Hook that participates in every checkpoint in addition to the operators.

    Order of calls: ``restore_checkpoint`` or ``reset`` at the start, ``trigger_checkpoint`` once per checkpoint before the
    tasks are triggered, ``close`` once at the end.
    """

    @property
    def identifier(self) -> str:
        """Return the name of the hook's data, which must be stable across restarts."""
        ...

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, executor: Executor) -> Future[Data] | None:
        """
        Start to save the data.

        :param executor: The executor for slow work.
        :return: A future with the data, or ``None`` if the hook has no data.
        """
        ...

    def restore_checkpoint(self, checkpoint_id: int, data: Data | None) -> None:
        """Restore the data of a checkpoint, ``None`` if the hook had saved none."""
        ...

    def reset(self) -> None:
        """Reset to the initial state, because there is no checkpoint to restore."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...

    def create_checkpoint_data_serializer(self) -> MasterStateSerializer[Data] | None:
        """Return the serializer of the data, ``None`` if the hook never has data."""
        ...


class MasterHooks:
    """The hooks of one coordinator by identifier; hooks are called without a lock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._hooks: dict[str, MasterTriggerRestoreHook[Any]] = {}

    def add_master_hook(self, hook: MasterTriggerRestoreHook[Any]) -> bool:
        """
        Add a hook.

        :return: Whether it was added; a second hook with the same identifier is ignored.
        :raises InvalidConfigurationError: if the identifier is blank.
        """
        identifier: Any = hook.identifier
        require("identifier", identifier, lambda name: isinstance(name, str) and bool(name.strip()), "a name")
        with self._lock:
            if identifier in self._hooks:
                return False
            self._hooks[identifier] = hook
            return True

    def trigger(
        self, checkpoint_id: int, timestamp: datetime, executor: Executor, timeout: timedelta | None = None
    ) -> tuple[MasterState, ...]:
        """
        Trigger every hook and wait for its data.

        :param timeout: The longest wait for each hook, ``None`` for no limit.
        :return: The saved data.
        :raises CoordinatorError: if a hook fails, with its error as the cause.
        """
        hooks = self._snapshot()
        started: dict[str, Future[Any]] = {}
        try:
            for identifier, hook in hooks.items():
                future = _begin(identifier, hook, checkpoint_id, timestamp, executor)
                if future is not None:
                    started[identifier] = future
            saved = [_saved(identifier, hooks[identifier], future, timeout) for identifier, future in started.items()]
        except CoordinatorError:
            for future in started.values():
                future.cancel()
            raise
        return tuple(state for state in saved if state is not None)

    def restore(
        self, checkpoint_id: int, states: Sequence[MasterState], *, allow_non_restored_state: bool = False
    ) -> None:
        """
        Restore the data of every hook from a checkpoint.

        :param allow_non_restored_state: Whether to drop data that has no hook.
        :raises CoordinatorError: if data has no hook or cannot be read, or if a hook fails.
        """
        hooks = self._snapshot()
        _require_matched(hooks, states, allow_non_restored_state)
        # All data is deserialized before the first hook is restored, which avoids a partly restored job.
        data = {s.name: _deserialized(hooks[s.name], s) for s in states if s.name in hooks}
        for identifier, hook in hooks.items():
            try:
                hook.restore_checkpoint(checkpoint_id, data.get(identifier))
            except Exception as error:
                raise CoordinatorError(
                    f"Expected master hook {identifier!r} to restore checkpoint {checkpoint_id}, found {error!r}; "
                    f"correct the hook and start the job again."
                ) from error

    def reset(self) -> None:
        """
        Reset every hook.

        :raises CoordinatorError: if a hook fails.
        """
        for identifier, hook in self._snapshot().items():
            try:
                hook.reset()
            except Exception as error:
                raise CoordinatorError(
                    f"Expected master hook {identifier!r} to reset, found {error!r}; correct the hook and start again."
                ) from error

    def close(self) -> None:
        """Close every hook once; a failure is logged, and the other hooks are closed."""
        with self._lock:
            closing, self._hooks = self._hooks, {}
        for identifier, hook in closing.items():
            try:
                hook.close()
            except Exception:
                log.exception("Master hook %s could not be closed", identifier)

    def _snapshot(self) -> dict[str, MasterTriggerRestoreHook[Any]]:
        with self._lock:
            return dict(self._hooks)


def _begin(
    identifier: str,
    hook: MasterTriggerRestoreHook[Any],
    checkpoint_id: int,
    timestamp: datetime,
    executor: Executor,
) -> Future[Any] | None:
    try:
        return hook.trigger_checkpoint(checkpoint_id, timestamp, executor)
    except Exception as error:
        raise _trigger_failure(identifier, error) from error


def _saved(
    identifier: str, hook: MasterTriggerRestoreHook[Any], future: Future[Any], timeout: timedelta | None
) -> MasterState | None:
    try:
        data = future.result(None if timeout is None else timeout.total_seconds())
        return None if data is None else _serialized(identifier, hook, data)
    except CoordinatorError:
        raise
    except Exception as error:
        raise _trigger_failure(identifier, error) from error


def _serialized(identifier: str, hook: MasterTriggerRestoreHook[Any], data: Any) -> MasterState:
    serializer = hook.create_checkpoint_data_serializer()
    if serializer is None:
        raise CoordinatorError(
            f"Expected a serializer for the data of master hook {identifier!r}, found none; return one from "
            f"create_checkpoint_data_serializer, or no data."
        )
    return MasterState(name=identifier, version=serializer.version, data=_as_bytes(serializer.serialize(data)))


def _as_bytes(data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError(f"Expected the serializer to return bytes, found {type(data).__name__}.")
    return data


def _deserialized(hook: MasterTriggerRestoreHook[Any], state: MasterState) -> Any:
    try:
        serializer = hook.create_checkpoint_data_serializer()
        if serializer is not None:
            return serializer.deserialize(state.version, state.data)
    except Exception as error:
        raise CoordinatorError(
            f"Expected master hook {state.name!r} to read its data of version {state.version}, found {error!r}; use a "
            f"serializer that reads that version."
        ) from error
    raise CoordinatorError(
        f"Expected a serializer of master hook {state.name!r} for its data in the checkpoint, found none; return one from "
        f"create_checkpoint_data_serializer."
    )


def _require_matched(
    hooks: dict[str, MasterTriggerRestoreHook[Any]], states: Sequence[MasterState], allow_non_restored_state: bool
) -> None:
    names = [state.name for state in states]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise CoordinatorError(f"Expected data of each master hook once, found it twice for {', '.join(duplicates)}.")
    unmatched = sorted(set(names) - hooks.keys())
    if not unmatched:
        return
    if not allow_non_restored_state:
        raise CoordinatorError(
            f"Expected a master hook for all data of the checkpoint, found none for {', '.join(unmatched)}; add the hooks, "
            f"or set allow_non_restored_state."
        )
    log.warning("Dropped data of the checkpoint without a master hook: %s", ", ".join(unmatched))


def _trigger_failure(identifier: str, error: Exception) -> CoordinatorError:
    return CoordinatorError(
        f"Expected master hook {identifier!r} to save its data, found {error!r}; the checkpoint is aborted."
    )
