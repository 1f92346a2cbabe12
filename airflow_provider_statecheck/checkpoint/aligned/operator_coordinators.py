"""State of operator coordinators, saved before their tasks are triggered."""

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
    """What a restore does with the coordinators of operators."""

    RESTORE_OR_RESET = "restore_or_reset"
    """The whole job goes back: to the checkpoint, or to the beginning if there is none."""
    RESTORE_IF_CHECKPOINT_PRESENT = "restore_if_checkpoint_present"
    """The job starts: there is nothing to go back from."""
    SKIP = "skip"
    """Only some tasks go back; their coordinators are told elsewhere."""


class OperatorCoordinatorContext(Protocol):
    """
    The coordinator of one operator, as the one of checkpoints sees it.

    ``checkpoint`` is followed by ``notify_checkpoint_complete``, ``notify_checkpoint_aborted`` or, if not all could begin,
    ``abort_current_triggering``.
    """

    @property
    def operator_id(self) -> OperatorId:
        """Return whose coordinator it is."""
        ...

    def checkpoint(self, checkpoint_id: int, result: Future[bytes | None]) -> None:
        """Save its state: set the result to it, to ``None`` for none, or to an error; now or later."""
        ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Take note that a checkpoint, and with it every earlier one, is complete."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Take note that a checkpoint will never be complete."""
        ...

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Go back to a checkpoint, or to the beginning for ``NO_CHECKPOINT``."""
        ...

    def abort_current_triggering(self) -> None:
        """Give up what ``checkpoint`` began, for the tasks will not be told of it."""
        ...


class OperatorCoordinators:
    """The coordinators of all operators that have one."""

    def __init__(self, contexts: Sequence[OperatorCoordinatorContext] = ()) -> None:
        self._contexts = tuple(contexts)

    @property
    def operator_ids(self) -> tuple[OperatorId, ...]:
        """Return the operators that have one."""
        return tuple(context.operator_id for context in self._contexts)

    def checkpoint(self, checkpoint_id: int, timeout: timedelta | None = None) -> dict[OperatorId, bytes | None]:
        """
        Have each of them save its state, and wait for them.

        :param timeout: How long to wait for each.
        :return: The state by operator, ``None`` for none.
        :raises CoordinatorError: if one of them fails; its cause is that failure, and all have given up.
        """
        try:
            return self._saved(checkpoint_id, timeout)
        except CoordinatorError:
            self.abort_current_triggering()
            raise

    def abort_current_triggering(self) -> None:
        """Have each of them give up what it began; one that fails is logged."""
        for context in self._contexts:
            _tolerate(context, "give up a checkpoint", context.abort_current_triggering)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """
        Tell all of them that a checkpoint is complete.

        :raises CoordinatorError: if one of them failed, when all have been told; its job has to be failed.
        """
        failures = []
        for context in self._contexts:
            try:
                context.notify_checkpoint_complete(checkpoint_id)
            except Exception as error:
                failures.append((context.operator_id, error))
        if failures:
            raise _failure(*failures[0], f"take note that checkpoint {checkpoint_id} is complete") from failures[0][1]

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell all of them that a checkpoint will never be complete; one that fails is logged."""
        for context in self._contexts:
            call = partial(context.notify_checkpoint_aborted, checkpoint_id)
            _tolerate(context, "take note of an abort", call)

    def restore(
        self,
        mode: OperatorCoordinatorRestoreMode,
        checkpoint_id: int = NO_CHECKPOINT,
        states: Mapping[OperatorId, bytes] | None = None,
    ) -> None:
        """
        Take them back to a checkpoint, or to the beginning if there is none and the mode says so.

        :param checkpoint_id: The restored checkpoint, ``NO_CHECKPOINT`` for none.
        :param states: What they saved in it, by operator.
        :raises CoordinatorError: if one of them fails.
        """
        only_with_checkpoint = mode is OperatorCoordinatorRestoreMode.RESTORE_IF_CHECKPOINT_PRESENT
        if mode is OperatorCoordinatorRestoreMode.SKIP or (only_with_checkpoint and checkpoint_id == NO_CHECKPOINT):
            return
        for context in self._contexts:
            try:
                context.reset_to_checkpoint(checkpoint_id, (states or {}).get(context.operator_id))
            except Exception as error:
                raise _failure(context.operator_id, error, "go back to a checkpoint") from error

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


def _tolerate(context: OperatorCoordinatorContext, what: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.warning("The coordinator of operator %s could not %s", context.operator_id, what, exc_info=True)


def _failure(operator_id: OperatorId, error: Exception, what: str) -> CoordinatorError:
    return CoordinatorError(
        f"Expected the coordinator of operator {operator_id} to {what}, found {error!r}.", operator_id=operator_id
    )
