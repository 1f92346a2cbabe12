"""Keyed state and snapshots of checkpoints as Spark DataFrames, read and written by Spark's tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_statecheck.checkpoint.codec import decode, encode, require_count
from airflow_provider_statecheck.checkpoint.records import Clock
from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    key_group_range_of,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.driver.session import tasks_at_once
from airflow_provider_statecheck.spark.snapshots.dataframes import StoredDataFrames, StoredSnapshot
from airflow_provider_statecheck.spark.stages.planning import KEY_GROUP_COLUMN, shuffled
from airflow_provider_statecheck.spark.tables.alignment import positional
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema
from airflow_provider_statecheck.spark.versions import from_arrow_schema
from airflow_provider_statecheck.state.descriptors import StateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates, StateContent
from airflow_provider_statecheck.state.reading.snapshot_reader import find_snapshot
from airflow_provider_statecheck.state.reading.state_reader import (
    StateReader,
    key_column_names,
    milliseconds,
    registered,
)
from airflow_provider_statecheck.state.schema_evolution import StateSchema
from airflow_provider_statecheck.state.serializers.nested_columns import portable_type
from airflow_provider_statecheck.state.writing.canonical_files import CanonicalFiles, NewRows
from airflow_provider_statecheck.state.writing.write_savepoint import (
    StateRows,
    WrittenState,
    write_savepoint as write_rows,
    write_subtask,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_manifest import read_verified_manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_BYTES_PER_TASK = 256 << 20
_BATCH_ROWS = 1 << 16


def read_state(
    spark: SparkSession,
    pointer: str,
    name: str,
    *,
    uid: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
    now: datetime | None = None,
    with_times: bool = False,
    namespaces: bool = False,
    partitions: int | None = None,
) -> DataFrame:
    """
    Return a keyed state of a checkpoint as a DataFrame; each of its tasks reads the files of a range of key groups.

    The columns are those of the key, and ``value``. A map state has a row for each entry, with the columns ``map_key``
    and ``map_value``.

    :param spark: The session.
    :param pointer: Directory of a checkpoint or savepoint, or its metadata file.
    :param name: Name of the state.
    :param uid: Uid of the function; required if several functions have a state of this name. In a savepoint of the
        whole job, the uid of the stage, or both with ``/`` in between.
    :param storage_options: Options of the filesystem; they are sent to the tasks, but not part of any text.
    :param allowed_locations: Further locations of files that the checkpoint may reference, as URIs such as
        ``s3://archive``.
    :param now: Time by which expired values are left out; by default, the time of the checkpoint.
    :param with_times: Whether state with a time-to-live gets a column ``last_access``.
    :param namespaces: Whether to include rows of namespaces, with a column ``namespace``.
    :param partitions: Number of tasks; by default the parallelism of the session, or more for large state.
    :raises CheckpointNotFoundError: if there is no checkpoint.
    :raises UnknownStateError: if the checkpoint has no such state; the message lists its states.
    :raises InvalidConfigurationError: if several functions have the state, or for a number of partitions below 1.
    :raises UnsupportedStateError: for types that this release or Spark does not support.
    :raises StorageError: if the storage fails.
    """
    states = CheckpointStates.load(pointer, storage_options, allowed_locations)
    content = states.content(name, uid)
    view = {"now_ms": milliseconds(now), "with_times": with_times, "namespaces": namespaces}
    tasks = _number_of_tasks(spark, content, partitions)
    reading = StateReading(states.storage, content, view, tasks)
    return spark.range(0, tasks, 1, tasks).mapInArrow(reading, reading.spark_schema())


def read_snapshot(
    spark: SparkSession,
    pointer: str,
    name: str,
    *,
    scope: str | None = None,
    uid: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
) -> DataFrame:
    """
    Return a named DataFrame snapshot of a checkpoint, with the columns that the stage gets after a restore.

    :param spark: The session.
    :param pointer: Directory of a checkpoint or savepoint, or its metadata file.
    :param name: Name of the snapshot.
    :param scope: Items of the loops around the snapshot, such as ``days[2026-01-01]``, or ``""`` for none; required if
        the checkpoint has the name in several scopes.
    :param uid: Uid of the stage; required for a savepoint of the whole job.
    :param storage_options: Options of the filesystem; they are sent to the tasks, but not part of any text. Files that
        Spark has written are read with the credentials of the session.
    :param allowed_locations: Further locations of files that the checkpoint may reference, as URIs such as
        ``s3://archive``.
    :raises CheckpointNotFoundError: if the checkpoint or the manifest of the snapshot is missing.
    :raises UnknownStateError: if the checkpoint has no such snapshot or stage; the message lists those that it has.
    :raises InvalidConfigurationError: if several scopes have the name, or for several stages and no uid.
    :raises CorruptStateError: if a file of the snapshot was changed.
    :raises UnsupportedStateError: if Spark has written the files to a filesystem that this session does not have.
    :raises StorageError: if the storage fails.
    """
    states = CheckpointStates.load(pointer, storage_options, allowed_locations).of_stage(uid)
    found = find_snapshot(states.document, name, scope)
    stored = [StoredSnapshot(each.uri, read_verified_manifest(states.storage, each)) for each in found.handles]
    return StoredDataFrames(states.storage).read(spark, stored)


@dataclass(frozen=True, slots=True)
class StateReading:
    """Function of the tasks that read state; picklable, and its text contains no credentials."""

    storage: CheckpointStorage
    content: StateContent
    view: Mapping[str, Any]
    """Options of the reader."""
    tasks: int

    def spark_schema(self) -> Any:
        """
        Return the Spark schema of the rows.

        :raises UnsupportedStateError: for a type that Spark does not support.
        """
        return from_arrow_schema(spark_arrow_schema(StateReader(self.storage, self.content, **self.view).schema))

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows of the key groups of each task number."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read(key_group_range_of(number, self.tasks, self.content.max_parallelism))

    def _read(self, owned: KeyGroupRange) -> Iterator[Any]:
        reader = StateReader(self.storage, self.content, **self.view)
        for table in reader.tables(owned):
            yield from to_spark_types(table).to_batches(max_chunksize=_BATCH_ROWS)


def _number_of_tasks(spark: SparkSession, content: StateContent, partitions: int | None) -> int:
    if partitions is not None:
        return min(require_count("partitions", partitions), content.max_parallelism)
    size = sum(handle.state_size for handle in content.handles)
    return min(max(tasks_at_once(spark), -(-size // _BYTES_PER_TASK)), content.max_parallelism)


_REPORT = "subtask int, rows bigint, handle string, code string, problem string"
_DATA_ERRORS = {each.code: each for each in (InvalidConfigurationError, UnsupportedStateError)}
"""Errors of the data, for which a retry of the task is useless; tasks report them as rows."""


def write_savepoint(
    data: DataFrame,
    state: StateDescriptor[Any] | str,
    *,
    stage: str,
    function: str,
    target: str,
    key: Sequence[str] | None = None,
    max_parallelism: int | None = None,
    parallelism: int | None = None,
    base: str | None = None,
    by: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
    clock: Clock | None = None,
) -> str:
    """
    Write a savepoint with a keyed state and return its pointer; a stage restores it by ``from_savepoint``.

    Works like :func:`airflow_provider_statecheck.state.writing.write_savepoint.write_savepoint`, but each Spark task
    sorts and writes the state of one subtask, in memory.

    :param data: DataFrame with the columns of ``read_state``.
    :param parallelism: Number of subtasks of a function that the base does not contain; by default the parallelism of
        the session.
    :raises InvalidConfigurationError: for missing or invalid arguments or columns, and for duplicate keys.
    :raises UnsupportedStateError: for values that do not fit the types.
    :raises UnknownStateError: for a name without a type that the base does not contain.
    :raises IncompatibleCheckpointError: if the base is of another stage.
    :raises StateMigrationError: if the key differs from that of the base.
    :raises CheckpointNotFoundError: if the base or a file of it is missing.
    :raises StorageError: if the storage fails; the written files remain without metadata, because a write may still
        succeed.
    """
    return write_rows(
        SparkRows(data),
        state,
        stage=stage,
        function=function,
        target=target,
        key=key,
        max_parallelism=max_parallelism,
        parallelism=parallelism or tasks_at_once(data.sparkSession),
        base=base,
        by=by,
        storage_options=storage_options,
        allowed_locations=allowed_locations,
        clock=clock,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskWriting:
    """Function of the tasks that write state; picklable, without user code."""

    storage: CheckpointStorage
    directory: str
    epoch: int
    uid: str
    schema: StateSchema
    keys: KeySerializer
    max_parallelism: int
    parallelism: int
    columns: tuple[str, ...]
    """Names of the columns, which Spark sends under positional names."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Write the rows of a partition, and yield its handle or its error as a row."""
        from pyspark import TaskContext

        context = TaskContext.get()
        subtask = 0 if context is None else context.partitionId()
        report: dict[str, Any] = {"subtask": subtask, "rows": 0, "handle": None, "code": None, "problem": None}
        named = (pa.Table.from_batches([batch]).rename_columns(list(self.columns)) for batch in batches)
        tables = [table.drop_columns([KEY_GROUP_COLUMN]) for table in named]
        try:
            report |= self._write(subtask, pa.concat_tables(tables)) if tables else {}
        except tuple(_DATA_ERRORS.values()) as error:
            report |= {"code": error.code, "problem": str(error)}
        yield pa.RecordBatch.from_pylist([report], schema=_report_schema())

    def _write(self, subtask: int, data: Any) -> dict[str, Any]:
        new = NewRows(registered(self.schema), self.keys, self.max_parallelism)
        rows = new.of(data)
        files = CanonicalFiles(self.storage, self.directory, self.epoch)
        handle = write_subtask(files, self.uid, new, rows, subtask=subtask, parallelism=self.parallelism)
        encoded = None if handle is None else json.dumps(encode(handle))
        return {"rows": rows.num_rows, "handle": encoded}


