"""Values in rows that no version of this package writes."""

from __future__ import annotations

from sqlalchemy import Column, String, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.metadata.tables import METADATA

COLUMNS: list[Column[object]] = [column for table in METADATA.sorted_tables for column in table.c]
"""All columns."""
NO_TEXT = b"\xff\xfe"
"""Bytes in a column of text; no text, and no number, time or JSON either."""


def corrupt(engine: Engine, column: Column[object], value: object, job_id: str) -> None:
    """Write a value into the newest row of a job in the table of a column, which must have one, on SQLite."""
    table = column.table.name
    # SQLite has the text of bytes without a check of their encoding.
    given = "CAST(:value AS TEXT)" if value == NO_TEXT and isinstance(column.type, String) else ":value"
    row = (
        f"UPDATE {table} SET {column.name} = {given} WHERE rowid = (SELECT max(rowid) FROM {table} WHERE job_id = :job)"
    )
    with engine.begin() as connection:
        assert connection.execute(text(row), {"value": value, "job": job_id}).rowcount == 1, table
