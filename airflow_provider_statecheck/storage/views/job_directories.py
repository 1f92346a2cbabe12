"""The directories of one job, as one of its operators uses them."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.layout import STATE_DIRECTORY, job_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


@dataclass(frozen=True, slots=True)
class JobDirectories:
    """
    Path arithmetic; nothing is made.

    :param base: The checkpoint directory.
    :param attempt: Who writes.
    :param create_subdir: Whether the job gets a directory of its own below the checkpoint directory.
    """

    base: str
    attempt: AttemptRef
    create_subdir: bool = True

    @property
    def job(self) -> str:
        """Return the directory of the job."""
        return job_uri(self.base, self.attempt.job_id) if self.create_subdir else self.base

    @property
    def shared(self) -> str:
        """Return the directory of state that several checkpoints may name."""
        return f"{self.job}/shared"

    @property
    def shared_state(self) -> str:
        """Return where the operator's files of shared state are; each operator cleans up after itself only."""
        return f"{self.shared}/{self.attempt.operator_id}/{STATE_DIRECTORY}"

    @property
    def taskowned(self) -> str:
        """Return the directory of state that belongs to tasks."""
        return f"{self.job}/taskowned"

    @property
    def taskowned_state(self) -> str:
        """Return where the operator's files of such state are."""
        return f"{self.taskowned}/{self.attempt.operator_id}"

    def checkpoint(self, checkpoint_id: int) -> str:
        """
        Return the directory of one checkpoint.

        :raises InvalidConfigurationError: for an id below 0.
        """
        if checkpoint_id < 0:
            raise InvalidConfigurationError(f"Expected a checkpoint id of at least 0, found {checkpoint_id}.")
        return f"{self.job}/chk-{checkpoint_id}"
