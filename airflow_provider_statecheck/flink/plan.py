"""Tasks of a checkpoint by their roles, from their statuses: Flink's ``CheckpointPlan``."""

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
    from airflow_provider_statecheck.checkpoint.properties import CheckpointOptions


class ExecutionStatus(StrEnum):
    """The status of an operator's task."""

    NOT_STARTED = "not_started"
    """The task waits for an upstream task."""
    STARTING = "starting"
    """The task was started and has not restored its state yet."""
    RUNNING = "running"
    FINISHED = "finished"
    """The task ended successfully."""
    CANCELED = "canceled"
    FAILED = "failed"


class ExecutionTask(Protocol):
    """
    The task of one operator, as seen by the coordinator.

    A task answers ``trigger_checkpoint`` with an acknowledgement or a decline. Notifications may be lost; a later
    completion includes the earlier ones.
    """

    @property
    def operator_id(self) -> OperatorId:
        """The id of the operator."""

    @property
    def uid(self) -> str:
        """The uid of the operator."""

    @property
    def name(self) -> str:
        """The display name of the operator."""

    @property
    def parallelism(self) -> int:
        """The number of subtasks."""

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""

    @property
    def attempt_id(self) -> str:
        """The unique id of the task's attempt."""

    @property
    def status(self) -> ExecutionStatus:
        """The current status."""

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, options: CheckpointOptions) -> None:
        """Request the state of the task; a repeated call has no effect."""

    def notify_checkpoint_complete(self, checkpoint_id: int, timestamp: datetime, last_subsumed_id: int) -> None:
        """Handle a completed checkpoint and the id of the one discarded for it, -1 for none."""

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed_id: int, timestamp: datetime) -> None:
        """Handle an aborted checkpoint and the id of the latest completed one, -1 for none."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Handle a subsumed checkpoint, which no restore uses any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """The tasks of one checkpoint by role, at the time it was triggered."""

    tasks_to_trigger: tuple[ExecutionTask, ...]
    """The tasks to trigger."""
    tasks_to_wait_for: tuple[ExecutionTask, ...]
    """The tasks that must acknowledge; never empty."""
    tasks_to_commit_to: tuple[ExecutionTask, ...]
    """The tasks to notify of the end of the checkpoint."""
    finished_tasks: tuple[ExecutionTask, ...] = ()
    """The tasks that had finished and count as acknowledged."""
    fully_finished_operators: frozenset[OperatorId] = frozenset()
    """The operators whose tasks have all finished; the checkpoint records them."""
    not_started: tuple[ExecutionTask, ...] = ()
    """The tasks that have not started; the checkpoint contains the state they would be restored with."""


class CheckpointPlanCalculator:
    """
    Calculates the plan of each checkpoint from the statuses of the tasks.

    :param tasks_to_trigger: The tasks to trigger while they run.
    :param tasks_to_wait_for: The tasks that must acknowledge a checkpoint.
    :param tasks_to_commit_to: The tasks to notify of the end of a checkpoint.
    :param allow_after_tasks_finished: Whether checkpoints may be taken after some tasks have finished.
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
        Return the plan of a checkpoint that is triggered now.

        :raises CheckpointException: if the status of a task does not allow a checkpoint, or no task is running,
            as ``NOT_ALL_REQUIRED_TASKS_RUNNING``.
        """
        # Each status is read once: a task that ends meanwhile must not have two roles in the plan.
        statuses = {_key(task): task.status for task in (*self._to_trigger, *self._to_wait_for, *self._to_commit_to)}
        self._require_ready(statuses)
        plan = CheckpointPlan(
            tasks_to_trigger=self._tasks_to_trigger(statuses),
            tasks_to_wait_for=_with_status(self._to_wait_for, statuses, ExecutionStatus.RUNNING),
            tasks_to_commit_to=_with_status(self._to_commit_to, statuses, ExecutionStatus.RUNNING),
            finished_tasks=_with_status(self._to_wait_for, statuses, ExecutionStatus.FINISHED),
            fully_finished_operators=self._fully_finished(statuses),
            not_started=_with_status(self._to_wait_for, statuses, ExecutionStatus.NOT_STARTED),
        )
        if not plan.tasks_to_wait_for:
            _refuse("Expected a running task in the checkpoint, found none; there is nothing to checkpoint.")
        return plan

    def _require_ready(self, statuses: dict[_Key, ExecutionStatus]) -> None:
        allowed = {ExecutionStatus.RUNNING, ExecutionStatus.NOT_STARTED}
        if self._allow_after_tasks_finished:
            allowed.add(ExecutionStatus.FINISHED)
        for task in (*self._to_trigger, *self._to_wait_for):
            status = statuses[_key(task)]
            if status not in allowed:
                _refuse(
                    f"Expected the task of operator {task.uid!r} to be {' or '.join(sorted(allowed))}, found attempt "
                    f"{task.attempt_id!r} {status.value}; try again when it runs."
                )

    def _tasks_to_trigger(self, statuses: dict[_Key, ExecutionStatus]) -> tuple[ExecutionTask, ...]:
        running = _with_status(self._to_trigger, statuses, ExecutionStatus.RUNNING)
        if len(running) == len(_distinct(self._to_trigger)):
            return running
        # A source task that does not run forwards no barrier, so its downstream tasks are triggered directly.
        return _distinct((*running, *_with_status(self._to_wait_for, statuses, ExecutionStatus.RUNNING)))

    def _fully_finished(self, statuses: dict[_Key, ExecutionStatus]) -> frozenset[OperatorId]:
        unfinished = {t.operator_id for t in self._to_wait_for if statuses[_key(t)] is not ExecutionStatus.FINISHED}
        return frozenset(task.operator_id for task in self._to_wait_for) - unfinished


_Key = tuple[OperatorId, str]


def _key(task: ExecutionTask) -> _Key:
    return task.operator_id, task.attempt_id


def _distinct(tasks: Iterable[ExecutionTask]) -> tuple[ExecutionTask, ...]:
    return tuple({_key(task): task for task in tasks}.values())


def _with_status(
    tasks: Iterable[ExecutionTask], statuses: dict[_Key, ExecutionStatus], status: ExecutionStatus
) -> tuple[ExecutionTask, ...]:
    return _distinct(task for task in tasks if statuses[_key(task)] is status)


def _refuse(message: str) -> NoReturn:
    raise CheckpointException(CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, CoordinatorError(message))
