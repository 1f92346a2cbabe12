"""How much time lies between two checkpoints, as people write it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.config import AUTO, parse_interval
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


@pytest.mark.parametrize(
    ("given", "interval"),
    [("auto", AUTO), (" AUTO", AUTO), ("5 min", timedelta(minutes=5)), (10, timedelta(0, 0, 10_000))],
)
def test_interval_is_a_duration_or_found(given: Any, interval: Any) -> None:
    assert parse_interval("checkpoint_interval", given) == interval


@pytest.mark.parametrize("given", ["automatic", 9, "", "-1 s", True])
def test_anything_else_is_refused_by_its_name(given: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected checkpoint_interval"):
        parse_interval("checkpoint_interval", given)
