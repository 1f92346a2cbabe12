from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.context import StageContext


def test_script_may_not_take_the_name_of_a_test_run(tmp_path: Path) -> None:
    """Maintenance removes those without asking how old they are."""
    spark: Any = None
    with pytest.raises(InvalidConfigurationError, match="choose another name"):
        StageContext.open(
            spark, job="test/x", checkpoint_dir=str(tmp_path / "c"), metadata=f"sqlite:///{tmp_path}/state.db"
        )
    assert list(tmp_path.iterdir()) == []
