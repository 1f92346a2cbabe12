"""Coordinator of checkpoints over several operators: Flink's ``CheckpointCoordinator``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from random import Random
from threading import Lock, RLock
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedStorage, CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.rows import AbortScope
from airflow_provider_statecheck.checkpoint.aligned.steps import DEFAULT_LEASE, CheckpointDeleter, trigger_failure
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import (
    CheckpointException,
    CheckpointFailureManager,
    CheckpointFailureReason,
)
from airflow_provider_statecheck.checkpoint.ids import JobId, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    JobStatus,
    RestoreMode,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRequest, Clock
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    InvalidConfigurationError,
    StaleAttemptError,
)
from airflow_provider_statecheck.flink.completed_store import (
    CheckpointsCleaner,
    CompletedCheckpointStore,
    StateDiscarder,
)
from airflow_provider_statecheck.flink.completion import CoordinatorSteps
from airflow_provider_statecheck.flink.components import (
    AcknowledgeMessage,
    CheckpointNotifier,
    CheckpointStatsTracker,
    CoordinatorComponents,
    DeclineMessage,
)
from airflow_provider_statecheck.flink.participants import (
    MasterHooks,
    MasterTriggerRestoreHook,
    OperatorCoordinatorContext,
    OperatorCoordinatorRestoreMode,
    OperatorCoordinators,
)
from airflow_provider_statecheck.flink.plan import CheckpointPlanCalculator, ExecutionTask
from airflow_provider_statecheck.flink.requests import (
    CheckpointFuture,
    CheckpointFutures,
    Pause,
    TriggerKind,
    as_checkpoint_exception,
    properties_of,
)
from airflow_provider_statecheck.flink.restore import RestorableTask, StateRestorer
from airflow_provider_statecheck.flink.state_handles import CheckpointIDCounter
from airflow_provider_statecheck.flink.timer import CheckpointTimer
from airflow_provider_statecheck.flink.triggering import CheckpointTrigger, PeriodicTrigger

log = logging.getLogger(__name__)

_SECONDS_TO_ANOTHER_TICK = 1.0


class CheckpointCoordinator:
    """
    Triggers checkpoints of several operators, collects their acknowledgements and completes the checkpoints.

    The state of a coordinator is stored in rows. Coordinators with the same leader act as one, even in different
    processes, and a new coordinator resumes the work of an earlier one. A coordinator without a timer starts no thread:
    call
    :meth:`tick` periodically.

    :param tasks_to_wait_for: The tasks that must acknowledge a checkpoint.
    :param tasks_to_commit_to: The tasks to notify of the end of a checkpoint.
    :param executor: The executor that notifies tasks and deletes files.
    :param leader: The leader; calls of earlier leaders have no effect.
    :param discarder: The deleter of the files of rejected acknowledgements.
    :param fail_task: A callback that fails a task after an error on a completion.
    :param clock: The clock of periodic checkpoints; all other times are database times.
    :param random: The source of the delay before the first periodic checkpoint.
    :param pause: The function with which futures wait between two reads of the rows.
    :param lease: The time after which another coordinator may take over a finalization.
    :param timer: The timer of periodic checkpoints; ``None`` if the process may end before the next one.
    :raises InvalidConfigurationError: if there is no task to wait for, or the leader is of another job.
    :raises StorageError: if checkpoints are periodic and their directories cannot be created.
    :raises CoordinatorError: if the counter cannot be started.
    """

    def __init__(
        self,
        job_id: JobId,
        config: CheckpointConfig,
        tasks_to_trigger: Sequence[ExecutionTask],
        tasks_to_wait_for: Sequence[ExecutionTask],
        tasks_to_commit_to: Sequence[ExecutionTask],
        deleter: CheckpointDeleter,
        id_counter: CheckpointIDCounter,
        completed_store: CompletedCheckpointStore,
        checkpoint_storage: AlignedStorage,
        executor: Executor,
        failure_manager: CheckpointFailureManager,
        *,
        rows: AlignedCheckpoints,
        leader: AttemptRef,
        discarder: StateDiscarder,
        fail_task: Callable[[ExecutionTask, Exception], None],
        clock: Clock,
        random: Random,
        operator_coordinators: Sequence[OperatorCoordinatorContext] = (),
        pause: Pause = time.sleep,
        lease: timedelta = DEFAULT_LEASE,
        timer: CheckpointTimer | None = None,
    ) -> None:
        require("tasks_to_wait_for", list(tasks_to_wait_for), bool, "at least one task")
        is_ours = leader.job_id == job_id and leader.is_of_job
        require("leader", leader, lambda _: is_ours, f"a leader of the aligned checkpoints of job {job_id}")
        self._job_id = job_id
        self._clock = clock
        self._lock = Lock()
        self._turn = RLock()
        self._timer = timer
        self.futures = CheckpointFutures(rows, leader, checkpoint_storage, pause)
        self._statistics = CheckpointStatsTracker(rows, leader)
        self._has_base_locations = False
        self._is_shut_down = False
        self.components = CoordinatorComponents(
            rows=rows,
            leader=leader,
            lease=lease,
            config=config,
            tasks=tuple(tasks_to_commit_to),
            plan_calculator=CheckpointPlanCalculator(
                tasks_to_trigger, tasks_to_wait_for, tasks_to_commit_to, config.checkpoints_after_tasks_finish
            ),
            decider=_decider(config),
            id_counter=id_counter,
            completed_store=completed_store,
            storage=checkpoint_storage,
            cleaner=CheckpointsCleaner(
                rows,
                leader,
                checkpoint_storage,
                deleter,
                discarder,
                executor,
                is_parallel=config.cleaner_parallel_mode,
            ),
            notifier=CheckpointNotifier(executor, fail_task),
            hooks=MasterHooks(),
            operator_coordinators=OperatorCoordinators(operator_coordinators),
            failure_manager=failure_manager,
            executor=executor,
        )
        self._periodic = _periodic_trigger(config, random)
        self.steps = CoordinatorSteps(self.components, self._trigger_next)
        self._trigger = CheckpointTrigger(self.components, self.steps, self._require_ready, self._rearm)
        self._restorer = StateRestorer(self.components)
        id_counter.start()
        if self._periodic is not None:
            self._ensure_base_locations()
        completed_store.recover()
        self.steps.resume()

    @property
    def cleaner(self) -> CheckpointsCleaner:
        """The cleaner, which the shutdown of the completed store needs."""
        return self.components.cleaner

    @property
    def job_id(self) -> JobId:
        """The id of the job."""
        return self._job_id

    @property
    def statistics(self) -> CheckpointStatsTracker:
        """The statistics of the aligned checkpoints."""
        return self._statistics

    @property
    def is_periodic_checkpointing_started(self) -> bool:
        """Whether periodic checkpoints are started."""
        return self._periodic is not None and self._periodic.is_started

    def add_master_hook(self, hook: MasterTriggerRestoreHook[Any]) -> bool:
        """
        Add a hook that participates in every checkpoint.

        :return: Whether it was added; a second hook with the same identifier is ignored.
        :raises InvalidConfigurationError: if the identifier is blank.
        """
        return self.components.hooks.add_master_hook(hook)

    def trigger_checkpoint(
        self,
        properties: CheckpointProperties | TriggerKind,
        external_savepoint_location: str | None = None,
        is_periodic: bool = False,
        *,
        request_key: str | None = None,
    ) -> CheckpointFuture:
        """
        Request a checkpoint; the future reports all failures except invalid arguments.

        :param properties: The properties, or a kind with the configured retention.
        :param external_savepoint_location: The parent directory of a savepoint.
        :param is_periodic: Whether the periodic trigger requests the checkpoint.
        :param request_key: An idempotency key; requests with the same key are the same request.
        :raises InvalidConfigurationError: if the kind is invalid, or a savepoint has neither a target nor a default.
        """
        properties = properties_of(properties, self.components.config.retention_policy)
        if properties.is_savepoint and not external_savepoint_location:
            has_default = self.components.storage.has_default_savepoint_location
            require(
                "execution.checkpointing.savepoint-dir", None, lambda _: has_default, "set, or a target to be given"
            )
        key = request_key or new_key()
        future = self.futures.of(key)
        try:
            self._enqueue(key, properties, external_savepoint_location, is_periodic)
        except Exception as error:
            future.fail(_refusal(error))
            return future
        self.futures.watch(future)
        self._trigger_next()
        return future

    def receive_acknowledge_message(self, message: AcknowledgeMessage | None, sender: str = "") -> bool:
        """
        Handle the acknowledgement of an operator.

        :param sender: The origin of the message, for the log.
        :return: Whether the checkpoint is known.
        :raises CheckpointException: if the checkpoint cannot be completed.
        """
        if self._is_shut_down or message is None:
            return False
        if message.job_id != self._job_id:
            log.error("Expected acknowledgements of job %s, found one of %s (%s)", self._job_id, message.job_id, sender)
            return False
        with self.components.raising_job_failures():
            try:
                return self.steps.receive(message, sender)
            except StaleAttemptError as error:
                log.warning("Ignored an acknowledgement after a change of the leader: %s", error)
                return False
            finally:
                self.futures.settle()

    def receive_decline_message(self, message: DeclineMessage | None, sender: str = "") -> None:
        """
        Abort the checkpoint that an operator declines, if it is pending.

        :param sender: The origin of the message, for the log.
        :raises InvalidConfigurationError: if the message is of another job.
        """
        if self._is_shut_down or message is None:
            return
        if message.job_id != self._job_id:
            raise InvalidConfigurationError(
                f"Expected declines of job {self._job_id}, found one of {message.job_id} ({sender})."
            )
        with self.components.raising_job_failures():
            try:
                if not self.steps.abort_one(message.checkpoint_id, message.cause, attempt_id=message.attempt_id):
                    log.debug("Ignored a decline of checkpoint %s (%s)", message.checkpoint_id, sender)
            except StaleAttemptError as error:
                log.warning("Ignored a decline after a change of the leader: %s", error)
            self._trigger_next()

    def start_checkpoint_scheduler(self) -> None:
        """
        Start periodic checkpoints, which the timer triggers when they are due; a second call restarts the interval.

        Without a timer, :meth:`tick` triggers them, and a warning says so.

        :raises CoordinatorError: if called after the shutdown, or no interval is configured.
        """
        self._require_in_use()
        if self._periodic is None:
            raise CoordinatorError(
                "Expected an interval for periodic checkpoints, found none; set execution.checkpointing.interval."
            )
        self._periodic.start(self._clock.now())
        if self._timer is None:
            log.warning(
                "This coordinator has no timer, because its process may end before the next checkpoint is due; call "
                "tick() as often as a checkpoint may begin."
            )
        else:
            self._timer.start(self._timed_tick)

    def stop_checkpoint_scheduler(self) -> None:
        """
        Stop periodic checkpoints and abort all pending and queued ones; repeated calls have no effect.

        :raises CheckpointException: if the database fails, as ``IO_EXCEPTION``; periodic ones are stopped anyway.
        """
        self._stop_periodic()
        self._abort_everything(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND)

    def tick(self) -> None:
        """
        Expire checkpoints, take over finalizations whose lease has expired, and trigger a due periodic checkpoint.

        Like the methods that handle messages, it raises the errors of the callback that fails the job.

        :raises StaleAttemptError: if another leader has taken over.
        """
        if self._is_shut_down:
            return
        # The timer may tick in its thread.
        with self._turn:
            self._tick_and_raise()

    def _tick_and_raise(self) -> None:
        with self.components.raising_job_failures():
            self._tick()

    def _timed_tick(self) -> float | None:
        # The program may be in a tick that stops the timer, and then waits for the end of this thread.
        if not self._turn.acquire(blocking=False):
            return _SECONDS_TO_ANOTHER_TICK
        try:
            if not self._is_shut_down:
                self._tick_and_raise()
        finally:
            self._turn.release()
        due = None if self._periodic is None else self._periodic.next_fire_at
        if due is None or self._is_shut_down:
            return None
        # Pending checkpoints expire meanwhile.
        seconds = min((due - self._clock.now()).total_seconds(), self.components.config.timeout.total_seconds())
        return max(seconds, 0.0)

    def _stop_periodic(self) -> None:
        if self._periodic is not None:
            self._periodic.stop()
        if self._timer is not None:
            self._timer.stop()

    def _tick(self) -> None:
        self.steps.expire()
        self.steps.take_over()
        if self._periodic is not None and self._periodic.due(self._clock.now()):
            policy = self.components.config.retention_policy
            self.trigger_checkpoint(CheckpointProperties.for_checkpoint(policy), is_periodic=True)
        self._trigger_next()

    def restore_latest_checkpointed_state(
        self,
        tasks: Sequence[RestorableTask],
        error_if_no_checkpoint: bool = False,
        all_or_nothing_state: bool = False,
        *,
        allow_non_restored_state: bool = False,
        renamed_uids: Mapping[str, str] | None = None,
        mode: OperatorCoordinatorRestoreMode = OperatorCoordinatorRestoreMode.RESTORE_OR_RESET,
    ) -> bool:
        """
        Restore the tasks from the newest completed checkpoint; if a state does not fit, no task is restored.

        :param tasks: The tasks, which must not have started.
        :param error_if_no_checkpoint: Whether to raise if there is no checkpoint.
        :param all_or_nothing_state: Whether an operator with state must have state for all of its subtasks.
        :param allow_non_restored_state: Whether to drop state that has no operator or hook.
        :param renamed_uids: The new uids of operators by their uids in the checkpoint.
        :param mode: How to restore operator coordinators.
        :return: Whether there is a checkpoint.
        :raises CoordinatorError: if called after the shutdown, or a required checkpoint does not exist.
        :raises IncompatibleCheckpointError: if a state does not fit.
        """
        self._require_in_use()
        return self._restorer.restore_latest(
            tasks,
            error_if_no_checkpoint=error_if_no_checkpoint,
            all_or_nothing_state=all_or_nothing_state,
            allow_non_restored_state=allow_non_restored_state,
            renamed_uids=renamed_uids,
            mode=mode,
        )

    def restore_savepoint(
        self,
        pointer: str,
        tasks: Sequence[RestorableTask],
        *,
        restore_mode: RestoreMode = RestoreMode.NO_CLAIM,
        allow_non_restored_state: bool = False,
        renamed_uids: Mapping[str, str] | None = None,
    ) -> CompletedCheckpoint:
        """
        Restore the tasks of a new job from a checkpoint or a savepoint.

        :param pointer: The directory or metadata file of the checkpoint.
        :param tasks: The tasks, which must not have started.
        :param restore_mode: The claim mode, which determines the owner of its files.
        :param allow_non_restored_state: Whether to drop state that has no operator or hook.
        :param renamed_uids: The new uids of operators by their uids in the checkpoint.
        :raises CoordinatorError: if called after the shutdown, or the job has newer checkpoints.
        :raises CheckpointNotFoundError: if it does not exist.
        :raises IncompatibleCheckpointError: if a state does not fit; its owner does not change.
        :raises SavepointClaimedError: if another job has claimed it.
        :raises InvalidConfigurationError: if the claim is for a checkpoint that is not a savepoint.
        """
        self._require_in_use()
        adopted = self._restorer.adopt(
            pointer,
            restore_mode,
            tasks,
            allow_non_restored_state=allow_non_restored_state,
            renamed_uids=renamed_uids,
        )
        self.restore_latest_checkpointed_state(
            tasks, True, allow_non_restored_state=allow_non_restored_state, renamed_uids=renamed_uids
        )
        return adopted

    def shutdown_store(self, status: JobStatus) -> None:
        """
        Shut down the completed store at the end or the suspension of the job, and stop periodic checkpoints.

        The properties of its checkpoints decide which are deleted.

        :raises StateCheckError: if the database or the storage fails; the call may be repeated.
        """
        self._stop_periodic()
        self.components.completed_store.shutdown(status, self.components.cleaner)

    def shutdown(self) -> None:
        """Abort all pending and queued checkpoints, close the hooks and reject further calls; may be repeated."""
        with self._lock:
            if self._is_shut_down:
                return
            self._is_shut_down = True
        self._stop_periodic()
        self.components.hooks.close()
        self._abort_everything(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)

    def _abort_everything(self, reason: CheckpointFailureReason) -> None:
        try:
            with as_checkpoint_exception():
                self.steps.take_over()
                self.steps.abort(AbortScope.EVERYTHING, CheckpointException(reason))
        except StaleAttemptError as stale:
            log.warning("Pending checkpoints were not aborted after a change of the leader: %s", stale)
        self.futures.settle()

    def _enqueue(self, key: str, properties: CheckpointProperties, target: str | None, is_periodic: bool) -> None:
        if self._is_shut_down:
            raise CheckpointException(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        if not properties.is_savepoint:
            self._ensure_base_locations()
        leader, decider = self.components.leader, self.components.decider
        for refused in self.components.rows.enqueue(leader, decider, key, properties, target, is_periodic):
            error = CheckpointException(CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)
            self.components.count_failure(error, properties=refused.properties)

    def _ensure_base_locations(self) -> None:
        if not self._has_base_locations:
            self.components.storage.initialize_base_locations_for_checkpoint()
            self._has_base_locations = True

    def _require_ready(self, request: CheckpointRequest) -> None:
        if self._is_shut_down:
            raise CheckpointException(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        if request.is_periodic and not self.is_periodic_checkpointing_started:
            raise CheckpointException(CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN)

    def _require_in_use(self) -> None:
        if self._is_shut_down:
            raise CoordinatorError(
                "Expected a coordinator that is in use, found one that was shut down; create a new one."
            )

    def _rearm(self, delay: timedelta) -> None:
        if self._periodic is not None:
            self._periodic.rearm(self._clock.now(), delay)
        if self._timer is not None:
            self._timer.wake()

    def _trigger_next(self) -> None:
        """Trigger the checkpoints that may start now; their futures report failures."""
        if not self._is_shut_down:
            try:
                self._trigger.run()
            except Exception:
                log.exception("Queued checkpoints could not be triggered; the next call retries")
        self.futures.settle()


def _decider(config: CheckpointConfig) -> CheckpointRequestDecider:
    return CheckpointRequestDecider(
        max_concurrent=config.effective_max_concurrent_checkpoints,
        min_pause_seconds=config.effective_min_pause.total_seconds(),
    )


def _periodic_trigger(config: CheckpointConfig, random: Random) -> PeriodicTrigger | None:
    interval = config.effective_interval
    return None if interval is None else PeriodicTrigger(interval, config.effective_min_pause, random)


def _refusal(error: Exception) -> CheckpointException:
    if isinstance(error, StaleAttemptError):
        return CheckpointException(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, error)
    return trigger_failure(error)
