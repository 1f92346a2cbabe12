"""In-process job of several operators with aligned checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import (
    JobId,
    OperatorId,
    checkpoint_uri,
    job_id_of,
    job_uri,
    operator_id_of,
)
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointOptions, CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    FileStateHandle,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.checkpoint.states.matching import RestoreTarget
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.flink.components import (
    AcknowledgeMessage,
    CheckpointStatsTracker,
    DeclineMessage,
)
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.flink.leading import SETTINGS, new_coordinator
from airflow_provider_statecheck.flink.plan import ExecutionStatus, ExecutionTask
from airflow_provider_statecheck.flink.requests import CheckpointFuture, TriggerKind
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import normalise_base
from tests.messages import ManualClock, make_leadership
from tests.sqlite_rows import new_store

CHECKPOINT = CheckpointProperties.for_checkpoint()
SAVEPOINT = CheckpointProperties.for_savepoint()
JOB_NAME = "sales"
JOB = job_id_of(JOB_NAME)


def future_of(coordinator: CheckpointCoordinator, request_key: str) -> CheckpointFuture:
    """Return the future of a request that any process has made, or that has no row."""
    return coordinator.futures.of(request_key)


def reason_of(future: CheckpointFuture) -> CheckpointFailureReason:
    """Return why a request has failed."""
    error = future.exception(0)
    assert error is not None
    return error.reason


def local_job(path: Path) -> AlignedJob:
    """Return a job of two operators with rows in SQLite, and files below a path."""
    clock = ManualClock()
    storage = CheckpointStorage.open(str(path / "checkpoints"))
    return AlignedJob(new_store(clock), storage, clock, savepoint_dir=str(path / "savepoints"))


class AlignedJob:
    """
    A job with its stores, its storage and its tasks, from which coordinators are created.

    :param jobs: The store of the job's rows.
    :param storage: The checkpoint storage.
    :param clock: The clock of periodic checkpoints.
    :param job_id: The job.
    :param tasks: The tasks, by default a source and a sink.
    :param savepoint_dir: The default directory of savepoints.
    :param rows: The calls of coordinators to the rows, by default in process.
    """

    def __init__(
        self,
        jobs: JobStore,
        storage: CheckpointStorage,
        clock: ManualClock,
        *,
        job_id: JobId = JOB,
        tasks: tuple[AlignedTask, ...] | None = None,
        savepoint_dir: str | None = None,
        rows: AlignedCheckpoints | None = None,
    ) -> None:
        self.jobs = jobs
        self.rows = rows or AlignedCheckpoints(jobs)
        self.savepoint_dir = None if savepoint_dir is None else normalise_base(savepoint_dir)
        # The tests also read savepoints, which are stored outside of the checkpoint directory.
        self.storage = storage if self.savepoint_dir is None else storage.allowing(self.savepoint_dir)
        self.clock = clock
        self.job_id = job_id
        self.tasks = tasks or (AlignedTask("source"), AlignedTask("sink"))
        self.failed = FailedJob()
        self.failed_tasks: list[tuple[str, Exception]] = []
        self.leader: AttemptRef | None = None
        self.executor: Executor = InlineExecutor()

    def lead(self) -> AttemptRef:
        """Take over the leadership and return the new leader."""
        self.leader = self.rows.lead(make_leadership(job_name=JOB_NAME, storage_base=self.storage.base_uri))
        return self.leader

    def coordinator(
        self, *, num_retained: int = 1, tolerable: int | None = None, **changes: Any
    ) -> CheckpointCoordinator:
        """
        Create a coordinator for the current leader.

        :param num_retained: The number of checkpoints to retain.
        :param tolerable: The number of failures to tolerate, ``None`` for no limit.
        :param changes: Settings of :class:`CheckpointConfig` and arguments of ``new_coordinator``.
        """
        leader = self.leader or self.lead()
        config = changes.pop("config", None) or CheckpointConfig()
        settings: dict[str, Any] = {
            "num_retained": num_retained,
            "tolerable_failed_checkpoints": tolerable,
            "savepoint_dir": self.savepoint_dir,
        }
        settings |= {key: changes.pop(key) for key in [k for k in changes if k in SETTINGS]}
        for key, value in settings.items():
            setattr(config, key, value)
        arguments: dict[str, Any] = {
            "job_name": JOB_NAME,
            "tasks": self.tasks,
            "tasks_to_trigger": self.tasks[:1],
            "callback": self.failed,
            "fail_task": self._fail_task,
            "executor": self.executor,
            "clock": self.clock,
            "random": Random(0),
            "pause": NoWaiting(),
        }
        return new_coordinator(self.rows, self.storage, config, leader, **arguments | changes)

    def statistics(self) -> CheckpointStatsTracker:
        """Return the statistics tracker of the checkpoints."""
        return CheckpointStatsTracker(self.rows, self.leader or self.lead())

    def state(
        self, task: ExecutionTask, checkpoint_id: int, text: str = "", location: str | None = None
    ) -> OperatorState:
        """Write the state of an operator to one file and return the state."""
        base = location or checkpoint_uri(self.storage.base_uri, self.job_id, checkpoint_id)
        data = f"{task.uid} {checkpoint_id} {text}".encode()
        digest = hashlib.sha256(data).hexdigest()
        uri = f"{base}/1-{digest[:32]}"
        self.storage.write_bytes(uri, data)
        meta = OperatorStateMeta((0,), DistributionMode.SPLIT_DISTRIBUTE)
        handle = OperatorStateHandle((("list", meta),), FileStateHandle(uri, len(data), digest))
        return OperatorState(
            operator_id=task.operator_id,
            uid=task.uid,
            parallelism=task.parallelism,
            max_parallelism=task.max_parallelism,
            subtask_states={0: OperatorSubtaskState(managed_operator=(handle,))},
        )

    def acknowledgement(self, task: ExecutionTask, checkpoint_id: int, **changes: Any) -> AcknowledgeMessage:
        """Write the state of a task and return its acknowledgement."""
        values: dict[str, Any] = {
            "job_id": self.job_id,
            "attempt_id": task.attempt_id,
            "checkpoint_id": checkpoint_id,
        }
        if "state" not in changes:
            values["state"] = self.state(task, checkpoint_id)
        return AcknowledgeMessage(**values | changes)

    def decline(
        self,
        task: ExecutionTask,
        checkpoint_id: int,
        reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_DECLINED,
    ) -> DeclineMessage:
        """Return the message of a task that declines a checkpoint."""
        return DeclineMessage(
            job_id=self.job_id,
            attempt_id=task.attempt_id,
            checkpoint_id=checkpoint_id,
            cause=CheckpointException(reason),
        )

    def acknowledge_all(self, coordinator: CheckpointCoordinator, checkpoint_id: int) -> None:
        """Acknowledge a checkpoint for every running task."""
        location = self.location(checkpoint_id)
        for task in self.tasks:
            if task.status is ExecutionStatus.RUNNING:
                state = self.state(task, checkpoint_id, location=location)
                coordinator.receive_acknowledge_message(self.acknowledgement(task, checkpoint_id, state=state))

    def take(
        self, coordinator: CheckpointCoordinator, what: CheckpointProperties | TriggerKind = CHECKPOINT
    ) -> CompletedCheckpoint:
        """Trigger a checkpoint or a savepoint, acknowledge it for every running task and return it."""
        future = coordinator.trigger_checkpoint(what)
        assert future.checkpoint_id is not None
        self.acknowledge_all(coordinator, future.checkpoint_id)
        return future.result(0)

    def row(self, checkpoint_id: int) -> CheckpointRecord:
        """Return the row of a checkpoint."""
        rows = self.jobs.describe(self.job_id).checkpoints
        return next(row for row in rows if row.checkpoint_id == checkpoint_id)

    def location(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint from its row."""
        return self.row(checkpoint_id).location

    def directories(self) -> set[str]:
        """Return the names of the existing checkpoint directories."""
        names = self.storage.list_directories(job_uri(self.storage.base_uri, self.job_id))
        return {name for name in names if name.startswith("chk-")}

    def status(self, checkpoint_id: int) -> str:
        """Return the status of a checkpoint from its row."""
        return self.row(checkpoint_id).status.value

    def pass_time(self, seconds: float) -> timedelta:
        """Move the clock forward and return the elapsed time."""
        self.clock.advance(seconds)
        return timedelta(seconds=seconds)

    def _fail_task(self, task: ExecutionTask, error: Exception) -> None:
        self.failed_tasks.append((task.uid, error))


