"""Operator coordinators, whose state is saved before the tasks are triggered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Protocol

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.exceptions import CoordinatorError

log = logging.getLogger(__name__)

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

    ``checkpoint`` is followed by ``notify_checkpoint_complete``, ``notify_checkpoint_aborted`` or, if the checkpoint could
    not be triggered, ``abort_current_triggering``.
    """

    @property
    def operator_id(self) -> OperatorId:
        """Return the operator."""
        ...

    def checkpoint(self, checkpoint_id: int, result: Future[bytes | None]) -> None:
        """Complete the future, now or later, with the state, ``None`` for no state, or an error."""
        ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle the completion of a checkpoint, which includes all earlier ones."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Handle the abort of a checkpoint."""
        ...

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Restore the state of a checkpoint, or the initial state for ``NO_CHECKPOINT``."""
        ...

    def abort_current_triggering(self) -> None:
        """Cancel the last ``checkpoint``, because its tasks are not triggered."""
        ...


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
                context.notify_checkpoint_complete(checkpoint_id)
            except Exception as error:
                failures.append((context.operator_id, error))
        if failures:
            raise _failure(*failures[0], f"handle that checkpoint {checkpoint_id} is complete") from failures[0][1]

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
            try:
                context.reset_to_checkpoint(checkpoint_id, (states or {}).get(context.operator_id))
            except Exception as error:
                raise _failure(context.operator_id, error, "restore a checkpoint") from error

    def _saved(self, checkpoint_id: int, timeout: timedelta | None) -> dict[OperatorId, bytes | None]:
        started: dict[OperatorId, Future[bytes | None]] = {}
        for context in self._contexts:
            started[context.operator_id] = _begin(context, checkpoint_id)
        return {operator_id: _result(operator_id, future, timeout) for operator_id, future in started.items()}


def _begin(context: OperatorCoordinatorContext, checkpoint_id: int) -> Future[bytes | None]:
    result: Future[bytes | None] = Future()
    try:
        context.checkpoint(checkpoint_id, result)
    except Exception as error:
        raise _failure(context.operator_id, error, "save its state") from error
    return result


def _result(operator_id: OperatorId, future: Future[bytes | None], timeout: timedelta | None) -> bytes | None:
    try:
        return future.result(None if timeout is None else timeout.total_seconds())
    except Exception as error:
        raise _failure(operator_id, error, "save its state") from error


def _tolerate(context: OperatorCoordinatorContext, action: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.warning("The coordinator of operator %s could not %s", context.operator_id, action, exc_info=True)


def _failure(operator_id: OperatorId, error: Exception, action: str) -> CoordinatorError:
    return CoordinatorError(
        f"Expected the coordinator of operator {operator_id} to {action}, found {error!r}.", operator_id=operator_id
    )
