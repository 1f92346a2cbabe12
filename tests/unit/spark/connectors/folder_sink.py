"""A sink as a user would write one: a transaction is a file that is moved from one folder to another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.custom.two_phase_commit_sink import TwoPhaseCommitSink
from airflow_provider_statecheck.spark.connectors.sink import SinkTaskContext
from airflow_provider_statecheck.testing.sink_contract import SinkAttempt


class FolderSink(TwoPhaseCommitSink):
    """Shows a file to readers of ``shown`` by a rename, which nothing can come in between of."""

    def __init__(self, folder: Path, *, log: str | None = None, **settings: Any) -> None:
        super().__init__(log or str(folder / "log"), **settings)
        self.folder = folder.absolute()  # tasks have other working directories

    @override
    def begin_transaction(self, context: SinkTaskContext) -> dict[str, Any]:
        for name in ("hidden", "shown"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.tables: list[pa.Table] = []
        return {"file": f"{context.task_id}.parquet", "rows": 0}

    @override
    def write(self, transaction: dict[str, Any], table: pa.Table) -> None:
        self.tables.append(table)
        transaction["rows"] += table.num_rows

    @override
    def pre_commit(self, transaction: dict[str, Any]) -> None:
        if self.tables:
            pq.write_table(pa.concat_tables(self.tables), self.folder / "hidden" / transaction["file"])

    @override
    def commit_transaction(self, transaction: Mapping[str, Any]) -> None:
        hidden = self.folder / "hidden" / transaction["file"]
        if hidden.exists():
            hidden.rename(self.folder / "shown" / transaction["file"])

    @override
    def abort_transaction(self, transaction: Mapping[str, Any]) -> None:
        # In the order in which a file moves, so that none slips through.
        for name in ("hidden", "shown"):
            (self.folder / name / transaction["file"]).unlink(missing_ok=True)


def opened(folder: Path, epoch: int, restored: int | None = None, **more: Any) -> SinkAttempt:
    return SinkAttempt(FolderSink(folder), epoch, restored=restored, **more).open()


def shown_in(folder: Path) -> pa.Table | None:
    """Return what a reader sees, ``None`` before anything was written."""
    files = sorted((folder / "shown").glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]) if files else None


def keys_in(folder: Path) -> list[int]:
    """Return the keys that a reader sees."""
    found = shown_in(folder)
    return [] if found is None else sorted(found.column("key").to_pylist())
