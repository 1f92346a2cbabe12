"""A fresh job for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.stages.stage_tries import StageTries


@pytest.fixture
def tries(spark: Any, tmp_path: Path) -> StageTries:
    return StageTries(spark, tmp_path)
