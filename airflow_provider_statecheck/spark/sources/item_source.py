"""
Sources of items, such as files, commits, key ranges or user-defined splits.

A subclass lists its items and plans the unfinished ones; limits, sizes and states are the same for all.

Row groups of Parquet files are read by PyArrow inside Spark tasks. Spark's reader supports only whole files: it reads a file
to its end even if a filter on ``_metadata.file_block_start`` or ``_metadata.row_index`` excludes all its rows.
"""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require_count, require_one_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SourceChangedError, StateCheckError
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.driver.session import cores_of
from airflow_provider_statecheck.spark.snapshots.columns import readable_type
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.enumerator import (
    ItemEnumerator,
    ItemReader,
    ItemSplit,
    Limits,
    SourceState,
    automatic_bytes,
    decode_source_state,
)
from airflow_provider_statecheck.spark.sources.source import OnChange, reconcile
from airflow_provider_statecheck.spark.tables.alignment import union_by_name
from airflow_provider_statecheck.spark.tables.cutting import ReadingRules, Unreadable, find_column
from airflow_provider_statecheck.spark.tables.schemas import (
    TASK_BYTES,
    TaskReader,
    arrow_schema,
    batches_of,
    concealed_failures,
    consecutive,
    group_sizes,
    open_file,
    pack_tasks,
    quoted_column,
    union_all,
)
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.uris import AllowedLocations, open_filesystem, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a source is opened: the session, and the state from which it continues."""

    spark: SparkSession
    before: SourceState | None
    """State of the last attempt; ``None`` on a fresh start."""
    is_new_run: bool
    """Whether a new run continues from the state of an earlier run."""
    storage_options: Mapping[str, Any]
    is_of_other_job: bool = False
    """Whether the state is that of another job, as at the start of a fork."""
    allowed: AllowedLocations = field(default_factory=AllowedLocations)
    """Locations that the state may name."""
    cuts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Attempts and checkpoints up to which the savepoint has the output of the stages of that job, by lineage of the sink."""

    @property
    def reader_state(self) -> Mapping[str, Any]:
        """State of the reader of the last attempt; empty on a fresh start."""
        return {} if self.before is None or self.before.reader is None else self.before.reader

    def options(self, own: HiddenOptions | None) -> dict[str, Any]:
        """Return the options of the filesystem: those of the source, or those of the stage if it has none."""
        return dict(self.storage_options) if own is None else own.reveal()

    def reconciled(self, items: Sequence[Item], on_change: OnChange) -> Ledger:
        """
        Return the ledger for the listed items.

        :raises SourceChangedError: if the listing differs from that of the last attempt.
        :raises SourceRestartRequiredError: if it differs and the policy is ``RESTART``.
        """
        if self.before is None:
            return Ledger(tuple(items))
        return reconcile(self.before.ledger, items, on_change=on_change, new_run=self.is_new_run)


class ItemSource(ABC):
    """
    A source that consists of items.

    :param on_change: Policy for input that changes.
    :raises InvalidConfigurationError: if there is no such policy.
    """

    def __init__(self, limits: Limits, on_change: str | OnChange) -> None:
        self._limits = limits
        require_one_of("on_change", on_change, tuple(OnChange))
        self._on_change = OnChange(on_change)

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        of_other_job: bool = False,
        allowed: AllowedLocations | None = None,
        cuts: Mapping[str, tuple[int, int]] | None = None,
    ) -> ItemEnumerator:
        """
        List the input and plan the unfinished part of it, as :meth:`Source.open` describes.

        :param of_other_job: Whether ``restored`` is the state of another job, or of a stage with another uid.
        :param allowed: Locations that ``restored`` may name; by default none.
        :param cuts: Attempts and checkpoints up to which a savepoint of that job has the output of its stages, by the lineages of
            their sinks; empty for any other state.
        :raises InvalidConfigurationError: if there is no input, or it does not fit the arguments of the source.
        :raises CorruptStateError: if the state is invalid, or that of another source.
        """
        before = None if restored is None else decode_source_state(restored)
        opening = Opening(
            spark=spark,
            before=before,
            is_new_run=new_run,
            storage_options=storage_options or {},
            is_of_other_job=of_other_job,
            allowed=allowed or AllowedLocations(),
            cuts=cuts or {},
        )
        ledger, reader = self._plan(opening)
        increments = 0 if before is None else before.increments
        return ItemEnumerator(SourceState(ledger, increments, self._target(ledger, opening)), self._limits, reader)

    @abstractmethod
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        """List the input; return its items with their progress, and their reader."""

    def _target(self, ledger: Ledger, opening: Opening) -> int | None:
        if not self._limits.is_automatic:
            return None
        # The size is constant within a run, so that a restarted attempt plans the same increments.
        known = None if opening.before is None or opening.is_new_run else opening.before.target_bytes
        return known or automatic_bytes(ledger)


