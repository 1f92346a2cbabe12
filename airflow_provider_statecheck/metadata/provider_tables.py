"""The tables of this package in Airflow's database as a whole: their rows, and their removal."""

from __future__ import annotations

from sqlalchemy import Engine, MetaData, Table, func, inspect, select

from airflow_provider_statecheck.metadata.tables import METADATA, VERSION_TABLE
from airflow_provider_statecheck.metadata.unit_of_work import executing


class ProviderTables:
    """
    The tables ``statecheck_*`` and the table with their version.

    :param engine: Engine of Airflow's database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each table that exists."""
        with executing(), self._engine.connect() as connection:
            return {
                table.name: connection.scalar(select(func.count()).select_from(table)) or 0
                for table in self._existing()
            }

    def drop(self) -> None:
        """Drop each table that exists, the one with the version last, so that an interrupted call can be repeated."""
        with executing(), self._engine.begin() as connection:
            for table in reversed(self._existing()):
                table.drop(connection, checkfirst=True)

    def _existing(self) -> list[Table]:
        found = inspect(self._engine).get_table_names()
        version = Table(VERSION_TABLE, MetaData())
        return [table for table in (version, *METADATA.sorted_tables) if table.name in found]
