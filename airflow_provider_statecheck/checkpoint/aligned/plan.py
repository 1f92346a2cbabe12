"""Participants of an aligned checkpoint: Flink's ``CheckpointPlan``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, Protocol

from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.exceptions import CoordinatorError

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.options import CheckpointOptions


class ExecutionStatus(StrEnum):
    """Where the task of an operator stands."""

    NOT_STARTED = "not_started"
    """Its turn has not come: something upstream still runs."""
    STARTING = "starting"
    """It was started and has not restored its state yet."""
    RUNNING = "running"
    FINISHED = "finished"
    """It came to its end."""
    CANCELED = "canceled"
    FAILED = "failed"


class ExecutionTask(Protocol):
    """
    The task that runs one operator, as the coordinator sees it.

    What ``trigger_checkpoint`` asks for is answered by an acknowledgement or a decline; each notification may be lost, so
    a later one stands for it.
    """

    @property
    def operator_id(self) -> OperatorId:
        """Return which operator it runs."""
        ...

    @property
    def uid(self) -> str:
        """Return the operator's uid."""
        ...

    @property
    def name(self) -> str:
        """Return the operator's name, for people."""
        ...

    @property
    def parallelism(self) -> int:
        """Return how many subtasks it has."""
        ...

    @property
    def max_parallelism(self) -> int:
        """Return how many key groups its state has."""
        ...

    @property
    def attempt_id(self) -> str:
        """Return which try it is; no other has the same."""
        ...

    @property
    def status(self) -> ExecutionStatus:
        """Return where it stands now."""
        ...

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, options: CheckpointOptions) -> None:
        """Ask it to take its part of a checkpoint; being asked twice is being asked once."""
        ...

    def notify_checkpoint_complete(self, checkpoint_id: int, timestamp: datetime, last_subsumed_id: int) -> None:
        """Say that a checkpoint is complete, and which one was discarded for it, -1 for none."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed_id: int, timestamp: datetime) -> None:
        """Say that a checkpoint will never be complete, and which one is the latest, -1 for none."""
        ...

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Say that nothing restores from a checkpoint any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Who takes part in one checkpoint, as things stood when it was triggered."""

    tasks_to_trigger: tuple[ExecutionTask, ...]
    """Those that are told to begin."""
    tasks_to_wait_for: tuple[ExecutionTask, ...]
    """Those that have to acknowledge; never empty."""
    tasks_to_commit_to: tuple[ExecutionTask, ...]
    """Those that are told how it ended."""
    finished_tasks: tuple[ExecutionTask, ...] = ()
    """Those that ended before and count as acknowledged."""
    fully_finished_operators: frozenset[OperatorId] = frozenset()
    """Operators of which every task has ended; the checkpoint says so."""
    not_started: tuple[ExecutionTask, ...] = ()
    """Those whose turn has not come; they keep the state they were restored with."""


class CheckpointPlanCalculator:
    """
    Makes the plan of each checkpoint from where the tasks stand.

    :param tasks_to_trigger: Tasks that are told to begin, as long as they run.
    :param tasks_to_wait_for: Tasks without which there is no checkpoint.
    :param tasks_to_commit_to: Tasks that are told how it ended.
    :param allow_after_tasks_finished: Whether a checkpoint may be taken when some tasks have come to their end.
    """

    def __init__(
        self,
        tasks_to_trigger: Sequence[ExecutionTask],
        tasks_to_wait_for: Sequence[ExecutionTask],
        tasks_to_commit_to: Sequence[ExecutionTask],
        allow_after_tasks_finished: bool = True,
    ) -> None:
        self._to_trigger = tuple(tasks_to_trigger)
        self._to_wait_for = tuple(tasks_to_wait_for)
        self._to_commit_to = tuple(tasks_to_commit_to)
        self._allow_after_tasks_finished = allow_after_tasks_finished

    def calculate(self) -> CheckpointPlan:
        """
        Return who takes part in a checkpoint that is triggered now.

        :raises CheckpointException: ``NOT_ALL_REQUIRED_TASKS_RUNNING`` if a task is in no state to take part, or none runs.
        """
        # Each task is asked once: one that ends in between must not be in two parts of the plan.
        stand = {_key(task): task.status for task in (*self._to_trigger, *self._to_wait_for, *self._to_commit_to)}
        self._require_ready(stand)
        plan = CheckpointPlan(
            tasks_to_trigger=self._triggered(stand),
            tasks_to_wait_for=_of(self._to_wait_for, stand, ExecutionStatus.RUNNING),
            tasks_to_commit_to=_of(self._to_commit_to, stand, ExecutionStatus.RUNNING),
            finished_tasks=_of(self._to_wait_for, stand, ExecutionStatus.FINISHED),
            fully_finished_operators=self._fully_finished(stand),
            not_started=_of(self._to_wait_for, stand, ExecutionStatus.NOT_STARTED),
        )
        if not plan.tasks_to_wait_for:
            _refuse(
                "Expected a running task that takes part in the checkpoint, found none; there is nothing to checkpoint."
            )
        return plan

    def _require_ready(self, stand: dict[_Key, ExecutionStatus]) -> None:
        allowed = {ExecutionStatus.RUNNING, ExecutionStatus.NOT_STARTED}
        if self._allow_after_tasks_finished:
            allowed.add(ExecutionStatus.FINISHED)
        for task in (*self._to_trigger, *self._to_wait_for):
            status = stand[_key(task)]
            if status not in allowed:
                _refuse(
                    f"Expected the task of operator {task.uid!r} to be {' or '.join(sorted(allowed))}, found attempt "
                    f"{task.attempt_id!r} {status.value}; try again when it runs."
                )

    def _triggered(self, stand: dict[_Key, ExecutionStatus]) -> tuple[ExecutionTask, ...]:
        running = _of(self._to_trigger, stand, ExecutionStatus.RUNNING)
        if len(running) == len(_distinct(self._to_trigger)):
            return running
        # A task that is not there passes nothing on, so those behind it are told as well.
        return _distinct((*running, *_of(self._to_wait_for, stand, ExecutionStatus.RUNNING)))

    def _fully_finished(self, stand: dict[_Key, ExecutionStatus]) -> frozenset[OperatorId]:
        unfinished = {t.operator_id for t in self._to_wait_for if stand[_key(t)] is not ExecutionStatus.FINISHED}
        return frozenset(task.operator_id for task in self._to_wait_for) - unfinished


_Key = tuple[OperatorId, str]


def _key(task: ExecutionTask) -> _Key:
    return task.operator_id, task.attempt_id


def _distinct(tasks: Iterable[ExecutionTask]) -> tuple[ExecutionTask, ...]:
    return tuple({_key(task): task for task in tasks}.values())


def _of(
    tasks: Iterable[ExecutionTask], stand: dict[_Key, ExecutionStatus], status: ExecutionStatus
) -> tuple[ExecutionTask, ...]:
    return _distinct(task for task in tasks if stand[_key(task)] is status)


def _refuse(message: str) -> NoReturn:
    raise CheckpointException(CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, CoordinatorError(message))
