"""Triggering of checkpoints, on request and periodically."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from random import Random

from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedContent, CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortScope,
    AwaitedTask,
    BeginCheckpoint,
)
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointOptions,
    CheckpointStorageLocationReference,
    CheckpointType,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointRequest, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, OperatorState
from airflow_provider_statecheck.flink.completion import CoordinatorSteps
from airflow_provider_statecheck.flink.components import CoordinatorComponents
from airflow_provider_statecheck.flink.contents import coordinator_content
from airflow_provider_statecheck.flink.plan import CheckpointPlan

log = logging.getLogger(__name__)


class CheckpointTrigger:
    """
    Triggers the checkpoints of queued requests.

    :param require_ready: A callback that raises a ``CheckpointException`` if a request must not be triggered now.
    :param rearm: A callback with the delay before the next periodic checkpoint.
    """

    def __init__(
        self,
        components: CoordinatorComponents,
        steps: CoordinatorSteps,
        require_ready: Callable[[CheckpointRequest], None],
        rearm: Callable[[timedelta], None],
    ) -> None:
        self._components = components
        self._steps = steps
        self._require_ready = require_ready
        self._rearm = rearm

    def run(self) -> None:
        """
        Trigger all checkpoints that may start now.

        :raises StaleAttemptError: if another leader has taken over.
        """
        while self._next():
            pass

    def _next(self) -> bool:
        components = self._components
        choice = components.rows.choose(components.leader, components.decider, components.cleaner.cleanings)
        if choice.retry_in_seconds is not None:
            self._rearm(timedelta(seconds=choice.retry_in_seconds))
        for dropped in choice.dropped:
            early = CheckpointException(CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)
            # Another process of the leader may have begun the request since.
            self._steps.refuse(dropped, early, AbortScope.QUEUED)
        if choice.run is None:
            return bool(choice.dropped)
        self._serve(choice.run)
        return True

    def _serve(self, request: CheckpointRequest) -> None:
        with self._steps.refusing(request):
            self._require_ready(request)
            plan = self._components.plan_calculator.calculate()
            checkpoint = self._begin(request, plan)
            if checkpoint is not None:
                self._steps.trigger(checkpoint, partial(self._trigger, checkpoint, plan, request))

    def _begin(self, request: CheckpointRequest, plan: CheckpointPlan) -> CheckpointRecord | None:
        components, properties = self._components, request.properties
        parent = components.storage.savepoint_parent(request.target) if properties.is_savepoint else None
        is_full = not properties.is_savepoint and self._must_be_full()
        message = BeginCheckpoint(
            leader=components.leader,
            decider=components.decider,
            cleanings=components.cleaner.cleanings,
            request_key=request.request_key,
            coordinator=self._steps.name,
            awaited=tuple(_awaited(plan)),
            timeout_seconds=components.config.timeout.total_seconds(),
            is_full=is_full,
            savepoint_dir=parent,
        )
        return components.rows.begin(message)

    def _must_be_full(self) -> bool:
        # The owner of what was restored without a claim may delete its files.
        self._components.completed_store.recover()
        retained = self._components.completed_store.get_all_checkpoints()
        foreign = max((c.checkpoint_id for c in retained if c.properties.unclaimed), default=0)
        full = (c.checkpoint_id for c in retained if c.properties.snapshot_type is CheckpointType.FULL_CHECKPOINT)
        return foreign > max(full, default=0)

    def _latest(self) -> CompletedCheckpoint | None:
        self._components.completed_store.recover()
        return self._components.completed_store.get_latest_checkpoint()

    def _trigger(
        self, checkpoint: CheckpointRecord, plan: CheckpointPlan, request: CheckpointRequest
    ) -> FileStateHandle | None:
        # A shutdown meanwhile has not aborted a checkpoint that began after it.
        self._require_ready(request)
        manifest = self._write_coordinator_manifest(checkpoint, plan)
        self._require_pending(checkpoint)
        options = options_of(checkpoint)
        for task in plan.tasks_to_trigger:
            task.trigger_checkpoint(checkpoint.checkpoint_id, checkpoint.triggered_at, options)
        return manifest

    def _write_coordinator_manifest(self, checkpoint: CheckpointRecord, plan: CheckpointPlan) -> FileStateHandle | None:
        components, checkpoint_id, timeout = self._components, checkpoint.checkpoint_id, self._components.config.timeout
        components.storage.initialize_location(checkpoint.location)
        coordinators = components.operator_coordinators.checkpoint(checkpoint_id, timeout)
        try:
            masters = components.hooks.trigger(checkpoint_id, checkpoint.triggered_at, components.executor, timeout)
            restored = self._restored(checkpoint, plan)
            content = coordinator_content(checkpoint, plan, restored, coordinators, masters)
            return None if content == AlignedContent() else components.storage.write_manifest(checkpoint, content)
        except Exception:
            components.operator_coordinators.abort_current_triggering()
            raise

    def _restored(self, checkpoint: CheckpointRecord, plan: CheckpointPlan) -> dict[OperatorId, OperatorState]:
        """Return the states of operators that have not started, copied for full checkpoints and savepoints."""
        found = self._latest() if plan.not_started else None
        waiting = {task.operator_id for task in plan.not_started}
        states = [] if found is None else [s for i, s in found.operator_states.items() if i in waiting]
        is_self_contained = checkpoint.properties.snapshot_type is not CheckpointType.CHECKPOINT
        copied = self._components.storage.copy_state(checkpoint, states) if is_self_contained and states else states
        return {state.operator_id: state for state in copied}

    def _require_pending(self, checkpoint: CheckpointRecord) -> None:
        # Coordinators, hooks and copies may have taken longer than the timeout; tasks would write state in vain.
        self._steps.expire()
        row = self._components.rows.checkpoint(checkpoint.job_id, checkpoint.checkpoint_id)
        if row is None or row.status is not CheckpointStatus.PENDING:
            raise CheckpointException(CheckpointFailureReason.CHECKPOINT_EXPIRED)


def _awaited(plan: CheckpointPlan) -> Iterator[AwaitedTask]:
    for task in plan.finished_tasks:
        yield AwaitedTask(operator_id=task.operator_id, attempt_id=task.attempt_id, is_finished=True)
    for task in plan.tasks_to_wait_for:
        yield AwaitedTask(operator_id=task.operator_id, attempt_id=task.attempt_id)


def options_of(checkpoint: CheckpointRecord) -> CheckpointOptions:
    """Return the checkpoint options for the tasks."""
    kind = checkpoint.properties.snapshot_type
    if kind is CheckpointType.CHECKPOINT:
        return CheckpointOptions.for_checkpoint_with_default_location()
    if not kind.is_savepoint:
        return CheckpointOptions(kind, CheckpointStorageLocationReference.default())
    return CheckpointOptions(kind, CheckpointStorageLocationReference.of_path(checkpoint.location))


class PeriodicTrigger:
    """
    Trigger with a fixed interval.

    A random delay before the first firing distributes the checkpoints of jobs that start together. Missed firings are
    skipped: after a long gap the trigger fires once and then continues its schedule.

    :param interval: The time between two firings; a longer ``min_pause`` replaces it.
    :param min_pause: The shortest delay before the first firing.
    :param random: The source of the delay.
    :raises InvalidConfigurationError: if the interval is not positive or the pause is negative.
    """

    def __init__(self, interval: timedelta, min_pause: timedelta, random: Random) -> None:
        require("interval", interval, lambda length: length > timedelta(0), "longer than 0")
        require("min_pause", min_pause, lambda pause: pause >= timedelta(0), "0 or longer")
        self._interval = max(interval, min_pause)
        self._min_pause = min_pause
        self._random = random
        self.next_fire_at: datetime | None = None
        """Time of the next firing; ``None`` while the trigger is stopped."""

    @property
    def is_started(self) -> bool:
        """Whether the trigger is started."""
        return self.next_fire_at is not None

    def start(self, now: datetime) -> None:
        """Start or restart the trigger with a random delay."""
        delay = self._random.uniform(self._min_pause.total_seconds(), self._interval.total_seconds())
        self.next_fire_at = now + timedelta(seconds=delay)

    def stop(self) -> None:
        """Stop the trigger until it is started again."""
        self.next_fire_at = None

    def due(self, now: datetime) -> bool:
        """Return whether a checkpoint is due and advance the schedule."""
        if self.next_fire_at is None:
            return False
        # The next firing is more than one interval ahead only if the clock was set back.
        self.next_fire_at = min(self.next_fire_at, now + self._interval)
        if now < self.next_fire_at:
            return False
        missed = (now - self.next_fire_at) // self._interval
        self.next_fire_at += (missed + 1) * self._interval
        return True

    def rearm(self, now: datetime, delay: timedelta) -> None:
        """Fire next after the delay and then in the fixed interval; no effect on a stopped trigger."""
        if self.next_fire_at is not None:
            self.next_fire_at = now + delay
