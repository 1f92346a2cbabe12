"""
Task side of an Iceberg sink: data files, upserts and deletes of retracted rows.

To delete rows, the driver writes the rows that remain of each affected data file to a new file, which replaces the old
one.
"""

from __future__ import annotations

import functools
import itertools
import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import StateCheckError, StorageError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import CommitRange
from airflow_provider_statecheck.spark.connectors.iceberg.partitions import partitions_of, require_nameable
from airflow_provider_statecheck.spark.connectors.iceberg.table import (
    TaskTable,
    data_location,
    encode_data_file,
    is_local_location,
    required_fields,
)
from airflow_provider_statecheck.spark.connectors.limits import iceberg_limits, null_collections
from airflow_provider_statecheck.spark.connectors.sink import (
    CHECKPOINT,
    LINEAGE,
    ROW,
    SinkTaskContext,
    SinkWriter,
    TaskCommittable,
    last_rows,
    numbered,
    require_output_columns,
)
from airflow_provider_statecheck.spark.tables.schemas import with_required
from airflow_provider_statecheck.storage.failures import advice
from airflow_provider_statecheck.storage.uris import conceal, harmless, redact

log = logging.getLogger(__name__)
_PREFIX = "statecheck-"


class IcebergSinkWriter(SinkWriter):
    """
    Writes data files into the data directory of a table.

    A failed or duplicate task may leave orphan files there.
    """

    def __init__(self, target: WriterTarget, context: SinkTaskContext) -> None:
        self._target = target
        self._context = context
        self._metadata, self._io = target.table.open()
        required = required_fields(self._metadata.schema())
        self._columns = with_required(context.schema.remove_metadata(), required)
        limits = iceberg_limits(
            self._columns, f"the Iceberg table {target.table.shown}", keys=target.upsert_by, required=required
        )
        self._limits = replace(limits, limits=(*limits.limits, *null_collections(self._columns)))
        self._buffered: list[Any] = []
        self._buffered_bytes = 0
        self._files: list[Any] = []
        self._paths: list[str] = []
        """Paths of all files that the task has begun to write."""

    @override
    def write(self, table: Any) -> None:
        if not table.num_rows:
            return
        self._limits.require(table)
        self._buffered.append(table.select(self._columns.names).cast(self._columns))
        self._buffered_bytes += table.nbytes
        if self._buffered_bytes >= self._target.buffer_bytes:
            self._flush()

    @override
    def prepare_commit(self) -> list[dict[str, Any]]:
        self._flush()
        committable = IcebergCommittable(
            lineage=self._target.lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            files=tuple(encode_data_file(file) for file in self._files),
        )
        return [committable.to_json()]

    @override
    def abort(self) -> None:
        for path in self._paths:
            try:
                self._io.delete(path)
            except FileNotFoundError:
                log.debug("The data file %s was not begun", path)
            except Exception as error:
                log.warning(
                    "Orphan data file of %s was not deleted: %s", self._target.table.shown, self._described(error)
                )
        self._paths.clear()
        self._files.clear()
        self._buffered.clear()

    def _flush(self) -> None:
        if not self._buffered:
            return
        from pyiceberg.io.pyarrow import write_file

        table = pa.concat_tables(self._buffered)
        if self._target.upsert_by:
            # The order of rows of a key would be lost if they are in files of different partitions.
            table = last_rows(table, self._target.upsert_by)
        self._buffered, self._buffered_bytes = [], 0
        try:
            for file in write_file(self._io, self._metadata, self._write_tasks(table)):
                file.spec_id = self._metadata.default_spec_id
                self._files.append(file)
        except StateCheckError:
            raise
        except Exception as error:
            raise StorageError(
                f"Cannot write data files of the Iceberg table {self._target.table.shown} below "
                f"{redact(data_location(self._metadata))}: {self._described(error)}{advice(error)}"
            ) from harmless(error, self._target.table.io.reveal())

    def _write_tasks(self, table: Any) -> Iterator[Any]:
        columns, task, context = write_schema(self._metadata, table), _named_write_task(), self._context
        for number, (partition, rows) in enumerate(partitions_of(self._metadata, table)):
            found = task(
                write_uuid=uuid.uuid4(),
                task_id=number,
                schema=columns,
                record_batches=rows.combine_chunks().to_batches(),
                partition_key=partition,
                name=data_file_name(self._target.lineage, context.epoch, context.subtask, new_key()),
            )
            self._paths.append(self._path_of(found))
            yield found

    def _path_of(self, task: Any) -> str:
        from pyiceberg.table.locations import load_location_provider

        if is_local_location(data_location(self._metadata)):
            require_nameable(task.partition_key, self._target.table.shown)
        provider = load_location_provider(self._metadata.location, self._metadata.properties)
        name = task.generate_data_file_filename("parquet")
        return str(provider.new_data_location(name, task.partition_key))

    def _described(self, error: Exception) -> str:
        return f"{type(error).__name__}: {conceal(str(error), self._target.table.io.reveal())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterTarget:
    """What a task needs for writing."""

    table: TaskTable
    lineage: str
    buffer_bytes: int
    """Size in bytes of the rows that a task buffers."""
    upsert_by: tuple[str, ...] = ()
    """Key columns for upserts; empty for appends."""


