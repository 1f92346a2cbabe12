"""Triggering checkpoints, one at a time, as the queue of requests allows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType
from airflow_provider_statecheck.checkpoint.coordination import aligned_rows
from airflow_provider_statecheck.checkpoint.coordination.aborting import Aborting
from airflow_provider_statecheck.checkpoint.coordination.finalization import Finalization
from airflow_provider_statecheck.checkpoint.coordination.leadership import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.coordination.parts import CoordinatorParts
from airflow_provider_statecheck.checkpoint.coordination.plan import CheckpointPlan
from airflow_provider_statecheck.checkpoint.coordination.request_decider import Choice
from airflow_provider_statecheck.checkpoint.coordination.retained import latest, must_be_full
from airflow_provider_statecheck.checkpoint.coordination.snapshot_contents import coordinator_content
from airflow_provider_statecheck.checkpoint.coordination.snapshot_storage import SnapshotContent, StoredFile
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.location_reference import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.options import CheckpointOptions
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.requests import SnapshotRequest
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import StaleAttemptError, StorageError

log = logging.getLogger(__name__)


class Triggering:
    """
    Takes requests from the queue and starts their checkpoints.

    :param parts: What the coordinator is made of.
    :param require_ready: Raises a ``CheckpointException`` if a request may not be served now.
    :param rearm: Is given the time after which periodic checkpoints may go on.
    """

    def __init__(
        self,
        parts: CoordinatorParts,
        aborting: Aborting,
        finalization: Finalization,
        require_ready: Callable[[SnapshotRequest], None],
        rearm: Callable[[timedelta], None],
    ) -> None:
        self._parts = parts
        self._aborting = aborting
        self._finalization = finalization
        self._require_ready = require_ready
        self._rearm = rearm

    def run(self) -> None:
        """
        Trigger whatever may be triggered now.

        :raises StaleAttemptError: if another leads.
        """
        while self._next():
            pass

    def _next(self) -> bool:
        with self._parts.transition() as tx:
            choice = self._choose(tx)
            self._drop(tx, choice)
        if choice.retry_in is not None:
            self._rearm(choice.retry_in)
        for dropped in choice.dropped:
            early = CheckpointException(CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)
            self._parts.count_failure(early, properties=dropped.properties)
        if choice.run is None:
            return bool(choice.dropped)
        self._serve(choice.run)
        return True

    def _choose(self, tx: JobTransaction) -> Choice:
        return self._parts.decider.choose(
            tx.open_requests(ALIGNED_OPERATOR_ID),
            is_triggering=aligned_rows.is_triggering(tx),
            pending_count=len(aligned_rows.in_progress(tx)),
            cleanings=self._parts.cleaner.cleanings,
            last_completed_at=aligned_rows.last_completed_at(tx),
            now=tx.now,
        )

    def _drop(self, tx: JobTransaction, choice: Choice) -> None:
        error = CheckpointException(CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)
        for request in choice.dropped:
            aligned_rows.fail_request(tx, request, error)

    def _serve(self, request: SnapshotRequest) -> None:
        try:
            self._require_ready(request)
            plan = self._parts.plan_calculator.calculate()
            begun = self._begin(request, plan)
        except StaleAttemptError:
            raise
        except Exception as error:
            self._refuse(request, failure_of(error))
            return
        if begun is not None:
            self._trigger(begun, plan)

    def _begin(self, request: SnapshotRequest, plan: CheckpointPlan) -> CheckpointRecord | None:
        request = self._with_obligations(request)
        savepoint = None
        if request.properties.is_savepoint:
            savepoint = self._parts.storage.new_savepoint_location(request.target)
        with self._parts.transition() as tx:
            chosen = self._choose(tx).run
            if chosen is None or chosen.request_key != request.request_key:
                return None
            checkpoint_id = self._parts.id_counter.draw(tx)
            self._require_ready(request)
            location = savepoint or self._parts.storage.checkpoint_location(checkpoint_id)
            timeout = self._parts.config.timeout
            return aligned_rows.begin(tx, self._parts.leader, request, plan, checkpoint_id, location, timeout)

    def _with_obligations(self, request: SnapshotRequest) -> SnapshotRequest:
        if request.properties.is_savepoint or not must_be_full(self._parts):
            return request
        full = replace(request.properties, snapshot_type=CheckpointType.FULL_CHECKPOINT)
        return replace(request, properties=full)

    def _refuse(self, request: SnapshotRequest, error: CheckpointException) -> None:
        with self._parts.transition() as tx:
            found = tx.request(request.request_key)
            begun = found.checkpoint_id if found is not None else None
            if begun is None:
                aligned_rows.fail_request(tx, request, error)
        if begun is None:
            self._parts.count_failure(error, properties=request.properties)
        else:
            # The transition that seemed to fail had its effect.
            self._aborting.abort_one(begun, error)

    def _trigger(self, checkpoint: CheckpointRecord, plan: CheckpointPlan) -> None:
        try:
            manifest = self._save_own_part(checkpoint, plan)
            self._tell(checkpoint, plan)
            finalizing = self._acknowledge(checkpoint, manifest)
        except StaleAttemptError:
            raise
        except Exception as error:
            log.warning("Checkpoint %s could not be triggered", checkpoint.checkpoint_id, exc_info=True)
            self._aborting.abort_one(checkpoint.checkpoint_id, failure_of(error))
            return
        if finalizing is not None:
            self._finalization.try_finalize(finalizing)

    def _save_own_part(self, checkpoint: CheckpointRecord, plan: CheckpointPlan) -> StoredFile | None:
        parts, number, timeout = self._parts, checkpoint.checkpoint_id, self._parts.config.timeout
        parts.storage.initialize_location(checkpoint.location)
        coordinators = parts.operator_coordinators.checkpoint(number, timeout)
        try:
            masters = parts.hooks.trigger(number, checkpoint.triggered_at, parts.executor, timeout)
            restored = self._restored(checkpoint, plan)
            content = coordinator_content(checkpoint, plan, restored, coordinators, masters)
            return None if content == SnapshotContent() else parts.storage.write_manifest(checkpoint, content)
        except Exception:
            parts.operator_coordinators.abort_current_triggering()
            raise

    def _restored(self, checkpoint: CheckpointRecord, plan: CheckpointPlan) -> dict[OperatorId, OperatorState]:
        """Return the state of operators that have not begun; one that may name no foreign file gets copies."""
        found = latest(self._parts) if plan.not_started else None
        waiting = {task.operator_id for task in plan.not_started}
        states = [] if found is None else [s for i, s in found.operator_states.items() if i in waiting]
        is_self_contained = checkpoint.properties.snapshot_type is not CheckpointType.CHECKPOINT
        kept = self._parts.storage.copy_state(checkpoint, states) if is_self_contained and states else states
        return {state.operator_id: state for state in kept}

    def _tell(self, checkpoint: CheckpointRecord, plan: CheckpointPlan) -> None:
        options = options_of(checkpoint)
        for task in plan.tasks_to_trigger:
            task.trigger_checkpoint(checkpoint.checkpoint_id, checkpoint.triggered_at, options)

    def _acknowledge(self, checkpoint: CheckpointRecord, manifest: StoredFile | None) -> CheckpointRecord | None:
        with self._parts.transition() as tx:
            found = tx.checkpoint(checkpoint.checkpoint_id)
            if found is None or found.status is not CheckpointStatus.PENDING:
                return None
            parts = tx.acknowledgements(checkpoint.checkpoint_id)
            own = next(part for part in parts if part.operator_id == ALIGNED_OPERATOR_ID)
            if manifest is not None:
                own = replace(
                    own, manifest_uri=manifest.uri, manifest_size=manifest.size, manifest_sha256=manifest.sha256
                )
            tx.save_acknowledgement(replace(own, acknowledged_at=tx.now))
            name, lease = self._parts.name, self._parts.lease
            return aligned_rows.finalize_if_complete(tx, checkpoint.checkpoint_id, name, lease)


def options_of(checkpoint: CheckpointRecord) -> CheckpointOptions:
    """Return what tasks are told of a checkpoint."""
    kind = checkpoint.properties.snapshot_type
    if kind is CheckpointType.CHECKPOINT:
        return CheckpointOptions.for_checkpoint_with_default_location()
    if not kind.is_savepoint:
        return CheckpointOptions(kind, CheckpointStorageLocationReference.default())
    return CheckpointOptions(kind, CheckpointStorageLocationReference.of_path(checkpoint.location))


def failure_of(error: BaseException) -> CheckpointException:
    """Return with which reason a checkpoint fails that could not be triggered."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    if any(isinstance(each, StorageError | OSError) for each in chain):
        return CheckpointException(CheckpointFailureReason.IO_EXCEPTION, error)
    known = next((each for each in chain if isinstance(each, CheckpointException)), None)
    return known or CheckpointException(CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE, error)
