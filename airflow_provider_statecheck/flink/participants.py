"""Master hooks and operator coordinators, which save state outside of tasks with a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from threading import Lock
from typing import Any, Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import MasterState
from airflow_provider_statecheck.exceptions import CoordinatorError

log = logging.getLogger(__name__)

Data = TypeVar("Data")


class MasterStateSerializer(Protocol[Data]):
    """Serializer for the data of a hook; it must read the data of its earlier versions."""

    @property
    def version(self) -> int:
        """The version that ``serialize`` writes."""

    def serialize(self, data: Data) -> bytes:
        """Return the data as bytes."""

    def deserialize(self, version: int, data: bytes) -> Data:
        """Return the data from the bytes of a version."""


class MasterTriggerRestoreHook(Protocol[Data]):
    """
    Hook that participates in every checkpoint in addition to the operators.

    Order of calls: ``restore_checkpoint`` or ``reset`` at the start, ``trigger_checkpoint`` once per checkpoint before
    the tasks are triggered, ``close`` once at the end.
    """

    @property
    def identifier(self) -> str:
        """The name of the hook's data, which must be stable across restarts."""

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, executor: Executor) -> Future[Data] | None:
        """
        Start to save the data.

        :param executor: The executor for slow work.
        :return: A future with the data, or ``None`` if the hook has no data.
        """

    def restore_checkpoint(self, checkpoint_id: int, data: Data | None) -> None:
        """Restore the data of a checkpoint, ``None`` if the hook had saved none."""

    def reset(self) -> None:
        """Reset to the initial state, because there is no checkpoint to restore."""

    def close(self) -> None:
        """Release all resources."""

    def create_checkpoint_data_serializer(self) -> MasterStateSerializer[Data] | None:
        """Return the serializer of the data, ``None`` if the hook never has data."""


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
        hooks = self._current_hooks()
        started: dict[str, Future[Any]] = {}
        try:
            for identifier, hook in hooks.items():
                with _saving(identifier):
                    future = hook.trigger_checkpoint(checkpoint_id, timestamp, executor)
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
        hooks = self._current_hooks()
        _require_matched(hooks, states, allow_non_restored_state)
        # All data is deserialized before the first hook is restored, which avoids a partly restored job.
        data = {s.name: _deserialized(hooks[s.name], s) for s in states if s.name in hooks}
        for identifier, hook in hooks.items():
            with _reporting(
                f"master hook {identifier!r} to restore checkpoint {checkpoint_id}",
                "; correct the hook and start the job again",
            ):
                hook.restore_checkpoint(checkpoint_id, data.get(identifier))

    def reset(self) -> None:
        """
        Reset every hook.

        :raises CoordinatorError: if a hook fails.
        """
        for identifier, hook in self._current_hooks().items():
            with _reporting(f"master hook {identifier!r} to reset", "; correct the hook and start again"):
                hook.reset()

    def close(self) -> None:
        """Close every hook once; a failure is logged, and the other hooks are closed."""
        with self._lock:
            closing, self._hooks = self._hooks, {}
        for identifier, hook in closing.items():
            try:
                hook.close()
            except Exception:
                log.exception("Master hook %s could not be closed", identifier)

    def _current_hooks(self) -> dict[str, MasterTriggerRestoreHook[Any]]:
        with self._lock:
            return dict(self._hooks)


@contextmanager
def _reporting(expected: str, advice: str = "", operator_id: OperatorId | None = None) -> Iterator[None]:
    """Report any error of a hook or an operator coordinator in the block as a ``CoordinatorError``."""
    try:
        yield
    except Exception as error:
        raise CoordinatorError(f"Expected {expected}, found {error!r}{advice}.", operator_id=operator_id) from error


def _saving(identifier: str) -> AbstractContextManager[None]:
    return _reporting(f"master hook {identifier!r} to save its data", "; the checkpoint is aborted")


def _saved(
    identifier: str, hook: MasterTriggerRestoreHook[Any], future: Future[Any], timeout: timedelta | None
) -> MasterState | None:
    with _saving(identifier):
        data = future.result(None if timeout is None else timeout.total_seconds())
        if data is None:
            return None
        serializer = hook.create_checkpoint_data_serializer()
        if serializer is not None:
            return MasterState(name=identifier, version=serializer.version, data=_as_bytes(serializer.serialize(data)))
    raise CoordinatorError(
        f"Expected a serializer for the data of master hook {identifier!r}, found none; return one from "
        f"create_checkpoint_data_serializer, or no data."
    )


