"""Who writes merged files, and in which directory of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_SPECIAL = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskKey:
    """One parallel part of an operator; another parallelism makes it another one."""

    job_id: JobId
    operator_id: OperatorId
    subtask_index: int
    parallelism: int

    def __post_init__(self) -> None:
        if not 0 <= self.subtask_index < self.parallelism:
            raise InvalidConfigurationError(
                f"Expected a subtask index from 0 to before the parallelism {self.parallelism}, found {self.subtask_index}."
            )

    @property
    def managed_directory(self) -> str:
        """Return where below ``shared`` its files are: ``<operator id>/merged-<index>-<parallelism>``."""
        return f"{self.operator_id}/merged-{self.subtask_index}-{self.parallelism}"


def manager_id(job_id: JobId, executor_id: str) -> str:
    """
    Return the name of the directory below ``taskowned`` of one executor process.

    :param executor_id: Any text that no other process of the job has; what directories may not hold becomes ``_``.
    :raises InvalidConfigurationError: if it is empty.
    """
    if not executor_id.strip():
        raise InvalidConfigurationError("Expected the id of an executor process, found none.")
    return f"job_{job_id}_tm_{_SPECIAL.sub('_', executor_id)}"
