from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.spark.connectors.sql.databases import Place


@pytest.fixture
def sqlite(tmp_path: Path) -> Place:
    """An SQLite file."""
    return Place(f"sqlite:///{tmp_path}/output.db", tmp_path)


@pytest.fixture
def postgres(postgres_url: str, tmp_path: Path) -> Place:
    """The PostgreSQL of the test session, without what other tests left of the sink's."""
    place = Place(postgres_url, tmp_path)
    place.clear()
    return place


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.db)])
def place(request: pytest.FixtureRequest) -> Place:
    """A table on each kind of database."""
    found: Place = request.getfixturevalue(request.param)
    return found
