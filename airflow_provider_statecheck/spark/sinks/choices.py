"""Choices that sinks have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

OnEarlierOutput = Literal["retract", "refuse"]
"""What a fresh start does with the output of earlier ones."""


def require_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """
    Refuse an argument that is none of the choices.

    :raises InvalidConfigurationError: Says which there are.
    """
    if value not in allowed:
        raise InvalidConfigurationError(f"Expected {name} to be one of {', '.join(allowed)}, found {value!r}.")
