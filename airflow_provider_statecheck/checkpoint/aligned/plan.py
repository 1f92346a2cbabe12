"""What to trigger: the queue policy for requests, and the plan of the tasks in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, Protocol

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import RequestStatus, SnapshotRequest
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
        """Return the id of the operator."""

    @property
    def uid(self) -> str:
        """Return the uid of the operator."""

    @property
    def name(self) -> str:
        """Return the display name of the operator."""

    @property
    def parallelism(self) -> int:
        """Return the number of subtasks."""

    @property
    def max_parallelism(self) -> int:
        """Return the number of key groups."""

    @property
    def attempt_id(self) -> str:
        """Return the unique id of the task's attempt."""

    @property
    def status(self) -> ExecutionStatus:
        """Return the current status."""

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, options: CheckpointOptions) -> None:
        """Request a snapshot; a repeated call has no effect."""

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

        :raises CheckpointException: ``NOT_ALL_REQUIRED_TASKS_RUNNING`` if the status of a task does not allow a checkpoint,
            or no task is running.
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


MAX_QUEUED_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The decision on the queue; an empty choice waits for the next event."""

    run: SnapshotRequest | None = None
    """The request to trigger now."""
    dropped: tuple[SnapshotRequest, ...] = ()
    """The requests that are too early and fail with ``MINIMUM_TIME_BETWEEN_CHECKPOINTS``."""
    retry_in_seconds: float | None = None
    """The delay after which the periodic trigger must fire again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequestDecider:
    """
    Decides on requests from the queue and the work in progress.

    Call ``admit`` for each new request. Call ``choose`` after it, and after a trigger, a checkpoint or a cleaning has
    ended.

    :raises InvalidConfigurationError: if a value is out of range.
    """

    max_concurrent: int
    """The largest number of pending checkpoints, at least 1; forced checkpoints ignore it."""
    min_pause_seconds: float
    """The shortest time between the end of a checkpoint and the start of a periodic one."""
    max_queued: int = MAX_QUEUED_REQUESTS
    """The largest number of queued requests, at least 1."""

    def __post_init__(self) -> None:
        require("max_concurrent_checkpoints", self.max_concurrent, lambda n: n >= 1, "at least 1")
        require("min_pause", self.min_pause_seconds, lambda pause: pause >= 0, "0 or longer")
        require("max_queued_requests", self.max_queued, lambda n: n >= 1, "at least 1")

    def admit(self, queue: Sequence[SnapshotRequest], new: SnapshotRequest) -> tuple[SnapshotRequest, ...]:
        """
        Return the requests that fail with ``TOO_MANY_CHECKPOINT_REQUESTS``: the new one, or those that it replaces.

        :param queue: The open requests; requests that are already running do not count.
        :param new: The new request; a request with a queued key is a repetition and joins the queue.
        """
        queued = in_order(queue)
        if any(request.request_key == new.request_key for request in queued):
            return ()
        if len(queued) >= self.max_queued and not queued[-1].is_periodic:
            return (new,)
        return tuple(in_order((*queued, new))[self.max_queued :])

    def choose(
        self,
        queue: Sequence[SnapshotRequest],
        *,
        is_triggering: bool,
        pending_count: int,
        cleanings: int,
        last_completed_at: datetime | None,
        now: datetime,
    ) -> Choice:
        """
        Choose the request to trigger now.

        :param queue: The open requests; requests that are already running are ignored.
        :param is_triggering: Whether another checkpoint is being triggered.
        :param pending_count: The number of pending checkpoints.
        :param cleanings: The number of checkpoints that are being deleted.
        :param last_completed_at: The completion time of the last checkpoint, ``None`` if there is none.
        :param now: The current time of the clock that set ``last_completed_at``.
        """
        queued = in_order(queue)
        if is_triggering or not queued or cleanings > self.max_concurrent:
            return Choice()
        head = queued[0]
        if pending_count >= self.max_concurrent and not head.properties.force:
            return Choice()
        remaining = self._remaining_pause(last_completed_at, now)
        if _respects_min_pause(head) and remaining > 0:
            return Choice(dropped=(head,), retry_in_seconds=remaining)
        return Choice(run=head)

    def _remaining_pause(self, last_completed_at: datetime | None, now: datetime) -> float:
        return 0.0 if last_completed_at is None else self.min_pause_seconds - (now - last_completed_at).total_seconds()


def in_order(queue: Sequence[SnapshotRequest]) -> list[SnapshotRequest]:
    """Return the queued requests: savepoints, forced, requested by users, then periodic ones, each oldest first."""
    return sorted((request for request in queue if request.status is RequestStatus.QUEUED), key=_rank)


def _rank(request: SnapshotRequest) -> tuple[bool, bool, bool, datetime, str]:
    properties = request.properties
    # The key orders requests of equal age, and every coordinator makes the same choice.
    return (
        not properties.is_savepoint,
        not properties.force,
        request.is_periodic,
        request.requested_at,
        request.request_key,
    )


def _respects_min_pause(request: SnapshotRequest) -> bool:
    return request.is_periodic and not request.properties.force and not request.properties.is_savepoint