@dataclass
class AlignedTask:
    """Task that records the calls of the coordinator and fails at configured ones."""

    uid: str
    status: ExecutionStatus = ExecutionStatus.RUNNING
    attempt_id: str = ""
    name: str = ""
    parallelism: int = 1
    max_parallelism: int = 128
    told: list[tuple[Any, ...]] = field(default_factory=list)
    fails_at: set[str] = field(default_factory=set)
    on_trigger: Callable[[int], object] | None = None
    restored: tuple[int, dict[int, OperatorSubtaskState], bool] | None = None

    def __post_init__(self) -> None:
        self.attempt_id = self.attempt_id or f"{self.uid}/1"

    @property
    def operator_id(self) -> OperatorId:
        """Return the id of the operator."""
        return operator_id_of(self.uid)

    @property
    def restore_target(self) -> RestoreTarget:
        """Return the operator, with the requirements of its state."""
        return RestoreTarget(
            operator_id=self.operator_id,
            uid=self.uid,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
        )

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, options: CheckpointOptions) -> None:
        """Record a triggered checkpoint."""
        self._hear("trigger", checkpoint_id, options)
        if self.on_trigger is not None:
            self.on_trigger(checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int, timestamp: datetime, last_subsumed_id: int) -> None:
        """Record a completed checkpoint."""
        self._hear("complete", checkpoint_id, last_subsumed_id, timestamp)

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed_id: int, timestamp: datetime) -> None:
        """Record an aborted checkpoint."""
        self._hear("aborted", checkpoint_id, latest_completed_id, timestamp)

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Record a subsumed checkpoint."""
        self._hear("subsumed", checkpoint_id)

    def set_initial_state(
        self, checkpoint_id: int, subtask_states: Mapping[int, OperatorSubtaskState], *, is_finished: bool
    ) -> None:
        """Record the initial state."""
        self.restored = (checkpoint_id, dict(subtask_states), is_finished)

    def heard(self, kind: str) -> list[int]:
        """Return the checkpoint ids of the recorded calls of a kind, in order."""
        return [call[1] for call in self.told if call[0] == kind]

    def _hear(self, kind: str, *arguments: Any) -> None:
        self.told.append((kind, *arguments))
        if kind in self.fails_at:
            raise RuntimeError(f"{self.uid} cannot take {kind}")


@dataclass
class FailedJob:
    """Callback that records the causes of a failed job."""

    causes: list[Exception] = field(default_factory=list)

    def fail_job(self, cause: Exception) -> None:
        """Record the cause."""
        self.causes.append(cause)

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        """Record the cause."""
        self.causes.append(cause)


class NoWaiting:
    """
    Pause that runs a step of a test instead of waiting, and fails a test that would wait after the last step.

    :param steps: The functions to run, one per pause.
    """

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)

    def __call__(self, seconds: float) -> None:
        """Run the next step."""
        assert self.steps, "Expected another step before a pause, found none."
        self.steps.pop(0)()


class InlineExecutor(Executor):
    """Executor that runs calls immediately in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call and return a completed future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class HeldExecutor(Executor):
    """Executor that queues calls until a test runs them."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call."""
        future: Future[Any] = Future()
        self.held.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_next(self) -> None:
        """Run the oldest queued call."""
        future, call = self.held.pop(0)
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    def run_all(self) -> None:
        """Run queued calls, including those they submit, until the queue is empty."""
        while self.held:
            self.run_next()
