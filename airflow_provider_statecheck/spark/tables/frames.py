"""DataFrames of tables: rows read in Python, unions, columns by name, and partition values."""

from __future__ import annotations

import functools
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.storage.schemes import conceal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReader(ABC):
    """Reads rows in Python inside Spark tasks; each Spark task reads one element of a list of tasks."""

    schema: Any
    """Arrow schema of the rows for Spark."""
    packed_tasks: bytes = field(repr=False)
    """Result of :func:`pack_tasks`: a small function stays inside the plan, where a large one becomes a broadcast."""

    def frame(self, spark: SparkSession, columns: StructType) -> DataFrame:
        """
        Return the rows of all tasks.

        :param columns: Spark schema of the rows.
        """
        count = len(_unpacked(self.packed_tasks))
        return spark.range(0, count, 1, count).mapInArrow(functools.partial(read_tasks, self), columns)

    @abstractmethod
    def read_task(self, task: Any) -> Iterator[Any]:
        """Yield the rows of a task as record batches."""


def read_tasks(reader: TaskReader, batches: Iterable[Any]) -> Iterator[Any]:
    """
    Yield the rows of a Spark task.

    :param batches: Record batches with one column of numbers of tasks.
    """
    tasks = _unpacked(reader.packed_tasks)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from reader.read_task(tasks[number])


def pack_tasks(tasks: Sequence[Any]) -> bytes:
    """Return tasks in compressed form; their values must have a JSON form."""
    return zlib.compress(json.dumps(tasks, separators=(",", ":")).encode())


@contextmanager
def concealed_failures(message: str, options: Mapping[str, Any]) -> Iterator[None]:
    """
    Replace errors of a storage client by errors without credentials.

    :param message: What failed.
    :param options: Options of the client, which the error must not show.
    :raises StorageError: if the block fails with another error than those of this package.
    """
    try:
        yield
    except StateCheckError:
        raise
    except Exception as error:
        # No cause: Spark logs the whole chain, and client errors may contain credentials.
        raise StorageError(f"{message}: {type(error).__name__} {conceal(str(error), options)}") from None


def union_all(frames: Iterable[DataFrame]) -> DataFrame:
    """Return the rows of all DataFrames, at least one; columns are matched by position."""
    return functools.reduce(lambda frame, other: frame.unionAll(other), frames)


def quoted_column(name: str) -> Column:
    """Return a column by its literal name, which may contain dots and backticks."""
    from pyspark.sql import functions

    return functions.col(f"`{name.replace('`', '``')}`")


def _unpacked(packed: bytes) -> list[Any]:
    found: list[Any] = json.loads(zlib.decompress(packed))
    return found


_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^<>| \x7f") | {chr(code) for code in range(32)}


def partition_values(root: str, uri: str) -> dict[str, str | None]:
    """Return the partition values in the directory names between a root and a file; ``None`` for a null value."""
    directories = uri.removeprefix(root).split("/")[:-1]
    pairs = (directory.partition("=") for directory in directories if "=" in directory)
    return {unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs}


def partition_names(directory: str) -> tuple[str, ...]:
    """Return the partition columns in the name of a directory."""
    return tuple(partition_values("", f"{directory}/"))


def partition_path(values: Mapping[str, str | None]) -> str:
    """Return the name of the directory with partition values; a null value is ``None`` or empty, as in Spark."""
    return "/".join(f"{_escaped(name)}={_escaped(value) if value else _NULL}" for name, value in values.items())


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)
