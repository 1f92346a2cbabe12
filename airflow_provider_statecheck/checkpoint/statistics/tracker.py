"""Statistics for whoever coordinates in process: Flink's ``CheckpointStatsTracker``, with rows for a memory."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.coordination.failure_manager import root_cause
from airflow_provider_statecheck.checkpoint.failure import CheckpointException
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus
from airflow_provider_statecheck.checkpoint.statistics import recording
from airflow_provider_statecheck.checkpoint.statistics.entries import kept_cause
from airflow_provider_statecheck.checkpoint.statistics.operator_statistics import HISTORY_SIZE
from airflow_provider_statecheck.checkpoint.statistics.snapshot import CheckpointStatsSnapshot, snapshot_of
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
from airflow_provider_statecheck.checkpoint.validation import require
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError


class CheckpointStatsTracker:
    """
    The statistics of one operator, or of the checkpoints of several.

    Completions and aborts are counted with their rows; a report adds what the row does not tell. Each report may be
    repeated.

    :param store: The rows.
    :param job_id: The job.
    :param operator_id: The operator.
    :param history_size: How many checkpoints a snapshot tells one by one, from 0 to as many as are remembered.
    :raises InvalidConfigurationError: for another number.
    """

    def __init__(
        self, store: JobStore, job_id: JobId, operator_id: OperatorId, *, history_size: int = HISTORY_SIZE
    ) -> None:
        require("history_size", history_size, lambda n: 0 <= n <= HISTORY_SIZE, f"from 0 to {HISTORY_SIZE}")
        self._store = store
        self._job_id = job_id
        self._operator_id = operator_id
        self._history_size = history_size
        self._latest: tuple[int, CheckpointStatsSnapshot] | None = None

    def report_failed_checkpoint(self, checkpoint_id: int, error: CheckpointException) -> None:
        """Remember the root cause of a failed checkpoint; one of which nobody knows counts as one without id."""
        with self._store.transaction(self._job_id) as tx:
            self._count_once(tx, checkpoint_id, error)
            if error.__cause__ is not None:
                self._tell_cause(tx, checkpoint_id, error)

    def report_failed_checkpoint_without_in_progress(self, error: CheckpointException) -> None:
        """Count a checkpoint that failed before it had an id; unlike all others, each report counts."""
        with self._store.transaction(self._job_id) as tx:
            self._reject(tx, error)

    def create_snapshot(self) -> CheckpointStatsSnapshot:
        """
        Return the statistics as they stand; the same object as long as the job does not change.

        :raises CheckpointNotFoundError: if there is no such job or operator.
        """
        view = self._store.describe(self._job_id)
        if self._latest is None or self._latest[0] != view.job.version:
            operator = next((o for o in view.operators if o.operator_id == self._operator_id), None)
            if operator is None:
                raise CheckpointNotFoundError(
                    f"Job {view.job.name!r} has no operator {self._operator_id}; name one that it has."
                )
            snapshot = snapshot_of(view, operator, history_size=self._history_size)
            self._latest = (view.job.version, snapshot)
        return self._latest[1]

    def _count_once(self, tx: JobTransaction, checkpoint_id: int, error: CheckpointException) -> None:
        if recording.load(tx, self._operator_id).has_counted(checkpoint_id):
            return
        row = tx.checkpoint(checkpoint_id)
        if row is None or row.operator_id != self._operator_id:
            self._reject(tx, error)
        elif row.status is CheckpointStatus.ABORTED:
            recording.ended(tx, row)

    def _tell_cause(self, tx: JobTransaction, checkpoint_id: int, error: CheckpointException) -> None:
        known = recording.load(tx, self._operator_id)
        changed = known.annotated(checkpoint_id, failure_cause=kept_cause(root_cause(error)))
        if changed != known:
            recording.save(tx, self._operator_id, changed)

    def _reject(self, tx: JobTransaction, error: CheckpointException) -> None:
        known = recording.load(tx, self._operator_id)
        recording.save(tx, self._operator_id, known.rejected_once(error.reason.value))