def parse_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """
    Return the names of the argument ``columns``; ``None`` for all columns.

    :raises InvalidConfigurationError: if the argument is not a non-empty sequence of names.
    """
    if columns is None:
        return None
    names = tuple(columns)
    if isinstance(columns, str) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidConfigurationError(f"Expected columns to be a list of names, found {columns!r}.")
    return names


class DataFrameSource(ItemSource):
    """
    User-defined splits, such as days, id ranges or table names.

    :param splits: All splits in order, or a function that returns them; must be the same in every attempt.
    :param load: Returns the rows of a split; must return the same rows each time.
    :param key: Returns the name of a split in checkpoints; ``str`` by default.
    :param splits_per_increment: Maximum number of splits in one Spark job.
    :param on_change: Policy for splits that differ within a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :raises InvalidConfigurationError: if an argument is invalid.
    """

    def __init__(
        self,
        splits: Sequence[Any] | Callable[[], Sequence[Any]],
        load: Callable[[SparkSession, Any], DataFrame],
        *,
        key: Callable[[Any], str] = str,
        splits_per_increment: int = 1,
        on_change: str = "fail",
    ) -> None:
        super().__init__(Limits(items=require_count("splits_per_increment", splits_per_increment)), on_change)
        self._splits = splits if callable(splits) else _split_list(splits)
        self._load = load
        self._key = key

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        splits = self._splits_by_key()
        items = [Item.of(key, 0, "") for key in splits]
        return opening.reconciled(items, self._on_change), _UserReader(opening.spark, self._load, splits)

    def _splits_by_key(self) -> dict[str, Any]:
        splits = _split_list(self._splits()) if callable(self._splits) else self._splits
        by_key = {self._key_of(split): split for split in splits}
        if len(by_key) < len(splits):
            raise InvalidConfigurationError(
                f"Expected a unique key for each of {len(splits)} splits, found {len(by_key)} keys; correct key."
            )
        return by_key

    def _key_of(self, split: Any) -> str:
        key: object = self._key(split)
        if not isinstance(key, str) or not key or "\0" in key:
            raise InvalidConfigurationError(f"Expected the key of a split to be text, found {key!r}; correct key.")
        return key


def _split_list(splits: Iterable[Any]) -> tuple[Any, ...]:
    # Read once: an iterator would have no splits for the next attempt, which would replace the output by nothing.
    if isinstance(splits, str) or not isinstance(splits, Iterable):
        raise InvalidConfigurationError(
            f"Expected splits to be a list of splits or a function that returns one, found {splits!r}; write [{splits!r}]."
        )
    return tuple(splits)


class _UserReader(ItemReader):
    """Reads splits with the user's function, whose input is unknown; a change of it is not detected."""

    def __init__(
        self, spark: SparkSession, load: Callable[[SparkSession, Any], DataFrame], splits: Mapping[str, Any]
    ) -> None:
        self._spark = spark
        self._load = load
        self._splits = splits

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return union_by_name([self._load(self._spark, self._splits[split.item.name]) for split in splits])


