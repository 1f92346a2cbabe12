"""Coordinator of checkpoints over several operators: Flink's ``CheckpointCoordinator``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from random import Random
from threading import Lock
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned import retained_checkpoints, transitions
from airflow_provider_statecheck.checkpoint.aligned.abort import CheckpointAborter
from airflow_provider_statecheck.checkpoint.aligned.cleaner import CheckpointsCleaner
from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import CompletedCheckpoint, StateDiscarder
from airflow_provider_statecheck.checkpoint.aligned.completed_store import CompletedCheckpointStore
from airflow_provider_statecheck.checkpoint.aligned.completion import AcknowledgementHandler, CheckpointFinalizer
from airflow_provider_statecheck.checkpoint.aligned.components import CoordinatorComponents
from airflow_provider_statecheck.checkpoint.aligned.failure_manager import CheckpointFailureManager
from airflow_provider_statecheck.checkpoint.aligned.id_counter import JobIDCounter
from airflow_provider_statecheck.checkpoint.aligned.master_hooks import MasterHooks, MasterTriggerRestoreHook
from airflow_provider_statecheck.checkpoint.aligned.notifications import (
    AcknowledgeMessage,
    CheckpointNotifier,
    DeclineMessage,
)
from airflow_provider_statecheck.checkpoint.aligned.operator_coordinators import (
    OperatorCoordinatorContext,
    OperatorCoordinatorRestoreMode,
    OperatorCoordinators,
)
from airflow_provider_statecheck.checkpoint.aligned.plan import CheckpointPlanCalculator, ExecutionTask
from airflow_provider_statecheck.checkpoint.aligned.request_decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.requests import (
    CheckpointFuture,
    FutureWaiter,
    RequestQueue,
    StopWithSavepoint,
    TriggerKind,
    as_checkpoint_exception,
    properties_of,
)
from airflow_provider_statecheck.checkpoint.aligned.restore import RestorableTask, StateRestorer, resume
from airflow_provider_statecheck.checkpoint.aligned.retained_checkpoints import GuardedDiscarder
from airflow_provider_statecheck.checkpoint.aligned.shared_state_registry import SharedStateRegistry
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import (
    SnapshotContent,
    SnapshotStorage,
    completed_of,
    metadata_of,
)
from airflow_provider_statecheck.checkpoint.aligned.triggering import CheckpointTrigger, PeriodicTrigger, failure_of
from airflow_provider_statecheck.checkpoint.clock import Clock
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.ids import JobId, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, require
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    JobStatus,
    RestoreMode,
    SavepointFormat,
)
from airflow_provider_statecheck.checkpoint.records import (
    CheckpointRecord,
    CheckpointStatus,
    RequestStatus,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    InvalidConfigurationError,
    StaleAttemptError,
    StateCheckError,
)

log = logging.getLogger(__name__)

USED_SETTINGS = (
    "checkpoint_interval",
    "timeout",
    "min_pause_between_checkpoints",
    "max_concurrent_checkpoints",
    "externalized_checkpoint_retention",
    "checkpoints_after_tasks_finish",
    "cleaner_parallel_mode",
)
"""Settings that a coordinator acts on; how many to retain and to tolerate its store and its failure manager know."""
DEFAULT_LEASE = timedelta(minutes=1)


class CheckpointCoordinator:
    """
    Triggers checkpoints of several operators, collects what they acknowledge and completes them.

    What matters is in the rows: several coordinators with the same leader, in as many processes, act as one, and a new
    one goes on where another ended. No thread and no timer is started; :meth:`tick` has to be called again and again.

    :param job_id: The job.
    :param config: How often, how many and how long.
    :param tasks_to_trigger: Tasks that are told to begin.
    :param tasks_to_wait_for: Tasks without which there is no checkpoint.
    :param tasks_to_commit_to: Tasks that are told how it ended.
    :param registry: Knows the files that checkpoints share; the completed store has the same.
    :param id_counter: Gives the ids.
    :param completed_store: Keeps what is complete.
    :param checkpoint_storage: Where the bytes go.
    :param executor: Where tasks are notified and bytes are deleted.
    :param failure_manager: Counts failures.
    :param jobs: The rows.
    :param leader: In whose name they are changed; an older one is refused.
    :param discarder: Who deletes bytes.
    :param fail_task: What is done with a task that failed when it was told of a completion.
    :param clock: What time it is for periodic checkpoints; all else goes by the time of the rows.
    :param random: Where the delay of the first periodic checkpoint comes from.
    :param operator_coordinators: What operators keep on this side.
    :param waiter: How futures wait.
    :param lease: How long whoever finalizes a checkpoint may be silent.
    :raises InvalidConfigurationError: if a setting was given that it does not act on, there is no task to wait for, or the leader is of another job.
    :raises StorageError: if checkpoints are periodic and their directories cannot be made.
    :raises CoordinatorError: if the counter cannot be started.
    """

    def __init__(
        self,
        job_id: JobId,
        config: CheckpointConfig,
        tasks_to_trigger: Sequence[ExecutionTask],
        tasks_to_wait_for: Sequence[ExecutionTask],
        tasks_to_commit_to: Sequence[ExecutionTask],
        registry: SharedStateRegistry,
        id_counter: JobIDCounter,
        completed_store: CompletedCheckpointStore,
        checkpoint_storage: SnapshotStorage,
        executor: Executor,
        failure_manager: CheckpointFailureManager,
        *,
        jobs: JobStore,
        leader: AttemptRef,
        discarder: StateDiscarder,
        fail_task: Callable[[ExecutionTask, Exception], None],
        clock: Clock,
        random: Random,
        operator_coordinators: Sequence[OperatorCoordinatorContext] = (),
        waiter: FutureWaiter | None = None,
        lease: timedelta = DEFAULT_LEASE,
    ) -> None:
        config.require_only(USED_SETTINGS, "a coordinator of several operators")
        require("tasks_to_wait_for", list(tasks_to_wait_for), bool, "at least one task")
        is_ours = (leader.job_id, leader.operator_id) == (job_id, ALIGNED_OPERATOR_ID)
        require("leader", leader, lambda _: is_ours, f"a leader of the aligned checkpoints of job {job_id}")
        self._job_id = job_id
        self._clock = clock
        self._waiter = waiter
        self._lock = Lock()
        self._futures: list[CheckpointFuture] = []
        self._has_base_locations = False
        self._is_shut_down = False
        cleaner = CheckpointsCleaner(
            GuardedDiscarder(discarder, registry),
            executor,
            is_parallel=config.cleaner_parallel_mode,
            discarded=lambda completed: retained_checkpoints.confirm_discarded(
                self._components, completed.checkpoint_id
            ),
        )
        self._components = CoordinatorComponents(
            jobs=jobs,
            leader=leader,
            name=new_key(),
            lease=lease,
            config=config,
            tasks=tuple(tasks_to_commit_to),
            plan_calculator=CheckpointPlanCalculator(
                tasks_to_trigger, tasks_to_wait_for, tasks_to_commit_to, config.checkpoints_after_tasks_finish
            ),
            decider=CheckpointRequestDecider(config.effective_max_concurrent_checkpoints, config.effective_min_pause),
            id_counter=id_counter,
            completed_store=completed_store,
            registry=registry,
            storage=checkpoint_storage,
            cleaner=cleaner,
            notifier=CheckpointNotifier(executor, fail_task),
            hooks=MasterHooks(),
            operator_coordinators=OperatorCoordinators(operator_coordinators),
            failure_manager=failure_manager,
            executor=executor,
        )
        interval = config.effective_interval
        self._periodic = (
            None if interval is None else PeriodicTrigger(interval, config.effective_min_pause, random, clock)
        )
        self._aborter = CheckpointAborter(self._components, self._trigger_next)
        self._finalizer = CheckpointFinalizer(self._components, self._aborter, self._trigger_next)
        self._acknowledgements = AcknowledgementHandler(self._components, self._aborter, self._finalizer)
        self._request_queue = RequestQueue(self._components)
        self._trigger = CheckpointTrigger(
            self._components, self._aborter, self._finalizer, self._require_ready, self._rearm
        )
        self._restorer = StateRestorer(self._components)
        id_counter.start()
        if self._periodic is not None:
            self._ensure_base_locations()
        completed_store.recover()
        resume(self._components, self._aborter, self._finalizer)

    @property
    def cleaner(self) -> CheckpointsCleaner:
        """Return who deletes the bytes of checkpoints, for the shutdown of the completed store."""
        return self._components.cleaner

    @property
    def is_shut_down(self) -> bool:
        """Tell whether it does nothing any more."""
        return self._is_shut_down

    @property
    def is_periodic_checkpointing_started(self) -> bool:
        """Tell whether checkpoints are triggered without being asked for."""
        return self._periodic is not None and self._periodic.is_started

    def add_master_hook(self, hook: MasterTriggerRestoreHook[Any]) -> bool:
        """
        Add something that takes part in every checkpoint.

        :return: Whether it was added; a second one of the same identifier is not.
        :raises InvalidConfigurationError: for an empty identifier.
        """
        return self._components.hooks.add_master_hook(hook)

    def trigger_checkpoint(
        self,
        properties: CheckpointProperties | TriggerKind,
        external_savepoint_location: str | None = None,
        is_periodic: bool = False,
        *,
        request_key: str | None = None,
    ) -> CheckpointFuture:
        """
        Ask for a checkpoint; every failure but a wrong argument is told by the future.

        :param properties: Whose it is and what kind, or a kind for one that stays as long as is configured.
        :param external_savepoint_location: The directory below which a savepoint is written.
        :param is_periodic: Whether nobody asked for it.
        :param request_key: Made by the caller; the same key is the same request.
        :raises InvalidConfigurationError: for no kind, or a savepoint without target where there is no default.
        """
        properties = properties_of(properties, self._components.config.retention_policy)
        if properties.is_savepoint and not external_savepoint_location:
            has_default = self._components.storage.has_default_savepoint_location
            require(
                "execution.checkpointing.savepoint-dir", None, lambda _: has_default, "set, or a target to be given"
            )
        key = request_key or new_key()
        future = self._future(key)
        try:
            self._ask(key, properties, external_savepoint_location, is_periodic)
        except Exception as error:
            future.fail(_refusal(error))
            return future
        with self._lock:
            self._futures.append(future)
        self._trigger_next()
        return future

    def trigger_savepoint(
        self,
        target: str | None = None,
        savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
        *,
        request_key: str | None = None,
    ) -> CheckpointFuture:
        """
        Ask for a savepoint, which neither subsumes checkpoints nor is told to tasks.

        :raises InvalidConfigurationError: without target where there is no default.
        """
        properties = CheckpointProperties.for_savepoint(savepoint_format=savepoint_format)
        return self.trigger_checkpoint(properties, target, request_key=request_key)

    def trigger_synchronous_savepoint(
        self,
        terminate: bool,
        target: str | None = None,
        savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
        *,
        request_key: str | None = None,
    ) -> CheckpointFuture:
        """
        Ask for a savepoint after which tasks wait until they are told that it is complete.

        :param terminate: Whether they come to their end then.
        :raises InvalidConfigurationError: without target where there is no default.
        """
        properties = CheckpointProperties.for_sync_savepoint(terminate=terminate, savepoint_format=savepoint_format)
        return self.trigger_checkpoint(properties, target, request_key=request_key)

    def stop_with_savepoint(
        self,
        terminate: bool,
        target: str | None = None,
        savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
        *,
        fail_job: Callable[[Exception], None],
    ) -> StopWithSavepoint:
        """
        Stop periodic checkpoints and ask for a savepoint with which the job stops.

        The caller says in the answer how the tasks ended, once all of them have.

        :param fail_job: What is done if some task does not finish.
        :raises InvalidConfigurationError: without target where there is no default.
        """
        was_periodic = self.is_periodic_checkpointing_started
        if was_periodic:
            self.stop_checkpoint_scheduler()

        def restart() -> None:
            if was_periodic and not self._is_shut_down:
                self.start_checkpoint_scheduler()

        stop = StopWithSavepoint(restart, fail_job)
        try:
            future = self.trigger_synchronous_savepoint(terminate, target, savepoint_format)
        except InvalidConfigurationError:
            restart()
            raise
        future.add_done_callback(lambda ended: _forward_savepoint(stop, ended))
        return stop

    def future_of(self, request_key: str) -> CheckpointFuture:
        """Return the future of a request that was made here or in another process."""
        return self._future(request_key)

    def receive_acknowledge_message(self, message: AcknowledgeMessage | None, sender: str = "") -> bool:
        """
        Take the part of an operator.

        :param sender: Where it comes from, for people.
        :return: Whether the checkpoint is known here.
        :raises CheckpointException: if the checkpoint cannot be completed.
        """
        if self._is_shut_down or message is None:
            return False
        if message.job_id != self._job_id:
            log.error("Expected acknowledgements of job %s, found one of %s (%s)", self._job_id, message.job_id, sender)
            return False
        with self._components.raising_job_failures():
            try:
                self._expire()
                return self._acknowledgements.acknowledge(message, sender)
            except StaleAttemptError as error:
                log.warning("An acknowledgement is left to the coordinator that leads now: %s", error)
                return False
            finally:
                self._forget_ended_futures()

    def receive_decline_message(self, message: DeclineMessage | None, sender: str = "") -> None:
        """
        Abort the checkpoint of which an operator will not take its part, if it is pending.

        :raises InvalidConfigurationError: if it is of another job.
        """
        if self._is_shut_down or message is None:
            return
        if message.job_id != self._job_id:
            raise InvalidConfigurationError(
                f"Expected declines of job {self._job_id}, found one of {message.job_id} ({sender})."
            )
        with self._components.raising_job_failures():
            try:
                if not self._aborter.abort_one(message.checkpoint_id, message.cause, attempt_id=message.attempt_id):
                    log.debug("Decline of checkpoint %s (%s) changes nothing", message.checkpoint_id, sender)
            except StaleAttemptError as error:
                log.warning("A decline is left to the coordinator that leads now: %s", error)
            self._trigger_next()

    def fail_unacknowledged_for(self, attempt_id: str, cause: Exception) -> None:
        """
        Abort the pending checkpoints that a try of a task has not acknowledged, for it failed.

        :raises CheckpointException: ``IO_EXCEPTION`` if the rows do not answer; repeat it then.
        """
        error = CheckpointException(CheckpointFailureReason.TASK_FAILURE_DURING_CHECKPOINT, cause)

        def chosen(tx: Any) -> list[CheckpointRecord]:
            pending = transitions.of_status(tx, CheckpointStatus.PENDING)
            return [c for c in pending if _is_unacknowledged_by(tx.acknowledgements(c.checkpoint_id), attempt_id)]

        with self._components.raising_job_failures():
            try:
                with as_checkpoint_exception():
                    self._aborter.abort(chosen, error, attempt_id=attempt_id)
            except StaleAttemptError as stale:
                log.warning("The checkpoints of a failed task are left to the coordinator that leads now: %s", stale)
            self._trigger_next()

    def start_checkpoint_scheduler(self) -> None:
        """
        Take checkpoints periodically, whenever :meth:`tick` finds one due; beginning again is beginning anew.

        :raises CoordinatorError: after the shutdown, or if no interval is configured.
        """
        self._require_in_use()
        if self._periodic is None:
            raise CoordinatorError(
                "Expected an interval of periodic checkpoints, found none; set execution.checkpointing.interval."
            )
        self._periodic.start(self._clock.now())

    def stop_checkpoint_scheduler(self) -> None:
        """
        Take no more periodic checkpoints, and abort all that is pending or queued; it may be repeated.

        :raises CheckpointException: ``IO_EXCEPTION`` if the rows do not answer; none is taken periodically all the same.
        """
        if self._periodic is not None:
            self._periodic.stop()
        self._abort_everything(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND)

    def tick(self) -> None:
        """
        Do what time demands: expire, finish what another left, take a periodic checkpoint.

        Like the calls that take the messages of tasks, it raises what the callback raises that fails the job.

        :raises StaleAttemptError: if another leads.
        """
        if self._is_shut_down:
            return
        with self._components.raising_job_failures():
            self._tick()

    def _tick(self) -> None:
        self._expire()
        self._finalizer.take_over()
        if self._periodic is not None and self._periodic.due(self._clock.now()):
            policy = self._components.config.retention_policy
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
        Give tasks their state of the newest completed checkpoint; either all of it fits, or none is given any.

        :param all_or_nothing_state: Whether an operator of which some subtasks have state must have state of all.
        :return: Whether there is a checkpoint.
        :raises CoordinatorError: after the shutdown, or if there is no checkpoint and there has to be one.
        :raises IncompatibleCheckpointError: if its state does not fit.
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
        Begin the job from a snapshot.

        :param pointer: Its directory or metadata file.
        :param restore_mode: Whose it is from then on.
        :raises CoordinatorError: after the shutdown, or if the job has newer checkpoints.
        :raises CheckpointNotFoundError: if there is none.
        :raises IncompatibleCheckpointError: if its state does not fit.
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
        End the completed store with the job; its checkpoints go or stay as their properties say. It may be repeated.

        :param status: How the job ended.
        :raises StateCheckError: if rows or storage do not answer.
        """
        retained_checkpoints.end_with_job(self._components, status)

    def shutdown(self) -> None:
        """Do nothing any more: abort all that is pending or queued, and close the hooks; it may be repeated."""
        with self._lock:
            if self._is_shut_down:
                return
            self._is_shut_down = True
        if self._periodic is not None:
            self._periodic.stop()
        self._components.hooks.close()
        self._abort_everything(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)

    def _abort_everything(self, reason: CheckpointFailureReason) -> None:
        error = CheckpointException(reason)
        try:
            self._abort_all(error)
        except StaleAttemptError as stale:
            log.warning("What is pending is left to the coordinator that leads now: %s", stale)
        self._forget_ended_futures()

    def _abort_all(self, error: CheckpointException) -> None:
        with as_checkpoint_exception():
            self._finalizer.take_over()
            with self._components.transition() as tx:
                for request in tx.open_requests(ALIGNED_OPERATOR_ID):
                    if request.status is RequestStatus.QUEUED:
                        transitions.fail_request(tx, request, error)
                pending = transitions.of_status(tx, CheckpointStatus.PENDING)
                aborted = [transitions.abort(tx, c, error) for c in pending]
        self._aborter.settle(aborted)

    def _ask(
        self, key: str, properties: CheckpointProperties, target: str | None, is_periodic: bool
    ) -> SnapshotRequest:
        if self._is_shut_down:
            raise CheckpointException(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        if not properties.is_savepoint:
            self._ensure_base_locations()
        return self._request_queue.ask(key, properties, target, is_periodic)

    def _ensure_base_locations(self) -> None:
        if not self._has_base_locations:
            self._components.storage.initialize_base_locations_for_checkpoint()
            self._has_base_locations = True

    def _require_ready(self, request: SnapshotRequest) -> None:
        if self._is_shut_down:
            raise CheckpointException(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        if request.is_periodic and not self.is_periodic_checkpointing_started:
            raise CheckpointException(CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN)

    def _require_in_use(self) -> None:
        if self._is_shut_down:
            raise CoordinatorError(
                "Expected a coordinator that is in use, found one that was shut down; make a new one."
            )

    def _rearm(self, delay: timedelta) -> None:
        if self._periodic is not None:
            self._periodic.rearm(delay)

    def _expire(self) -> None:
        with self._components.transition() as tx:
            expired = [c for c in transitions.of_status(tx, CheckpointStatus.PENDING) if c.expires_at <= tx.now]
            error = CheckpointException(CheckpointFailureReason.CHECKPOINT_EXPIRED)
            aborted = [transitions.abort(tx, c, error) for c in expired]
        self._aborter.settle(aborted)

    def _trigger_next(self) -> None:
        """Trigger what may be triggered now; whoever asked for it learns of failures by its future."""
        if not self._is_shut_down:
            try:
                self._trigger.run()
            except Exception:
                log.exception("The queue of checkpoints could not be served; the next call tries again")
        self._forget_ended_futures()

    def _forget_ended_futures(self) -> None:
        with self._lock:
            futures = tuple(self._futures)
        try:
            ended = [future for future in futures if future.done()]
        except StateCheckError as error:
            log.warning("What became of checkpoints is not known yet: %s", error)
            return
        with self._lock:
            self._futures = [future for future in self._futures if future not in ended]

    def _future(self, request_key: str) -> CheckpointFuture:
        return CheckpointFuture(self._components.jobs, self._job_id, request_key, self._load, self._waiter)

    def _load(self, record: CheckpointRecord) -> CompletedCheckpoint:
        metadata = metadata_of(record)
        try:
            content = self._components.storage.read(metadata)
        except CheckpointNotFoundError:
            # It was subsumed since; that it was complete is true all the same.
            content = SnapshotContent()
        return completed_of(record, content, metadata)


def _is_unacknowledged_by(acknowledgements: Sequence[Any], attempt_id: str) -> bool:
    own = transitions.acknowledgement_of(acknowledgements, attempt_id)
    return own is not None and not own.is_acknowledged


def _refusal(error: Exception) -> CheckpointException:
    if isinstance(error, StaleAttemptError):
        return CheckpointException(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, error)
    return failure_of(error)


def _forward_savepoint(stop: StopWithSavepoint, future: CheckpointFuture) -> None:
    try:
        pointer = future.result(0).external_pointer
    except Exception as error:
        stop.handle_savepoint_creation(error=error)
        return
    stop.handle_savepoint_creation(pointer)
