"""How a command ends: an exit status and, for an error, one line."""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from collections.abc import Callable
from enum import IntEnum

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
    UnknownStateError,
)


class Exit(IntEnum):
    """The exit status of a command."""

    DONE = 0
    FOUND = 1
    """Something is not as it should be."""
    USAGE = 2
    """Wrong arguments, or there is no such job, checkpoint or state."""
    UNAVAILABLE = 3
    """Storage or database did not answer."""


# The first class that fits decides.
_EXITS: tuple[tuple[type[StateCheckError], Exit], ...] = (
    (CorruptStateError, Exit.FOUND),
    (StorageError, Exit.UNAVAILABLE),
    (CoordinatorUnavailableError, Exit.UNAVAILABLE),
    (CommitStateUnknownError, Exit.UNAVAILABLE),
    (EnvironmentNotReadyError, Exit.UNAVAILABLE),
    (CheckpointNotFoundError, Exit.USAGE),
    (UnknownStateError, Exit.USAGE),
    (InvalidConfigurationError, Exit.USAGE),
)


def command(run: Callable[[Namespace], Exit]) -> Callable[[Namespace], None]:
    """Make a function one that Airflow can call: its result becomes the exit status, an error one line on stderr."""

    @functools.wraps(run)
    def wrapped(args: Namespace) -> None:
        try:
            status = run(args)
        except StateCheckError as error:
            tell(f"error: {error}")
            status = exit_of(error)
        if status is not Exit.DONE:
            raise SystemExit(int(status))

    return wrapped


def audited(run: Callable[[Namespace], Exit]) -> Callable[[Namespace], Exit]:
    """Let Airflow's audit log say who ran a command that removes something, and how."""
    from airflow.utils.cli import action_cli

    # Our own tables are what counts; a missing one is told in one line.
    wrapped: Callable[[Namespace], Exit] = action_cli(check_db=False)(run)
    return wrapped


def exit_of(error: StateCheckError) -> Exit:
    """Return the exit status for an error."""
    return next((status for kind, status in _EXITS if isinstance(error, kind)), Exit.FOUND)


def tell(message: str) -> None:
    """Write one line for people."""
    sys.stderr.write(" ".join(message.split()) + "\n")