class CuttingReader(ItemReader):
    """Reads whole files as another reader does, and row groups of large files through PyArrow."""

    spark: SparkSession

    def __init__(self) -> None:
        self._sizes: dict[str, list[int] | None] = {}

    @override
    def row_groups(self, item: Item) -> list[int] | None:
        if item.name not in self._sizes:
            footer = self._footer(item)
            reason = self._obstacle(item, footer)
            if reason is not None:
                log.warning("%s cannot be cut, and is read as a whole: %s", redact(item.name), reason)
            self._sizes[item.name] = None if reason is not None else group_sizes(footer)
        return self._sizes[item.name]

    @override
    def rows_of(self, split: ItemSplit) -> range | None:
        try:
            footer = self._footer(split.item)
        except StateCheckError:
            return None
        return None if isinstance(footer, Unreadable) else rows_of_groups(footer, split.groups)

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        whole = [split for split in splits if split.groups is None]
        frames = [self._load_whole(whole)] if whole else []
        return union_all([*frames, *self._load_cut(splits)])

    def _load_cut(self, splits: Sequence[ItemSplit]) -> Iterator[DataFrame]:
        cut = [
            (self._row_groups_of(split.item, *split.groups), self.row_groups(split.item) or [])
            for split in splits
            if split.groups is not None
        ]
        limit = task_bytes(cores_of(self.spark), cut) if cut else 0
        tasks = [task for groups, sizes in cut for task in cut_into_tasks(groups, sizes, limit)]
        for _, group in groupby(sorted(tasks, key=_partition_columns), key=_partition_columns):
            yield self._load_tasks(list(group))

    def _footer(self, item: Item) -> Any:
        file = self._row_groups_of(item, 0, 0)
        return read_footer(file.uri, file.root, file.size_bytes, self._options_of(file.root))

    @abstractmethod
    def _load_whole(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of whole files."""

    @abstractmethod
    def _load_tasks(self, tasks: Sequence[RowGroups]) -> DataFrame:
        """Return the rows of row groups of files that have the same partition columns."""

    @abstractmethod
    def _row_groups_of(self, item: Item, start: int, end: int) -> RowGroups:
        """Return row groups of the file of an item."""

    @abstractmethod
    def _options_of(self, root: str) -> Mapping[str, Any]:
        """Return the options of the filesystem of a root."""

    @abstractmethod
    def _obstacle(self, item: Item, footer: Any) -> str | None:
        """Return why PyArrow would not read the same rows from a file as Spark; ``None`` if it would."""

    @functools.cached_property
    def rules(self) -> ReadingRules:
        """Settings of the session on which it depends what Spark reads."""
        return ReadingRules.of(self.spark)


def _partition_columns(task: RowGroups) -> list[str]:
    return sorted(task.partition)


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Consecutive row groups of a file, read by one task."""

    root: str
    uri: str
    size_bytes: int
    start: int
    end: int
    partition: Mapping[str, str | None]


def load_row_groups(
    spark: SparkSession,
    tasks: Sequence[RowGroups],
    schema: StructType,
    options: Mapping[str, Any],
    *,
    is_case_sensitive: bool = True,
) -> DataFrame:
    """Return the rows of row groups; one Spark task reads each element of ``tasks``."""
    from pyspark.sql.types import StringType, StructField, StructType

    partitions = set(tasks[0].partition)
    # Partition values are texts in the names of directories; Spark casts them.
    types = [StringType() if f.name in partitions else readable_type(f.dataType) for f in schema.fields]
    raw = StructType([StructField(*each) for each in zip(schema.names, types, strict=True)])
    reader = RowGroupReader(
        options=HiddenOptions(options),
        schema=arrow_schema(raw),
        packed_tasks=pack_row_groups(tasks),
        is_case_sensitive=is_case_sensitive,
    )
    columns = [(quoted_column(f.name), f) for f in schema.fields]
    typed = [(column.cast(f.dataType) if f.name in partitions else column, f) for column, f in columns]
    # Like the reader of whole files, with the metadata of columns.
    return reader.frame(spark, raw).select([column.alias(f.name, metadata=f.metadata) for column, f in typed])


def pack_row_groups(tasks: Sequence[RowGroups]) -> bytes:
    """Return tasks in compressed form."""
    return pack_tasks([astuple(task) for task in tasks])


def task_bytes(cores: int, cut: Sequence[tuple[RowGroups, Sequence[int]]]) -> int:
    """
    Return the size of a task with which the row groups of a job occupy all cores.

    :param cut: Row groups that are read, each with the sizes of all row groups of its file.
    """
    total = sum(sum(sizes[groups.start : groups.end]) for groups, sizes in cut)
    return max(1, min(TASK_BYTES, total // cores))


def cut_into_tasks(groups: RowGroups, sizes: Sequence[int], limit: int = TASK_BYTES) -> Iterator[RowGroups]:
    """
    Divide row groups among tasks; each task gets one large row group or several small ones.

    :param sizes: Sizes of all row groups of the file.
    :param limit: Size of a task in bytes.
    """
    first = groups.start
    for part in consecutive(sizes[first : groups.end], limit):
        yield replace(groups, start=first + part.start, end=first + part.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupReader(TaskReader):
    """Reads row groups inside Spark tasks."""

    options: HiddenOptions
    is_case_sensitive: bool

    @override
    def read_task(self, task: Any) -> Iterator[Any]:
        groups = RowGroups(*task)
        with _opened(groups.uri, groups.root, groups.size_bytes, self.options.reveal()) as source:
            yield from self._read_groups(source, groups)

    def _read_groups(self, source: Any, task: RowGroups) -> Iterator[Any]:
        with parquet.ParquetFile(
            source, pre_buffer=True, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        ) as file:
            columns = self._stored_names(file.schema_arrow.names, task.partition)
            for batch in batches_of(file, range(task.start, task.end), list(columns.values())):
                yield self._to_schema(batch, columns, task.partition)

    def _stored_names(self, names: Sequence[str], partition: Mapping[str, str | None]) -> dict[str, str]:
        wanted = (name for name in self.schema.names if name not in partition)
        pairs = ((name, find_column(names, name, is_case_sensitive=self.is_case_sensitive)) for name in wanted)
        return {name: found for name, found in pairs if found is not None}

    def _to_schema(self, batch: Any, columns: Mapping[str, str], partition: Mapping[str, str | None]) -> Any:
        arrays = []
        for column in self.schema:
            if column.name in partition:
                arrays.append(pa.repeat(pa.scalar(partition[column.name], column.type), batch.num_rows))
            elif column.name in columns:
                arrays.append(batch.column(columns[column.name]).cast(column.type))
            else:
                arrays.append(pa.nulls(batch.num_rows, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@contextmanager
def _opened(uri: str, root: str, size_bytes: int, options: Mapping[str, Any]) -> Iterator[Any]:
    with concealed_failures(f"The file {redact(uri)} of a source cannot be read", options):
        filesystem = open_filesystem(root, dict(options))
        try:
            file, found = open_file(filesystem, filesystem._strip_protocol(uri), redact(uri))
        except FileNotFoundError as error:
            raise SourceChangedError(f"Expected the file {redact(uri)} of a source, found none; restore it.") from error
        with file:
            if found != size_bytes:
                raise SourceChangedError(
                    f"Expected {size_bytes} bytes in {redact(uri)}, as it was listed, found {found}; the file changed during the "
                    "run."
                )
            yield file


def read_footer(uri: str, root: str, size_bytes: int, options: Mapping[str, Any]) -> Any:
    """
    Read the Parquet metadata of a file, or why PyArrow does not read it.

    :raises SourceChangedError: if the file is missing or its size has changed.
    :raises StorageError: if the storage fails, or the file is not a Parquet file.
    """
    with _opened(uri, root, size_bytes, options) as source:
        source.seek(-min(_TAIL_BYTES, size_bytes), 2)
        tail = source.read(_TAIL_BYTES)
        if tail.endswith(_ENCRYPTED):
            return Unreadable("it is encrypted")
        try:
            found = parquet.read_metadata(source)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if not tail.endswith(_PARQUET):
                raise
            return Unreadable(f"PyArrow does not read its schema ({error})")
    # The signature of a file with encrypted columns follows its metadata; PyArrow aborts the process at such a column.
    is_signed = int.from_bytes(tail[:4], "little") != found.serialized_size
    return Unreadable("it is encrypted") if is_signed else found


_TAIL_BYTES = 8
_PARQUET, _ENCRYPTED = b"PAR1", b"PARE"


def rows_of_groups(metadata: Any, groups: tuple[int, int] | None) -> range:
    """Return the numbers of the rows in row groups of a file; of all rows without groups."""
    start, end = groups or (0, metadata.num_row_groups)
    counts = [metadata.row_group(i).num_rows for i in range(end)]
    return range(sum(counts[:start]), sum(counts))
