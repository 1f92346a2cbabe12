from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.spark.connectors.iceberg.tables import create_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A catalog with an empty table."""
    create_table(tmp_path)
    return tmp_path
