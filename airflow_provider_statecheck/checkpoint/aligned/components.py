"""Components of the aligned coordinator, as its steps use them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.cleaner import CheckpointsCleaner
from airflow_provider_statecheck.checkpoint.aligned.completed_store import CompletedCheckpointStore
from airflow_provider_statecheck.checkpoint.aligned.failure_manager import CheckpointFailureManager
from airflow_provider_statecheck.checkpoint.aligned.id_counter import JobIDCounter
from airflow_provider_statecheck.checkpoint.aligned.master_hooks import MasterHooks
from airflow_provider_statecheck.checkpoint.aligned.notifications import CheckpointNotifier
from airflow_provider_statecheck.checkpoint.aligned.operator_coordinators import OperatorCoordinators
from airflow_provider_statecheck.checkpoint.aligned.plan import CheckpointPlanCalculator, ExecutionTask
from airflow_provider_statecheck.checkpoint.aligned.request_decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.shared_state_registry import SharedStateRegistry
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import SnapshotStorage
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import CheckpointException
from airflow_provider_statecheck.checkpoint.fencing import require_running
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorComponents:
    """The rows, the storage and the collaborators of one coordinator; none of them remembers what rows say."""

    jobs: JobStore
    leader: AttemptRef
    name: str
    """In whose name checkpoints are finalized; each coordinator has its own."""
    lease: timedelta
    """How long whoever finalizes a checkpoint may be silent."""
    config: CheckpointConfig
    tasks: Sequence[ExecutionTask]
    """Those that are told how a checkpoint ended, while they run."""
    plan_calculator: CheckpointPlanCalculator
    decider: CheckpointRequestDecider
    id_counter: JobIDCounter
    completed_store: CompletedCheckpointStore
    registry: SharedStateRegistry
    storage: SnapshotStorage
    cleaner: CheckpointsCleaner
    notifier: CheckpointNotifier
    hooks: MasterHooks
    operator_coordinators: OperatorCoordinators
    failure_manager: CheckpointFailureManager
    executor: Executor
    job_failures: list[Exception] = field(default_factory=list)
    """What was raised in failing the job; the call that came upon it raises it when all else is done."""

    def count_failure(self, error: CheckpointException, **facts: Any) -> None:
        """Count a failed checkpoint; what is raised in failing the job is kept for :meth:`raising_job_failures`."""
        try:
            self.failure_manager.handle_checkpoint_exception(error, **facts)
        except Exception as failure:
            log.exception("The job could not be failed, or fails by this")
            self.job_failures.append(failure)

    @contextmanager
    def raising_job_failures(self) -> Iterator[None]:
        """Raise what was raised in failing the job, whatever else went wrong."""
        try:
            yield
        finally:
            if self.job_failures:
                raise self.job_failures.pop(0)

    @contextmanager
    def transition(self) -> Iterator[JobTransaction]:
        """
        Begin a transition of the job in the name of its leader.

        :raises StaleAttemptError: if another leads.
        """
        with self.jobs.transaction(self.leader.job_id) as tx:
            require_running(tx, self.leader)
            yield tx
