"""Making a backend from restored state, or saying why that cannot be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from airflow_provider_statecheck.exceptions import (
    BackendRestoreError,
    InvalidConfigurationError,
    StateCheckError,
    StateMigrationError,
)

Backend = TypeVar("Backend")
Handles = TypeVar("Handles")


@contextlib.contextmanager
def restoring(operator_identifier: str) -> Iterator[None]:
    """
    Let failures say that a backend could not be restored.

    :param operator_identifier: Whose backend.
    :raises BackendRestoreError: in place of another error; not of arguments or types that no other copy would cure.
    """
    try:
        yield
    except (BackendRestoreError, InvalidConfigurationError, StateMigrationError):
        raise
    except (StateCheckError, OSError) as error:
        raise BackendRestoreError(
            f"The state backend of {operator_identifier} could not be restored: {error}", failures=(error,)
        ) from error


def restore_first(alternatives: Sequence[Handles], create: Callable[[Handles], Backend]) -> Backend:
    """
    Return the backend of the first set of handles that can be restored, such as a local copy and then the remote one.

    :param alternatives: Sets of handles that lead to the same state, at least one.
    :param create: Makes a backend from one of them.
    :raises BackendRestoreError: if none can, with all that failed.
    """
    failures: list[BackendRestoreError] = []
    for handles in alternatives:
        try:
            return create(handles)
        except BackendRestoreError as error:
            failures.append(error)
    reasons = "; ".join(f"{number}. {error}" for number, error in enumerate(failures, 1)) or "there are no handles"
    raise BackendRestoreError(
        f"The state backend could not be restored from any of {len(failures)} sets of handles: {reasons}",
        failures=tuple(failures),
    )
