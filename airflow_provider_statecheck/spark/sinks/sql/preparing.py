"""Make the tables of a sink where they are missing, and look at those that are there before any work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import StateCheckError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.sql.column_types import misfit
from airflow_provider_statecheck.spark.sinks.sql.database import SinkDatabase
from airflow_provider_statecheck.spark.sinks.sql.loading import plain_names
from airflow_provider_statecheck.spark.sinks.sql.tables import CHECKPOINT, LINEAGE

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_UNIQUE = """
SELECT array_agg(CAST(a.attname AS TEXT))
FROM pg_index i
CROSS JOIN generate_series(0, i.indnkeyatts - 1) n
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n]
WHERE i.indrelid = to_regclass(:name) AND i.indisunique AND i.indisvalid
  AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""
"""The columns of each index by which ON CONFLICT may find rows: over all of them, and checked at once."""


def make_tables(database: SinkDatabase, tables: Iterable[Table]) -> None:
    """
    Make tables where they are missing.

    :raises StateCheckError: if the database does not let us.
    """
    for table in tables:
        try:
            with database.transaction() as connection:
                table.create(connection, checkfirst=True)
        except StateCheckError:
            # Another sink may have made it at this moment.
            with database.transaction() as connection:
                if not _exists(connection, table):
                    raise


def require_fitting(database: SinkDatabase, table: Table, keys: Sequence[str]) -> None:
    """
    Refuse a table that is there and cannot take the output.

    :param table: As we would make it.
    :param keys: The columns by which rows replace others; empty if they do not.
    :raises UnsupportedStateError: Says what does not fit.
    """
    with database.transaction() as connection:
        found = _columns_of(connection, table)
        differences = [*_misfits(table, found, is_sqlite=database.is_sqlite), *_unfilled(table, found)]
        if keys and not differences and not _is_unique(connection, table, keys):
            differences = [f"no primary key or unique index is on exactly {', '.join(keys)}"]
    if differences:
        raise UnsupportedStateError(
            f"Expected a table {table.fullname} in {database.shown} that fits the output, found: {'; '.join(differences)}. Alter "
            "the table, convert the output in the stage, or name a table that does not exist yet.",
            differences=differences,
        )


def _exists(connection: Connection, table: Table) -> bool:
    from sqlalchemy import inspect

    return bool(inspect(connection).has_table(table.name, schema=table.schema))


def _columns_of(connection: Connection, table: Table) -> dict[str, Any]:
    from sqlalchemy import inspect

    return {each["name"]: each for each in inspect(connection).get_columns(table.name, schema=table.schema)}


def _misfits(table: Table, found: dict[str, Any], *, is_sqlite: bool) -> list[str]:
    differences = []
    for column in table.columns:
        if column.name in (LINEAGE, CHECKPOINT) and column.name not in found:
            differences.append(f"column {column.name!r} is missing, add it as {column.type}, or give mark_rows=False")
        elif column.name not in found:
            differences.append(f"column {column.name!r} is missing")
        elif misfit(column.type, found[column.name]["type"], is_sqlite=is_sqlite):
            differences.append(f"column {column.name!r} is {found[column.name]['type']} and would be {column.type}")
        elif column.nullable and not found[column.name]["nullable"]:
            differences.append(f"column {column.name!r} may not be null there")
    return differences


def _unfilled(table: Table, found: dict[str, Any]) -> list[str]:
    others = [each for name, each in found.items() if name not in table.columns]
    return [
        f"column {each['name']!r} is not part of the output, may not be null and has no default"
        for each in others
        if not each["nullable"]
        and each.get("default") is None
        and not each.get("computed")
        and not each.get("identity")
    ]


def _is_unique(connection: Connection, table: Table, keys: Sequence[str]) -> bool:
    is_sqlite = connection.dialect.name == "sqlite"
    found = _unique_of_sqlite(connection, table) if is_sqlite else _unique_of_postgres(connection, table)
    return any(set(names) == set(keys) for names in found)


def _unique_of_postgres(connection: Connection, table: Table) -> list[Any]:
    from sqlalchemy import text

    found = connection.execute(text(_UNIQUE), {"name": plain_names().format_table(table)})
    return list(found.scalars())


def _unique_of_sqlite(connection: Connection, table: Table) -> list[Any]:
    from sqlalchemy import inspect

    inspector, schema = inspect(connection), table.schema
    found: list[Any] = [inspector.get_pk_constraint(table.name, schema=schema)["constrained_columns"]]
    found += [each["column_names"] for each in inspector.get_unique_constraints(table.name, schema=schema)]
    found += [each["column_names"] for each in inspector.get_indexes(table.name, schema=schema) if _is_whole(each)]
    return found


def _is_whole(index: Any) -> bool:
    # An index on some of the rows says nothing about the others.
    return bool(index["unique"]) and not any("where" in name for name in index.get("dialect_options", {}))
