from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deltalake")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a table is made."""
    return f"file://{tmp_path}/table"