def _as_bytes(data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError(f"Expected the serializer to return bytes, found {type(data).__name__}.")
    return data


def _deserialized(hook: MasterTriggerRestoreHook[Any], state: MasterState) -> Any:
    with _reporting(
        f"master hook {state.name!r} to read its data of version {state.version}",
        "; use a serializer that reads that version",
    ):
        serializer = hook.create_checkpoint_data_serializer()
        if serializer is not None:
            return serializer.deserialize(state.version, state.data)
    raise CoordinatorError(
        f"Expected a serializer of master hook {state.name!r} for its data in the checkpoint, found none; return one "
        "from create_checkpoint_data_serializer."
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
            f"Expected a master hook for all data of the checkpoint, found none for {', '.join(unmatched)}; add the "
            "hooks, or set allow_non_restored_state."
        )
    log.warning("Dropped data of the checkpoint without a master hook: %s", ", ".join(unmatched))


NO_CHECKPOINT = -1


class OperatorCoordinatorRestoreMode(StrEnum):
    """How a restore treats operator coordinators."""

    RESTORE_OR_RESET = "restore_or_reset"
    """Restore the checkpoint, or reset to the initial state if there is none."""
    RESTORE_IF_CHECKPOINT_PRESENT = "restore_if_checkpoint_present"
    """Restore the checkpoint; without one, do nothing."""
    SKIP = "skip"
    """Do nothing, because only some tasks are restored and their coordinators are reset separately."""


class OperatorCoordinatorContext(Protocol):
    """
    The coordinator of one operator, as seen by the checkpoint coordinator.

    ``checkpoint`` is followed by ``notify_checkpoint_complete``, ``notify_checkpoint_aborted`` or, if the checkpoint
    could not be triggered, ``abort_current_triggering``.
    """

    @property
    def operator_id(self) -> OperatorId:
        """The operator."""

    def checkpoint(self, checkpoint_id: int, result: Future[bytes | None]) -> None:
        """Complete the future, now or later, with the state, ``None`` for no state, or an error."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle the completion of a checkpoint, which includes all earlier ones."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Handle the abort of a checkpoint."""

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Restore the state of a checkpoint, or the initial state for ``NO_CHECKPOINT``."""

    def abort_current_triggering(self) -> None:
        """Cancel the last ``checkpoint``, because its tasks are not triggered."""


class OperatorCoordinators:
    """The operator coordinators of a job."""

    def __init__(self, contexts: Sequence[OperatorCoordinatorContext] = ()) -> None:
        self._contexts = tuple(contexts)

    def checkpoint(self, checkpoint_id: int, timeout: timedelta | None = None) -> dict[OperatorId, bytes | None]:
        """
        Save the state of every coordinator and wait for the results.

        :param timeout: The longest wait for each coordinator, ``None`` for no limit.
        :return: The state by operator, ``None`` for an operator without state.
        :raises CoordinatorError: if a coordinator fails, with its error as the cause; all of them are canceled.
        """
        try:
            return self._saved(checkpoint_id, timeout)
        except CoordinatorError:
            self.abort_current_triggering()
            raise

    def abort_current_triggering(self) -> None:
        """Cancel the current checkpoint of every coordinator; failures are logged."""
        for context in self._contexts:
            _tolerate(context, "cancel a checkpoint", context.abort_current_triggering)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """
        Notify every coordinator of a completed checkpoint.

        :raises CoordinatorError: if a coordinator failed, after all have been called; the job must be failed.
        """
        failures = []
        for context in self._contexts:
            try:
                with _awaiting(context.operator_id, f"handle that checkpoint {checkpoint_id} is complete"):
                    context.notify_checkpoint_complete(checkpoint_id)
            except CoordinatorError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify every coordinator of an aborted checkpoint; failures are logged."""
        for context in self._contexts:
            call = partial(context.notify_checkpoint_aborted, checkpoint_id)
            _tolerate(context, "handle an abort", call)

    def restore(
        self,
        mode: OperatorCoordinatorRestoreMode,
        checkpoint_id: int = NO_CHECKPOINT,
        states: Mapping[OperatorId, bytes] | None = None,
    ) -> None:
        """
        Restore every coordinator to a checkpoint, or to its initial state, according to the mode.

        :param checkpoint_id: The restored checkpoint, ``NO_CHECKPOINT`` for none.
        :param states: The saved states by operator.
        :raises CoordinatorError: if a coordinator fails.
        """
        only_with_checkpoint = mode is OperatorCoordinatorRestoreMode.RESTORE_IF_CHECKPOINT_PRESENT
        if mode is OperatorCoordinatorRestoreMode.SKIP or (only_with_checkpoint and checkpoint_id == NO_CHECKPOINT):
            return
        for context in self._contexts:
            with _awaiting(context.operator_id, "restore a checkpoint"):
                context.reset_to_checkpoint(checkpoint_id, (states or {}).get(context.operator_id))

    def _saved(self, checkpoint_id: int, timeout: timedelta | None) -> dict[OperatorId, bytes | None]:
        started: dict[OperatorId, Future[bytes | None]] = {}
        for context in self._contexts:
            result: Future[bytes | None] = Future()
            started[context.operator_id] = result
            with _awaiting(context.operator_id, "save its state"):
                context.checkpoint(checkpoint_id, result)
        saved: dict[OperatorId, bytes | None] = {}
        for operator_id, future in started.items():
            with _awaiting(operator_id, "save its state"):
                saved[operator_id] = future.result(None if timeout is None else timeout.total_seconds())
        return saved


def _awaiting(operator_id: OperatorId, action: str) -> AbstractContextManager[None]:
    return _reporting(f"the coordinator of operator {operator_id} to {action}", operator_id=operator_id)


def _tolerate(context: OperatorCoordinatorContext, action: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.warning("The coordinator of operator %s could not %s", context.operator_id, action, exc_info=True)
