"""How many failed checkpoints a stage bears: by default any number, each with a warning."""

from __future__ import annotations

import logging

from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, StateCheckError

log = logging.getLogger(__name__)

UNLIMITED = -1


class FailedCheckpoints:
    """
    Counts checkpoints that failed one after another; a thin ``CheckpointFailureManager``.

    :param tolerable: How many may fail in a row; ``-1`` for any number.
    """

    def __init__(self, tolerable: int = UNLIMITED) -> None:
        self._tolerable = tolerable
        self._failed = 0

    def succeeded(self) -> None:
        """Start counting anew."""
        self._failed = 0

    def failed(self, error: StateCheckError) -> None:
        """
        Count a failure and say so.

        :raises CheckpointDeclinedError: if it is one too many; its cause is the last failure.
        """
        self._failed += 1
        if self._tolerable != UNLIMITED and self._failed > self._tolerable:
            raise CheckpointDeclinedError(
                f"{self._failed} checkpoints in a row failed, tolerable_failed_checkpoints is {self._tolerable}; "
                f"the last one: {error}"
            ) from error
        log.warning("A checkpoint failed, the stage goes on without it: %s", error)
