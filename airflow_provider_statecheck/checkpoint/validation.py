"""Ranges of what a stage may ask for; one place for the coordinator and for settings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

LONGEST_CHECKPOINT = timedelta(days=366)
"""No checkpoint may be given more time; a database has no room for the end of a longer one."""
HIGHEST_ID = 10_000_000
"""The highest checkpoint id that is taken from the name of a directory; anything above was not drawn by a coordinator."""


def require(key: str, value: Any, is_valid: Callable[[Any], bool], expected: str) -> None:
    """
    Refuse a setting that is out of range.

    :raises InvalidConfigurationError: naming the key, the value and what is expected.
    """
    if not is_valid(value):
        raise InvalidConfigurationError(f"Expected {key} to be {expected}, found {value!r}.", key=key, value=value)


def require_metadata_in(directory: str, metadata_uri: str) -> None:
    """
    Refuse metadata that lie elsewhere than in the directory of their checkpoint.

    :raises InvalidConfigurationError: naming both.
    """
    expected = f"{directory}/{METADATA_FILE}"
    require("metadata_uri", metadata_uri, lambda uri: uri == expected, expected)


def require_valid(request: RegisterAttempt) -> None:
    """
    Check the settings of a registration.

    :raises InvalidConfigurationError: for the first one that is out of range.
    """
    require("newest_on_storage", request.newest_on_storage, lambda i: 0 <= i <= HIGHEST_ID, f"0 to {HIGHEST_ID}")
    require("num_retained", request.num_retained, lambda n: n >= 1, "at least 1")
    require("retained_runs", request.retained_runs, lambda n: n >= 0, "0 or more")
    require(
        "checkpoint_timeout_seconds",
        request.checkpoint_timeout_seconds,
        lambda s: 0.01 <= s <= LONGEST_CHECKPOINT.total_seconds(),
        "from 0.01 seconds to a year",
    )
    require("checkpoint_dir", request.storage_base, lambda uri: "://" in uri, "a URI such as file:///data/checkpoints")
