"""The contract of sources over all sources of the package, with a real Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake

from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource
from airflow_provider_statecheck.spark.connectors.files.source import CsvSource, JsonSource, ParquetSource
from airflow_provider_statecheck.spark.connectors.iceberg.source import IcebergSource
from airflow_provider_statecheck.spark.connectors.sql.source import SqlSource
from airflow_provider_statecheck.spark.connectors.stage_output.source import StageOutputSource
from airflow_provider_statecheck.testing.source_contract import POLICIES, SourceContract
from tests.docs.pages import ROOT, blocks_of
from tests.unit.spark.connectors.attempts import Attempt
from tests.unit.spark.connectors.iceberg.tables import (
    TABLE,
    append_as_somebody_else,
    create_table,
    properties_in,
    table_in,
)
from tests.unit.spark.connectors.sql.source_tables import Table

SECRET = "hush-hush"


def ids(keys: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64())})


def documented(name: str) -> Any:
    """Return a class of the page on sources."""
    block = next(block for block in blocks_of(ROOT / "docs" / "use" / "sources.md") if f"class {name}(" in block.code)
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(block.code, str(block.page), "exec", dont_inherit=True), namespace)
    return namespace[name]


class FilesContract(SourceContract):
    """Files of a directory, one for each append."""

    policies = POLICIES
    appends_are_changes = True
    works_in_parts = True
    other_limits = ({"files_per_increment": 2}, {"files_per_increment": None, "bytes_per_increment": 1})
    storage_options = MappingProxyType({"secret": SECRET})
    secrets = (SECRET,)

    def write(self, file: Path, keys: Sequence[int]) -> None:
        raise NotImplementedError

    def append(self, target: Path, keys: Sequence[int]) -> None:
        self.write(target / f"{keys[0]:06}", keys)

    def change(self, target: Path) -> None:
        self.write(min(target.iterdir()), [-1, -2, -3])

    def lose(self, target: Path) -> None:
        max(target.iterdir()).unlink()


class TestParquetFiles(FilesContract):
    def source(self, target: Path, **settings: Any) -> ParquetSource:
        return ParquetSource(target, **{"files_per_increment": 1, **settings})

    def write(self, file: Path, keys: Sequence[int]) -> None:
        pq.write_table(ids(keys), file)


class TestRowGroups(FilesContract):
    other_limits = ({"row_groups_per_increment": 2}, {"row_groups_per_increment": None, "files_per_increment": 2})

    def source(self, target: Path, **settings: Any) -> ParquetSource:
        return ParquetSource(target, **{"row_groups_per_increment": 1, **settings})

    def write(self, file: Path, keys: Sequence[int]) -> None:
        pq.write_table(ids(keys), file, row_group_size=1)


@pytest.mark.soak
class TestCsvFiles(FilesContract):
    def source(self, target: Path, **settings: Any) -> CsvSource:
        return CsvSource(target, schema="id bigint", **{"files_per_increment": 1, **settings})

    def write(self, file: Path, keys: Sequence[int]) -> None:
        file.write_text("".join(f"{key}\n" for key in keys))


@pytest.mark.soak
class TestJsonFiles(FilesContract):
    def source(self, target: Path, **settings: Any) -> JsonSource:
        return JsonSource(target, schema="id bigint", **{"files_per_increment": 1, **settings})

    def write(self, file: Path, keys: Sequence[int]) -> None:
        file.write_text("".join(json.dumps({"id": key}) + "\n" for key in keys))


class TestSplitsOfThePage(documented("TestDays")):  # type: ignore[misc]
    """The class that the page shows."""

    other_limits = ({"splits_per_increment": 2}, {"splits_per_increment": 5})

    def lose(self, target: Path) -> None:
        max(target.iterdir()).unlink()


class TestDeltaTables(SourceContract):
    policies = POLICIES
    works_in_parts = True
    notices_changes_within_run = False
    other_limits = ({"files_per_increment": 2}, {"files_per_increment": None, "bytes_per_increment": 1})
    secrets = (SECRET,)

    def source(self, target: Path, **settings: Any) -> DeltaSource:
        hidden = {"storage_options": {"secret": SECRET}, "delta_options": {"secret": SECRET}}
        return DeltaSource(str(target), **{"files_per_increment": 1, **hidden, **settings})

    def append(self, target: Path, keys: Sequence[int]) -> None:
        write_deltalake(str(target), ids(keys), mode="append")

    def change(self, target: Path) -> None:
        DeltaTable(str(target)).delete("id = 0")

    def lose(self, target: Path) -> None:
        write_deltalake(str(target), ids([99]), mode="overwrite")
        DeltaTable(str(target)).vacuum(0, dry_run=False, enforce_retention_duration=False)


class TestIcebergTables(SourceContract):
    key = "key"
    policies = POLICIES
    works_in_parts = True
    notices_changes_within_run = False
    other_limits = ({"files_per_increment": 2}, {"files_per_increment": None, "bytes_per_increment": 1})
    secrets = (SECRET, "sqlite")

    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        create_table(tmp_path)
        return tmp_path

    def source(self, target: Path, **settings: Any) -> IcebergSource:
        properties = {**properties_in(target), "token": SECRET, "s3.secret-access-key": SECRET}
        return IcebergSource(TABLE, properties=properties, **{"files_per_increment": 1, **settings})

    def append(self, target: Path, keys: Sequence[int]) -> None:
        append_as_somebody_else(target, *keys)

    def change(self, target: Path) -> None:
        with table_in(target) as table:
            table.delete("key = 0")

    def lose(self, target: Path) -> None:
        self.append(target, [99])
        with table_in(target) as table:
            *old, _ = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
            table.maintenance.expire_snapshots().by_ids(old).commit()


class SqlContract(SourceContract):
    """A table of a database, with a column that tells the version of each row."""

    policies = POLICIES
    works_in_parts = True
    other_limits = ({"rows_per_increment": 1}, {"rows_per_increment": None, "ranges": 2}, {"readers": 3})

    def source(self, target: Table, **settings: Any) -> SqlSource:
        given = {"rows_per_increment": 2, "readers": 1, "version_column": "changed", **settings}
        return SqlSource(target.url, target.name, **given)

    def append(self, target: Table, keys: Sequence[int]) -> None:
        target.add_keys(keys)

    def change(self, target: Table) -> None:
        target.execute("update orders set changed = 2 where id = 0")

    def table_at(self, url: str) -> Table:
        return Table(url, sa.Column("id", sa.Integer), sa.Column("changed", sa.Integer, server_default="1"))


@pytest.mark.soak
class TestSqliteTables(SqlContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Table:
        return self.table_at(f"sqlite:///{tmp_path}/shop.db")


@pytest.mark.db
class TestPostgresqlTables(SqlContract):
    secrets = ("very-secret",)

    @pytest.fixture
    def target(self, postgres_url: str) -> Table:
        url = sa.make_url(postgres_url).update_query_dict({"application_name": "very-secret"})
        return self.table_at(url.render_as_string(hide_password=False))


class Upstream:
    """A stage with output, whose attempts open their sink once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.begin(1)

    def begin(self, epoch: int) -> None:
        """Begin a fresh start, whose first commit replaces all output."""
        self.attempt = Attempt(self.path, epoch, generation=epoch).open()


class TestStageOutput(SourceContract):
    key = "key"
    policies = POLICIES
    works_in_parts = True
    other_limits = ({"checkpoints_per_increment": 2}, {"checkpoints_per_increment": None, "bytes_per_increment": 1})
    secrets = (SECRET,)

    @pytest.fixture
    def target(self, tmp_path: Path) -> Upstream:
        return Upstream(f"file://{tmp_path}/output")

    def source(self, target: Upstream, **settings: Any) -> StageOutputSource:
        given = {"checkpoints_per_increment": 1, "storage_options": {"secret": SECRET}, **settings}
        return StageOutputSource(target.path, **given)

    def append(self, target: Upstream, keys: Sequence[int]) -> None:
        target.attempt.add(keys[0] + 1, *keys)

    def change(self, target: Upstream) -> None:
        target.begin(2)
        target.attempt.add(1, 50)

    def lose(self, target: Any) -> None:
        last, *_ = Path(target.path.removeprefix("file://")).rglob("part-*-c5-*.parquet")
        last.unlink()