@functools.cache
def _named_write_task() -> Any:
    """Return the class of the write tasks of pyiceberg with the names of their data files."""
    from pyiceberg.table import WriteTask

    @dataclass(frozen=True)
    class NamedWriteTask(WriteTask):
        name: str = ""

        @override
        def generate_data_file_filename(self, extension: str) -> str:
            return f"{self.name}.{extension}"

    return NamedWriteTask


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergCommittable(TaskCommittable):
    """Data files of one task."""

    KIND: ClassVar[str] = "the uncommitted output of an Iceberg sink"
    FORMAT: ClassVar[Mapping[str, Any]] = {"format_version": 1, "kind": "iceberg"}

    files: tuple[dict[str, Any], ...]
    """Results of :func:`encode_data_file`."""

    @property
    @override
    def has_output(self) -> bool:
        return bool(self.files)


def data_file_name(lineage: str, epoch: int, subtask: int, key: str) -> str:
    """
    Return the name of a data file without its extension.

    :param key: Unique key of 32 hex characters.
    """
    return f"{_PREFIX}{lineage}-e{epoch}-{subtask}-{key}"


def is_file_of(file: Any, lineage: str) -> bool:
    """Return whether a sink has written a data file, according to its name."""
    return str(file.file_path).rpartition("/")[2].startswith(f"{_PREFIX}{lineage}-")


def write_schema(metadata: Any, table: Any) -> Any:
    """Return the Iceberg schema of rows to write."""
    return _iceberg_schema(metadata, table.schema)


def _iceberg_schema(metadata: Any, schema: Any) -> Any:
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    names = metadata.schema().name_mapping
    return pyarrow_to_schema(schema, name_mapping=names, format_version=metadata.format_version)


def conversion_differences(metadata: Any, schema: Any) -> list[str]:
    """
    Return the columns, and parts of them, that PyIceberg accepts and whose values it could not write unchanged.

    :param schema: Arrow schema of the output, which passed PyIceberg's own check.
    """
    from pyiceberg.schema import index_by_id

    ours, theirs = _iceberg_schema(metadata, schema), index_by_id(metadata.schema())
    return [
        f"column {ours.find_column_name(number)!r} is {theirs[number].field_type} there and {field.field_type} here"
        for number, field in index_by_id(ours).items()
        if _is_converted(field.field_type, theirs[number].field_type)
    ]


def _is_converted(given: Any, wanted: Any) -> bool:
    # PyIceberg takes text for bytes and vice versa, and decimals of any scale; writing them changes values, or fails.
    from pyiceberg.types import BinaryType, DecimalType, StringType

    if isinstance(given, DecimalType) and isinstance(wanted, DecimalType):
        return given.scale != wanted.scale or given.precision > wanted.precision
    return isinstance(given, BinaryType | StringType) and given != wanted


def without_impossible_bounds(metadata: Any, table: Any) -> Any:
    """
    Return the metadata of a table with which files get no bounds that PyIceberg cannot compute.

    Other writers may have written such values, and an upsert writes the rows of their files again.
    """
    limits = iceberg_limits(table.schema, "the table", keys=(), required=())
    found = {f"{_METRICS_OF_COLUMN}.{limit.path}": "counts" for limit, _ in limits.violated(table)}
    return metadata.model_copy(update={"properties": {**metadata.properties, **found}}) if found else metadata


