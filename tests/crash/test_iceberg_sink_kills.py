"""An Iceberg table whose stage is killed anywhere holds what that of an undisturbed one holds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.crash.iceberg_factory import CHANGE, TABLE, properties_in
from tests.crash.sink_suite import SinkKills

pytestmark = pytest.mark.spark

COLUMNS = pa.schema([("part", pa.int64()), ("number", pa.int64()), ("total", pa.int64()), ("name", pa.string())])


class TestIcebergSinkKills(SinkKills):
    factory = "tests.crash.iceberg_factory:make"
    zombie_steps = ("commit", CHANGE)

    @staticmethod
    def prepare(work: Path) -> None:
        catalog = load_catalog(None, **properties_in(work))
        catalog.create_namespace("sales")
        catalog.create_table(TABLE, COLUMNS)
        catalog.close()

    @staticmethod
    def read(work: Path) -> pa.Table:
        catalog = load_catalog(None, **properties_in(work))
        try:
            return catalog.load_table(TABLE).scan().to_arrow()
        finally:
            catalog.close()
