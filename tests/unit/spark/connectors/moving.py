"""Jobs whose sink is at another place in each run, and the places that they write to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pyiceberg.exceptions import NoSuchTableError

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
from airflow_provider_statecheck.spark.connectors.exactly_once.committing_sink import CommittingSink
from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place, RestoredOutput
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink
from airflow_provider_statecheck.spark.connectors.sink import Sink
from airflow_provider_statecheck.spark.connectors.sql.sink import SqlSink
from airflow_provider_statecheck.testing.sink_attempts import SCHEMA, Committables, SinkAttempt
from tests.unit.spark.connectors.attempts import seen_in
from tests.unit.spark.connectors.delta.attempts import keys_of
from tests.unit.spark.connectors.folder_sink import FolderSink, keys_in
from tests.unit.spark.connectors.iceberg import tables
from tests.unit.spark.connectors.sql import databases


@dataclass
class Places:
    """Directories of Parquet files."""

    folder: Path

    def sink(self, name: str) -> CommittingSink:
        return ParquetSink(self.folder / name)

    def seen(self, name: str) -> list[int]:
        return seen_in(str(self.folder / name))


class DeltaTables(Places):
    @override
    def sink(self, name: str) -> CommittingSink:
        return DeltaSink(self.folder / name)

    @override
    def seen(self, name: str) -> list[int]:
        return keys_of(str(self.folder / name))


class IcebergTables(Places):
    @override
    def sink(self, name: str) -> CommittingSink:
        self.folder.mkdir(exist_ok=True)
        with tables.opened(self.folder) as catalog:
            catalog.create_namespace_if_not_exists("sales")
            catalog.create_table_if_not_exists(f"sales.{name}", SCHEMA)
        return IcebergSink(f"sales.{name}", properties=tables.properties_in(self.folder))

    @override
    def seen(self, name: str) -> list[int]:
        with tables.opened(self.folder) as catalog:
            try:
                found = catalog.load_table(f"sales.{name}").scan().to_arrow()
            except NoSuchTableError:
                return []
        return sorted(found.column("key").to_pylist())


class TablesOfOneDatabase(Places):
    @override
    def sink(self, name: str) -> CommittingSink:
        return SqlSink(self._url(name), f"t_{name}", staging=str(self.folder / "staging"))

    @override
    def seen(self, name: str) -> list[int]:
        place = databases.Place(self._url(name), self.folder)
        is_there = place.run(f"SELECT 1 FROM sqlite_master WHERE name = 't_{name}'")
        return [key for (key,) in place.rows("key", f"t_{name}")] if is_there else []

    def _url(self, name: str) -> str:
        self.folder.mkdir(exist_ok=True)
        return f"sqlite:///{self.folder}/output.db"


class Databases(TablesOfOneDatabase):
    @override
    def _url(self, name: str) -> str:
        self.folder.mkdir(exist_ok=True)
        return f"sqlite:///{self.folder}/{name}.db"


class MovingFolderSink(FolderSink):
    @override
    def at_log(self, log: str) -> MovingFolderSink:
        return MovingFolderSink(Path(log.removeprefix("file://")).parent)


class Folders(Places):
    @override
    def sink(self, name: str) -> CommittingSink:
        return MovingFolderSink(self.folder / name)

    @override
    def seen(self, name: str) -> list[int]:
        return keys_in(self.folder / name)


KINDS: Mapping[str, type[Places]] = {
    "parquet": Places,
    "delta": DeltaTables,
    "iceberg": IcebergTables,
    "sql": TablesOfOneDatabase,
    "sqlite": Databases,
    "custom": Folders,
}


@dataclass(frozen=True)
class Taken:
    """A checkpoint."""

    id: int
    epoch: int
    place: Place | None
    committables: Committables


@dataclass
class MovingJob:
    """A job whose attempts tell their sinks what the restored checkpoint does."""

    places: Places
    epoch: int = 0
    last_id: int = 0
    more: dict[str, Any] = field(default_factory=dict)

    def attempt(
        self, name: str, restored: Taken | None = None, *, is_pending: bool = False, is_same_run: bool = False
    ) -> SinkAttempt:
        """Return an attempt of the next run that has not opened its sink."""
        self.epoch += 1
        output = restored and RestoredOutput(
            place=restored.place, is_committed=not is_pending, is_of_this_run=is_same_run
        )
        return SinkAttempt(
            cast("Sink", self.places.sink(name)),
            self.epoch,
            restored=None if restored is None else restored.id,
            restored_epoch=None if restored is None else restored.epoch,
            restored_output=output,
            **self.more,
        )

    def begin(self, name: str, restored: Taken | None = None, **how: Any) -> SinkAttempt:
        """Begin an attempt as a stage does: it repeats the commit of the checkpoint that it restores."""
        attempt = self.attempt(name, restored, **how).open()
        if restored is not None:
            attempt.commit(restored.id, restored.committables)
        return attempt

    def take(self, attempt: SinkAttempt, *keys: int, commits: bool = True) -> Taken:
        """Take a checkpoint with rows, and commit them."""
        self.last_id += 1
        sink: Any = attempt.sink
        taken = Taken(self.last_id, attempt.epoch, sink.place, attempt.write(*keys))
        if commits:
            attempt.commit(taken.id, taken.committables)
        return taken

    def run(self, name: str, restored: Taken | None, *keys: int, **how: Any) -> Taken:
        """Run a try that succeeds after one checkpoint."""
        attempt = self.begin(name, restored, **how)
        taken = self.take(attempt, *keys)
        attempt.finish()
        return taken

    def seen(self, *names: str) -> dict[str, list[int]]:
        """Return what readers of the places see."""
        return {name: self.places.seen(name) for name in names}
