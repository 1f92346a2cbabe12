"""Rows of a task of a job over many increments: from Spark, or from files that it reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.stages.executor.elements import BUFFER_BYTES
from airflow_provider_statecheck.spark.stages.executor.row_results import RowResult
from airflow_provider_statecheck.spark.tables.schemas import TaskReader

INCREMENT_COLUMN = "__statecheck_increment"
"""Column with the number of the increment in the job."""


Rows = Iterator[tuple[set[int], Any]]
"""Numbers of the increments of rows in the job, and the rows in tables of a bounded size."""


class SplitInput(ABC):
    """Parts of the input: the columns of the key, and the partial results of each row."""

    @abstractmethod
    def parts(self, batches: Iterator[Any]) -> Iterator[tuple[int, Rows]]:
        """
        Yield the number of each part that a task commits by itself, and its rows.

        :param batches: Record batches that Spark sends to the task.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRows(SplitInput):
    """Rows that Spark reads and sends, with the number of their increment; each partition is a part."""

    columns: tuple[str, ...]
    """Names of the columns, which Spark sends under positional names."""

    @override
    def parts(self, batches: Iterator[Any]) -> Iterator[tuple[int, Rows]]:
        yield partition_number(), self._rows(batches)

    def _rows(self, batches: Iterator[Any]) -> Rows:
        for table in _buffered(batch.rename_columns(list(self.columns)) for batch in batches):
            increments = set(table.column(INCREMENT_COLUMN).unique().to_pylist())
            yield increments, table.drop_columns([INCREMENT_COLUMN])


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows(SplitInput):
    """Rows of files, of which Spark sends only the numbers of parts."""

    reader: TaskReader
    spans: tuple[tuple[int, int, int], ...]
    """What each part has: the number of its increment, and the reader's first task and the one after the last."""
    keys: tuple[str, ...]
    """Columns of the key."""
    results: Mapping[str, RowResult]
    """Partial results by their names."""

    @override
    def parts(self, batches: Iterator[Any]) -> Iterator[tuple[int, Rows]]:
        tasks = self.reader.tasks
        for number in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
            increment, start, end = self.spans[number]
            yield number, self._rows(increment, tasks[start:end])

    def _rows(self, increment: int, tasks: Iterable[Any]) -> Rows:
        for table in _buffered(chain.from_iterable(map(self.reader.read_task, tasks))):
            yield {increment}, self._with_results(table)

    def _with_results(self, table: Any) -> Any:
        results = {name: result.values(table) for name, result in self.results.items()}
        return pa.table({name: table.column(name) for name in self.keys} | results)


def partition_number() -> int:
    """Return the number of the partition of the running Spark task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _buffered(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows of batches in tables of a bounded size."""
    buffered: list[Any] = []
    size = 0
    for batch in batches:
        buffered += [batch] if batch.num_rows else []
        size += batch.nbytes
        if size >= BUFFER_BYTES:
            yield pa.Table.from_batches(buffered)
            buffered, size = [], 0
    if buffered:
        yield pa.Table.from_batches(buffered)
