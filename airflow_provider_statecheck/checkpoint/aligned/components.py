"""Components of the aligned coordinator, shared by its steps."""

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
from airflow_provider_statecheck.checkpoint.aligned.id_counter import CheckpointIDCounter
from airflow_provider_statecheck.checkpoint.aligned.master_hooks import MasterHooks
from airflow_provider_statecheck.checkpoint.aligned.notifications import CheckpointNotifier
from airflow_provider_statecheck.checkpoint.aligned.operator_coordinators import OperatorCoordinators
from airflow_provider_statecheck.checkpoint.aligned.plan import CheckpointPlanCalculator, ExecutionTask
from airflow_provider_statecheck.checkpoint.aligned.request_decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.rows import CoordinatorRows
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import SnapshotStorage
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import CheckpointException
from airflow_provider_statecheck.checkpoint.messages import AttemptRef

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorComponents:
    """The stores and collaborators of one coordinator; none of them caches rows."""

    rows: CoordinatorRows
    leader: AttemptRef
    name: str
    """The unique name of the coordinator as a finalizer."""
    lease: timedelta
    """The time after which another coordinator may take over a finalization."""
    config: CheckpointConfig
    tasks: Sequence[ExecutionTask]
    """The tasks to notify of the end of a checkpoint while they run."""
    plan_calculator: CheckpointPlanCalculator
    decider: CheckpointRequestDecider
    id_counter: CheckpointIDCounter
    completed_store: CompletedCheckpointStore
    storage: SnapshotStorage
    cleaner: CheckpointsCleaner
    notifier: CheckpointNotifier
    hooks: MasterHooks
    operator_coordinators: OperatorCoordinators
    failure_manager: CheckpointFailureManager
    executor: Executor
    job_failures: list[Exception] = field(default_factory=list)
    """Errors raised by the callback that fails the job; see :meth:`raising_job_failures`."""

    def count_failure(self, error: CheckpointException, **details: Any) -> None:
        """Count a failed checkpoint; :meth:`raising_job_failures` raises an error of the callback that fails the job."""
        try:
            self.failure_manager.handle_checkpoint_exception(error, **details)
        except Exception as failure:
            log.exception("The callback that fails the job raised an error")
            self.job_failures.append(failure)

    @contextmanager
    def raising_job_failures(self) -> Iterator[None]:
        """Run the block, then raise an error of the callback that fails the job, even if the block fails."""
        try:
            yield
        finally:
            if self.job_failures:
                raise self.job_failures.pop(0)
