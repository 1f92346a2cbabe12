"""The input of a walk: files in a directory for each day, or rows that belong to a run."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from tests.walk.attempts import local
from tests.walk.model import File, Files, Run

KEYS = ("a", "b", "c")
_FIRST_TIME_NS = 1_700_000_000_000_000_000


class DirectoryInput:
    """
    Parquet files below ``day=...``, which arrive late, vanish, change and are written anew.

    :param policy: What the source does about changes.
    :param changes: What happens to files, as names of methods.
    """

    def __init__(self, folder: Path, chance: random.Random, policy: str, changes: Sequence[str]) -> None:
        self._folder, self._chance, self._policy, self._changes = folder, chance, policy, changes
        self.per_increment = chance.choice((1, 1, 2))
        self._numbers, self._versions = itertools.count(1), itertools.count(1)
        self._files: dict[str, File] = {}
        self._undo: list[Callable[[], None]] = []

    def source(self, _: Run) -> Any:
        """Return the source of a run."""
        schema, per = "id string, key string", self.per_increment
        return ParquetSource(str(self._folder), schema=schema, files_per_increment=per, on_change=self._policy)

    def files(self, _: Run) -> Files:
        """Return what a listing finds now."""
        return dict(self._files)

    def read(self, name: str) -> list[tuple[str, str]]:
        """Return the rows of a file as they are on the disk."""
        rows = pq.ParquetFile(local(name)).read().to_pylist()
        return [(row["id"], row["key"]) for row in rows]

    def arrive(self, day: int) -> str:
        """Add files to the directory of a day."""
        added = [self._add(day) for _ in range(self._chance.randint(1, 3))]
        return f"{len(added)} files for day {day}"

    def change(self, last_day: int) -> str:
        """Let something happen to files that may have been read."""
        change: Callable[[int], str] = getattr(self, f"_{self._chance.choice(self._changes)}")
        return change(last_day)

    def _add(self, day: int, rows: tuple[tuple[str, str], ...] | None = None) -> str:
        number = next(self._numbers)
        name = f"{self._folder}/day={day:03d}/part-{number:05d}.parquet"
        rows = rows or tuple(
            (f"r{number:05d}.{i}", self._chance.choice(KEYS)) for i in range(self._chance.randint(1, 3))
        )
        self._put(name, File(version=next(self._versions), rows=rows, partition=str(day)))
        return name

    def _put(self, name: str, file: File) -> None:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [r for r, _ in file.rows], "key": [k for _, k in file.rows]}), path)
        time = _FIRST_TIME_NS + file.version * 1_000_000_000
        os.utime(path, ns=(time, time))
        self._files[f"file://{name}"] = file

    def _drop(self, uri: str) -> File:
        local(uri).unlink()
        return self._files.pop(uri)

    def _late(self, last_day: int) -> str:
        return f"late: {self.arrive(self._chance.randint(1, max(1, last_day)))}"

    def _archive(self, _: int) -> str:
        if len(self._files) < 2:
            return "nothing to archive"
        uri = self._chance.choice(sorted(self._files))
        file = self._drop(uri)
        self._undo.append(lambda: self._put(str(local(uri)), file))
        return f"archived {uri[-26:]}"

    def _rewrite(self, _: int) -> str:
        uri = self._chance.choice(sorted(self._files))
        before = self._files[uri]
        rows = tuple((f"{r}'", k) for r, k in before.rows)
        self._put(str(local(uri)), replace(before, version=next(self._versions), rows=rows))
        self._undo.append(lambda: self._put(str(local(uri)), before))
        return f"rewrote {uri[-26:]}"

    def _repair(self, _: int) -> str:
        day = self._chance.choice(sorted({f.partition or "" for f in self._files.values()}))
        before = {uri: self._drop(uri) for uri in sorted(self._files) if self._files[uri].partition == day}
        added = [self._add(int(day), file.rows) for file in before.values()]

        def restore() -> None:
            for name in added:
                if f"file://{name}" in self._files:
                    self._drop(f"file://{name}")
            for uri, file in before.items():
                self._put(str(local(uri)), file)

        self._undo.append(restore)
        return f"repaired day {day}"

    def _restore(self, _: int) -> str:
        if not self._undo:
            return "nothing to restore"
        self._undo.pop()()
        return "restored what was before the last change of files"


class InputOfRuns:
    """Rows that a run reads by its own name, such as a query for its day."""

    def __init__(self, chance: random.Random, policy: str) -> None:
        self._chance, self._policy, self.per_increment = chance, policy, 1
        self._files: dict[Any, Files] = {}
        self._rows: dict[str, tuple[tuple[str, str], ...]] = {}

    def source(self, run: Run) -> Any:
        """Return the source of a run."""
        return DataFrameSource(sorted(self.files(run)), self._load, on_change=self._policy)

    def _load(self, *_: object) -> Any:
        raise AssertionError("The walk reads the rows of its splits itself.")

    def files(self, run: Run) -> Files:
        """Return the splits of a run, which are the same in each of its tries."""
        name = run.key
        if name not in self._files:
            splits = [f"{name}/{i}" for i in range(self._chance.randint(1, 3))]
            self._rows |= {s: tuple((f"{s}.{i}", self._chance.choice(KEYS)) for i in range(2)) for s in splits}
            self._files[name] = {split: File(version=0, rows=self._rows[split]) for split in splits}
        return self._files[name]

    def read(self, name: str) -> list[tuple[str, str]]:
        """Return the rows of a split."""
        return list(self._rows[name])

    def arrive(self, day: int) -> str:
        """Have rows for every day."""
        return f"day {day}"

    def change(self, _: int) -> str:
        """Stay as it is."""
        return "no change of input"
