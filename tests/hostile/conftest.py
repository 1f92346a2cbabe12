"""An api-server of Airflow with the Dags of two users, for all who send it requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.hostile.neighbours import Neighbours, neighbours


@pytest.fixture(scope="module")
def there(airflow_db: Path) -> Iterator[Neighbours]:
    from airflow import settings

    engine: Engine = settings.get_engine()
    assert str(airflow_db) in str(engine.url), "a test must never write to another database"
    with neighbours(engine, airflow_db) as made:
        yield made