_METRICS_OF_COLUMN = "write.metadata.metrics.column"
_IS_OURS = "_statecheck_is_ours"
MOST_VALUES = 200
"""Number of values up to which pyiceberg compares each of them with the statistics of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """
    Changes of the rows of one commit.

    :param keys: Key columns of the new rows; empty without new rows.
    :param rows: New rows as an Arrow table of :func:`read_rows`; ``None`` for none.
    :param checkpoint_id: Checkpoint of the new rows.
    :param retracted: Ranges of checkpoints whose marked rows are deleted.
    """

    table: Any
    lineage: str
    keys: Sequence[str] = ()
    rows: Any = None
    checkpoint_id: int = 0
    retracted: Sequence[CommitRange] = ()

    def carry_out(self, ignored: Collection[Any]) -> tuple[list[Any], list[Any]]:
        """
        Write the new data files; no snapshot references them yet.

        :param ignored: Data files that the same commit removes.
        :return: The data files to add and to remove.
        """
        add, remove, replaced = [], [], []
        for task in self.table.scan(row_filter=self._condition()).plan_files():
            if task.file not in ignored:
                found = read_rows(self.table, [task])
                left = self._without_retracted(found)
                kept, same_keys = self._split(left)
                if kept.num_rows < found.num_rows:
                    remove.append(task.file)
                    replaced.append(same_keys)
                    add += self._write(kept)
        return [*add, *self._write(self._marked(replaced))], remove

    def _condition(self) -> Any:
        make = _expressions()
        condition = make.AlwaysFalse()
        for each in self.retracted:
            begun = make.And(make.EqualTo(LINEAGE, self.lineage), make.GreaterThanOrEqual(CHECKPOINT, each.first))
            condition = make.Or(condition, make.And(begun, make.LessThanOrEqual(CHECKPOINT, each.last)))
        return condition if self.rows is None else make.Or(condition, _key_condition(self.rows.select(self.keys)))

    def _without_retracted(self, table: Any) -> Any:
        for each in self.retracted:
            checkpoint = pc.field(CHECKPOINT)
            is_between = (checkpoint >= each.first) & (checkpoint <= each.last)
            is_retracted = (pc.field(LINEAGE) == self.lineage) & is_between
            table = table.filter(pc.coalesce(~is_retracted, True))
        return table

    def _split(self, table: Any) -> tuple[Any, Any]:
        """Return the rows without a new key, and the keys and marks of the others."""
        if self.rows is None:
            return table, table.slice(0, 0)
        # A join of whole rows would not support nested columns.
        found = numbered(table.select(self.keys))
        matching = found.join(self.rows.select(self.keys), keys=list(self.keys), join_type="left semi")
        is_matching = pc.is_in(found.column(ROW), value_set=matching.column(ROW))
        marks = [LINEAGE, CHECKPOINT] if has_marks(self.table) else []
        return table.filter(pc.invert(is_matching)), table.filter(is_matching).select([*self.keys, *marks])

    def _marked(self, replaced: Sequence[Any]) -> Any:
        """
        Return the new rows.

        Those that replace only rows of this sink keep the marks, others lose them permanently.
        """
        if self.rows is None or not has_marks(self.table):
            return self.rows
        known = self._known_marks(replaced)
        found = numbered(self.rows.select(self.keys)).join(known, keys=list(self.keys), join_type="left outer")
        found = found.sort_by(ROW)
        is_ours = pc.fill_null(found.column(_IS_OURS), True)
        checkpoint = pc.coalesce(found.column(CHECKPOINT), pa.scalar(self.checkpoint_id, pa.int64()))
        rows = _with_column(self.rows, LINEAGE, pc.if_else(is_ours, pa.scalar(self.lineage), None))
        return _with_column(rows, CHECKPOINT, pc.if_else(is_ours, checkpoint, None))

    def _known_marks(self, replaced: Sequence[Any]) -> Any:
        columns = [*self.keys, LINEAGE, CHECKPOINT]
        rows = pa.concat_tables([self.rows.slice(0, 0).select(columns), *replaced])
        is_ours = pc.fill_null(pc.equal(rows.column(LINEAGE), self.lineage), False)
        marked = rows.drop_columns(LINEAGE).append_column(_IS_OURS, is_ours)
        grouped = marked.group_by(list(self.keys)).aggregate([(_IS_OURS, "all"), (CHECKPOINT, "min")])
        return grouped.rename_columns([*self.keys, _IS_OURS, CHECKPOINT])

    def _write(self, table: Any) -> list[Any]:
        from pyiceberg.io.pyarrow import write_file

        if table is None or not table.num_rows:
            return []
        metadata = without_impossible_bounds(self.table.metadata, table)
        return list(write_file(self.table.io, metadata, self._write_tasks(table)))

    def _write_tasks(self, table: Any) -> Iterator[Any]:
        from pyiceberg.io.pyarrow import bin_pack_arrow_table
        from pyiceberg.table import TableProperties, WriteTask

        metadata, number = self.table.metadata, itertools.count()
        columns, write_uuid = write_schema(metadata, table), uuid.uuid4()
        size = metadata.properties.get(
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        )
        for partition, rows in partitions_of(metadata, table):
            for batches in bin_pack_arrow_table(rows.combine_chunks(), int(size)):
                yield WriteTask(
                    write_uuid=write_uuid,
                    task_id=next(number),
                    schema=columns,
                    record_batches=batches,
                    partition_key=partition,
                )


def has_marks(table: Any) -> bool:
    """Return whether the table has the columns that record the sink and the checkpoint of a row."""
    from pyiceberg.types import LongType, StringType

    types = {column.name: column.field_type for column in table.schema().fields}
    return types.get(LINEAGE) == StringType() and types.get(CHECKPOINT) == LongType()


def require_marks(table: Any, shown: str) -> None:
    """
    Require the columns that record the sink and the checkpoint of a row.

    :raises UnsupportedStateError: if they are missing.
    """
    if not has_marks(table):
        raise UnsupportedStateError(
            f"Expected the columns {LINEAGE} (string) and {CHECKPOINT} (long) in the Iceberg table {shown}, as it had "
            "them when rows were upserted, found that they were dropped; roll the table back to a snapshot and a "
            "schema with them, or delete the rows of this stage from the table, drop the branch of the sink and "
            "start over."
        )


def require_keys(table: Any, keys: Sequence[str], schema: Any, shown: str) -> None:
    """
    Require key columns for upserts, and no output in the columns that the sink sets itself.

    :param schema: Arrow schema of the output; ``None`` if it is not known yet.
    :raises UnsupportedStateError: if a key column is missing or of an unsupported type.
    """
    known = {column.name: column.field_type for column in table.schema().fields}
    marks = (LINEAGE, CHECKPOINT)
    require_output_columns(
        [name for name in known if name not in marks] if schema is None else schema.names, keys, marks
    )
    wrong = [name for name in keys if not _is_exact(known.get(name))]
    if wrong:
        raise UnsupportedStateError(
            f"Expected upsert_by to name columns of the output and of the Iceberg table {shown} with exact types, "
            f"found {', '.join(f'{name} ({known.get(name)})' for name in wrong)}; use columns of integers, decimals, "
            "text, binary, dates, times or booleans."
        )


def _is_exact(kind: Any) -> bool:
    from pyiceberg import types

    exact = types.BooleanType | types.IntegerType | types.LongType | types.DecimalType | types.StringType
    return isinstance(kind, exact | types.BinaryType | types.DateType | types.TimestampType | types.TimestamptzType)


def read_rows(table: Any, tasks: Sequence[Any]) -> Any:
    """Return the rows of data files in their order, with the columns of the table, as an Arrow table."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow

    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
    # Readers may return equal types in different forms, such as strings with small and large offsets.
    return rows.cast(schema_to_pyarrow(table.schema(), include_field_ids=False))


def rows_of_files(table: Any, files: Sequence[Any], keys: Sequence[str]) -> Any:
    """Return the rows of data files that no snapshot references; for equal keys, the last row wins."""
    from pyiceberg.table import FileScanTask

    return last_rows(read_rows(table, [FileScanTask(file) for file in files]), keys)


def _with_column(table: Any, name: str, values: Any) -> Any:
    return table.set_column(table.schema.get_field_index(name), name, values.cast(table.schema.field(name).type))


def _key_condition(keys: Any) -> Any:
    """Return a condition that the rows with the keys fulfil, and possibly others."""
    make = _expressions()
    condition = make.AlwaysTrue()
    for name in keys.column_names:
        condition = make.And(condition, _column_condition(name, keys.column(name)))
    return condition


def _column_condition(name: str, column: Any) -> Any:
    make, values = _expressions(), column.unique()
    if len(values) <= MOST_VALUES:
        return make.In(name, values.to_pylist())
    bounds = pc.min_max(values).as_py()
    return make.And(make.GreaterThanOrEqual(name, bounds["min"]), make.LessThanOrEqual(name, bounds["max"]))


def _expressions() -> Any:
    # The constructors accept names and values, which their types do not show.
    from pyiceberg import expressions

    return expressions
