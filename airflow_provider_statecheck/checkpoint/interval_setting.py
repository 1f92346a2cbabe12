"""How much time lies between two checkpoints, as it is configured: a duration, or ``auto``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig

AUTO = "auto"
"""The interval is found by what checkpoints cost and how often the job failed."""


def parse_interval(key: str, value: Any) -> timedelta | str:
    """
    Read a duration, or ``auto`` in any case.

    :param key: What to call it in the error.
    :raises InvalidConfigurationError: for anything else, naming key and value.
    """
    if isinstance(value, str) and value.strip().lower() == AUTO:
        return AUTO
    interval: timedelta = CheckpointConfig.checkpoint_interval.checked(key, value)  # type: ignore[assignment]
    return interval
