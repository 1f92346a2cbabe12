"""What the coordinator of aligned checkpoints is made of, as its steps see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.coordination.cleaner import CheckpointsCleaner
from airflow_provider_statecheck.checkpoint.coordination.completed_store import CompletedCheckpointStore
from airflow_provider_statecheck.checkpoint.coordination.failure_manager import CheckpointFailureManager
from airflow_provider_statecheck.checkpoint.coordination.id_counter import JobIDCounter
from airflow_provider_statecheck.checkpoint.coordination.master_hooks import MasterHooks
from airflow_provider_statecheck.checkpoint.coordination.notifications import CheckpointNotifier
from airflow_provider_statecheck.checkpoint.coordination.operator_coordinators import OperatorCoordinators
from airflow_provider_statecheck.checkpoint.coordination.plan import CheckpointPlanCalculator, ExecutionTask
from airflow_provider_statecheck.checkpoint.coordination.request_decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.coordination.shared_registry import SharedStateRegistry
from airflow_provider_statecheck.checkpoint.coordination.snapshot_storage import SnapshotStorage
from airflow_provider_statecheck.checkpoint.fence import require_running
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorParts:
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

    @contextmanager
    def transition(self) -> Iterator[JobTransaction]:
        """
        Begin a transition of the job in the name of its leader.

        :raises StaleAttemptError: if another leads.
        """
        with self.jobs.transaction(self.leader.job_id) as tx:
            require_running(tx, self.leader)
            yield tx
