"""Iceberg tables in a catalog of SQLite, and attempts of a stage that write to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog

from airflow_provider_statecheck.spark.connectors.iceberg.destination import TableLedger, read_ledger
from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, SinkAttempt, table_of
from tests.unit.spark.connectors.attempts import take_settings

TABLE = "sales.orders"
MARKED = SCHEMA.append(pa.field("_statecheck_lineage", pa.string())).append(
    pa.field("_statecheck_checkpoint", pa.int64())
)


def properties_in(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


@contextmanager
def opened(folder: Path) -> Iterator[Catalog]:
    catalog = load_catalog(None, **properties_in(folder))
    try:
        yield catalog
    finally:
        catalog.close()


@contextmanager
def table_in(folder: Path) -> Iterator[Any]:
    with opened(folder) as catalog:
        yield catalog.load_table(TABLE)


def create_table(
    folder: Path,
    schema: pa.Schema = SCHEMA,
    partitions: Sequence[tuple[str, Any, str]] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    folder.mkdir(exist_ok=True)
    with opened(folder) as catalog:
        catalog.create_namespace_if_not_exists("sales")
        table = catalog.create_table(TABLE, schema, properties=dict(properties or {}))
        with table.update_spec() as update:
            for column, transform, name in partitions:
                update.add_field(column, transform, name)


def create_table_anew(folder: Path) -> None:
    with opened(folder) as catalog:
        catalog.drop_table(TABLE)
    create_table(folder)


def rows_of(*keys: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    return table_of(keys, schema)


def append_as_somebody_else(folder: Path, *keys: int) -> None:
    with table_in(folder) as table:
        table.append(rows_of(*keys))


def rows_in(folder: Path, row_filter: str | None = None) -> list[dict[str, Any]]:
    with table_in(folder) as table:
        scan = table.scan() if row_filter is None else table.scan(row_filter)
        return list(scan.to_arrow().sort_by("key").to_pylist())


def seen_in(folder: Path) -> list[int]:
    return [row["key"] for row in rows_in(folder)]


def ledger_in(folder: Path, lineage: str) -> TableLedger:
    with table_in(folder) as table:
        found = read_ledger(table, lineage)
    assert found is not None
    return found


class Attempt(SinkAttempt):
    """An attempt with an Iceberg sink."""

    def __init__(self, folder: Path, epoch: int, **arguments: Any) -> None:
        settings = take_settings(arguments)
        properties = {**properties_in(folder), **settings.pop("properties", {})}
        super().__init__(IcebergSink(TABLE, properties=properties, **settings), epoch, **arguments)
