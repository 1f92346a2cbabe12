"""State outside of all operators that is saved with a checkpoint: Flink's master hooks."""

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
    """How the data of a hook becomes bytes; a later version of it must read what an earlier one wrote."""

    @property
    def version(self) -> int:
        """Return the version that ``serialize`` writes."""
        ...

    def serialize(self, data: Data) -> bytes:
        """Return the data as bytes."""
        ...

    def deserialize(self, version: int, data: bytes) -> Data:
        """Return the data that some version wrote."""
        ...


class MasterTriggerRestoreHook(Protocol[Data]):
    """
    Something that takes part in every checkpoint beside the operators.

    Calls arrive in this order: ``restore_checkpoint`` or ``reset`` at the start, ``trigger_checkpoint`` once per checkpoint
    before any task is told, ``close`` once at the end.
    """

    @property
    def identifier(self) -> str:
        """Return the name under which its data is kept; it has to stay the same over restarts."""
        ...

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, executor: Executor) -> Future[Data] | None:
        """
        Begin to save the data.

        :param executor: Where work that takes time may be done.
        :return: Its data in due course, or ``None`` for none.
        """
        ...

    def restore_checkpoint(self, checkpoint_id: int, data: Data | None) -> None:
        """Go back to a checkpoint; without data if it had saved none."""
        ...

    def reset(self) -> None:
        """Go back to the beginning, for there is no checkpoint."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...

    def create_checkpoint_data_serializer(self) -> MasterStateSerializer[Data] | None:
        """Return how its data becomes bytes, ``None`` if it never has any."""
        ...


class MasterHooks:
    """The hooks of one coordinator, by identifier; none is called while a lock is held."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._hooks: dict[str, MasterTriggerRestoreHook[Any]] = {}

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Return the names of the hooks, in the order of their arrival."""
        return tuple(self._snapshot())

    def add_master_hook(self, hook: MasterTriggerRestoreHook[Any]) -> bool:
        """
        Add a hook.

        :return: Whether it was added; a second one of the same identifier is not.
        :raises InvalidConfigurationError: if its identifier is empty or blank.
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
        Have every hook save its data, and wait for them.

        :param timeout: How long to wait for each.
        :return: The data of those that have any.
        :raises CoordinatorError: if one of them fails; its cause is that failure.
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
        Give every hook the data that it saved in a checkpoint, or none.

        :param allow_non_restored_state: Whether data may be left that no hook asks for.
        :raises CoordinatorError: if data is left, cannot be read, or a hook fails.
        """
        hooks = self._snapshot()
        _require_matched(hooks, states, allow_non_restored_state)
        # All of it is read before anybody acts on any of it: a half restored job is worse than none.
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
        Tell every hook that there is no checkpoint.

        :raises CoordinatorError: if one of them fails.
        """
        for identifier, hook in self._snapshot().items():
            try:
                hook.reset()
            except Exception as error:
                raise CoordinatorError(
                    f"Expected master hook {identifier!r} to reset, found {error!r}; correct the hook and start again."
                ) from error

    def close(self) -> None:
        """Close every hook once; one that fails is logged and keeps none of the others open."""
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
        f"Expected a serializer of master hook {state.name!r}, of which the checkpoint has data, found none; return one "
        f"from create_checkpoint_data_serializer."
    )


def _require_matched(
    hooks: dict[str, MasterTriggerRestoreHook[Any]], states: Sequence[MasterState], allow_non_restored_state: bool
) -> None:
    names = [state.name for state in states]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CoordinatorError(f"Expected data of each master hook once, found it twice for {', '.join(twice)}.")
    unmatched = sorted(set(names) - hooks.keys())
    if not unmatched:
        return
    if not allow_non_restored_state:
        raise CoordinatorError(
            f"Expected a master hook for all data of the checkpoint, found none for {', '.join(unmatched)}; add the hooks, "
            f"or set allow_non_restored_state."
        )
    log.warning("Data of the checkpoint is dropped, for there is no master hook: %s", ", ".join(unmatched))


def _trigger_failure(identifier: str, error: Exception) -> CoordinatorError:
    return CoordinatorError(
        f"Expected master hook {identifier!r} to save its data, found {error!r}; the checkpoint is given up."
    )