def _report_schema() -> Any:
    kinds = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string()}
    return pa.schema([(name, kinds[kind]) for name, kind in (each.split() for each in _REPORT.split(", "))])


class SparkRows(StateRows):
    """Rows of a DataFrame, written by Spark's tasks."""

    def __init__(self, data: DataFrame) -> None:
        super().__init__(arrow_schema(data.schema))
        self._data = data

    @override
    def write(self, operator: OperatorState, new: NewRows, files: CanonicalFiles) -> WrittenState:
        key = key_column_names([field.name for field in new.keys.fields])
        by_subtask = shuffled(self._data, key, new.max_parallelism, operator.parallelism)
        task = SubtaskWriting(
            storage=files.storage,
            directory=files.directory,
            epoch=files.epoch,
            uid=operator.uid,
            schema=new.state.schema(),
            keys=new.keys,
            max_parallelism=new.max_parallelism,
            parallelism=operator.parallelism,
            columns=tuple(by_subtask.columns),
        )
        reports = positional(by_subtask).mapInArrow(task, _REPORT).collect()
        _raise_data_error([(report.code, report.problem) for report in reports])
        handles: list[KeyedStateHandle | None] = [None] * operator.parallelism
        for report in reports:
            encoded = report.handle
            handles[report.subtask] = None if encoded is None else decode(KeyedStateHandle, json.loads(encoded))
        return handles, sum(report.rows for report in reports)


def _raise_data_error(problems: list[tuple[str | None, str | None]]) -> None:
    for code, problem in problems:
        if code is not None:
            kind: type[StateCheckError] = _DATA_ERRORS[code]
            raise kind(problem or code)


def spark_arrow_schema(schema: Any) -> Any:
    """
    Return an Arrow schema with types that Spark supports and that can represent all values of a schema.

    :raises UnsupportedStateError: for a type that Spark does not support.
    """
    return pa.schema([(field.name, portable_type(field.type, _refusing(field.name))) for field in schema])


def to_spark_types(table: Any) -> Any:
    """
    Return a table with its columns cast to types that Spark supports.

    :raises UnsupportedStateError: for a type that Spark does not support.
    """
    wanted = spark_arrow_schema(table.schema)
    return table if wanted == table.schema else table.cast(wanted)


def _refusing(column: str) -> Callable[[Any], NoReturn]:
    def refuse(kind: Any) -> NoReturn:
        raise UnsupportedStateError(
            f"Expected types of state that Spark supports, found {kind} in the column {column!r}; read it with "
            f"airflow_provider_statecheck.state.reading.state_reader, which returns Arrow tables."
        )

    return refuse
