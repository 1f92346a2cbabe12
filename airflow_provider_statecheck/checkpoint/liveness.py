"""Whether the task of an attempt still runs, as far as somebody can tell."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.checkpoint.records import AttemptOwner


class TaskLiveness(Protocol):
    """Answers for the system that runs tasks."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Tell whether the owner's task is known to run at this moment."""
        ...


class UnknownLiveness:
    """Outside Airflow nobody knows, and a newer attempt always fences an older one."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Return ``False``: an attempt is not known to run."""
        return False
