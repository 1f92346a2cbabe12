"""Opening a database of a script or a notebook, whose tables are created at the first use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import inspect

from airflow_provider_statecheck.exceptions import CoordinatorUnavailableError, InvalidConfigurationError
from airflow_provider_statecheck.metadata.tables import METADATA
from airflow_provider_statecheck.metadata.unit_of_work import open_engine


def test_scripts_that_open_a_new_database_at_once_all_find_its_tables(tmp_path: Path) -> None:
    together = Barrier(4)

    def tables_found(database: Path) -> set[str]:
        together.wait()
        engine = open_engine(f"sqlite:///{database}")
        found = set(inspect(engine).get_table_names())
        engine.dispose()
        return found

    with ThreadPoolExecutor(4) as threads:
        for number in range(5):
            found = threads.map(tables_found, [tmp_path / f"{number}.db"] * 4)
            assert all(METADATA.tables.keys() <= each for each in found)


def test_a_database_that_cannot_be_written_is_opened_for_reading(tmp_path: Path) -> None:
    open_engine(f"sqlite:///{tmp_path}/state.db").dispose()
    open_engine(f"sqlite:///file:{tmp_path}/state.db?mode=ro&uri=true").dispose()


@pytest.mark.parametrize(
    "url",
    [
        "planted",
        "postgresql://me:planted@host:port/db",
        "nosuch://me:planted@host/db",
        "mysql+nosuch://me:planted@host/db",
    ],
)
def test_what_is_no_url_of_a_database_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected the SQLAlchemy URL of a database") as caught:
        open_engine(url)
    assert "planted" not in f"{caught.value} {caught.value.__cause__}"


def test_an_asynchronous_driver_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="found the asynchronous driver aiosqlite"):
        open_engine(f"sqlite+aiosqlite:///{tmp_path}/state.db")


def test_a_database_in_a_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(CoordinatorUnavailableError, match="unable to open database file"):
        open_engine(f"sqlite:///{tmp_path}/missing/state.db")
