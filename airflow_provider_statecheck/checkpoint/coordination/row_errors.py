"""Errors of rows and storage, told as whoever asks for checkpoints expects them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.exceptions import StaleAttemptError, StateCheckError


@contextmanager
def as_checkpoint_exception() -> Iterator[None]:
    """
    Give an error of rows or storage a reason.

    :raises CheckpointException: ``IO_EXCEPTION`` with the error as its cause; one that has a reason stays as it is.
    :raises StaleAttemptError: if another leads.
    """
    try:
        yield
    except (CheckpointException, StaleAttemptError):
        raise
    except StateCheckError as error:
        raise CheckpointException(CheckpointFailureReason.IO_EXCEPTION, error) from error
