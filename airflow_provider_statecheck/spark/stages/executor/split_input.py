"""Where a Spark task of a job over many increments gets its rows: from Spark, or from files that it reads itself."""

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


class SplitInput(ABC):
    """Rows of a partition: the columns of the key, and the partial results of each row."""

    @abstractmethod
    def tables(self, batches: Iterator[Any]) -> Iterator[tuple[set[int], Any]]:
        """
        Yield the numbers of the increments of rows in the job, and the rows in tables of a bounded size.

        :param batches: Record batches that Spark sends to the task.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRows(SplitInput):
    """Rows that Spark reads and sends, with the number of their increment."""

    columns: tuple[str, ...]
    """Names of the columns, which Spark sends under positional names."""

    @override
    def tables(self, batches: Iterator[Any]) -> Iterator[tuple[set[int], Any]]:
        for table in _buffered(batch.rename_columns(list(self.columns)) for batch in batches):
            increments = set(table.column(INCREMENT_COLUMN).unique().to_pylist())
            yield increments, table.drop_columns([INCREMENT_COLUMN])


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows(SplitInput):
    """Rows of files, of which Spark sends only the numbers of parts."""

    reader: TaskReader
    parts: tuple[tuple[int, int, int], ...]
    """
    What each Spark task reads: the number of its increment, and the first of the reader's tasks and the one after the
    last.
    """
    keys: tuple[str, ...]
    """Columns of the key."""
    results: Mapping[str, RowResult]
    """Partial results by their names."""

    @override
    def tables(self, batches: Iterator[Any]) -> Iterator[tuple[set[int], Any]]:
        tasks = self.reader.tasks
        for batch in batches:
            for part in batch.column(0).to_pylist():
                increment, start, end = self.parts[part]
                found = chain.from_iterable(self.reader.read_task(task) for task in tasks[start:end])
                for table in _buffered(found):
                    yield {increment}, self._with_results(table)

    def _with_results(self, table: Any) -> Any:
        results = {name: result.values(table) for name, result in self.results.items()}
        return pa.table({name: table.column(name) for name in self.keys} | results)


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
