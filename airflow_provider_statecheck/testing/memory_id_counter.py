"""The count of checkpoint ids in memory, assumed to be right in comparisons."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.coordination.id_counter import JobIDCounter
from airflow_provider_statecheck.checkpoint.store import JobTransaction


class InMemoryCheckpointIDCounter(JobIDCounter):
    """The count of a job in a store that lives as long as the process."""

    def _raise_to(self, tx: JobTransaction, count: int) -> None:
        while tx.job.next_checkpoint_id < count:
            tx.draw_checkpoint_id()
