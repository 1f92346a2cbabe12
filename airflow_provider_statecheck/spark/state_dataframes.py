"""State of checkpoints as Spark DataFrames, read and written by Spark's tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, UnsupportedStateError
from airflow_provider_statecheck.spark.key_groups import KEY_GROUP_COLUMN, shuffled
from airflow_provider_statecheck.spark.stages.executor.task_control import TaskStorage
from airflow_provider_statecheck.spark.stages.planning import arrow_of_spark
from airflow_provider_statecheck.state.descriptors import StateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates, StateContent
from airflow_provider_statecheck.state.reading.columns import key_column_names
from airflow_provider_statecheck.state.reading.state_reader import StateReader, StateView, milliseconds, registered
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.writing.new_rows import NewRows
from airflow_provider_statecheck.state.writing.savepoint_edit import NewHandles, SavepointEdit, StateTarget
from airflow_provider_statecheck.state.writing.write_savepoint import GivenState, audit_of, open_edit, target_of
from airflow_provider_statecheck.storage.state_json import decode_keyed, encode_keyed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def spark_schema_of(schema: Any) -> Any:
    """
    Return the schema of Spark for rows of an Arrow schema.

    :raises UnsupportedStateError: for a type that Spark does not have.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(taken_schema(schema))


def taken_schema(schema: Any) -> Any:
    """
    Return the Arrow schema in which Spark takes the rows of another one; each of their values has a place in it.

    :raises UnsupportedStateError: for a type that Spark does not have.
    """
    import pyarrow as pa

    return pa.schema([(field.name, _taken(field.type, field.name)) for field in schema])


def as_spark_takes_it(table: Any) -> Any:
    """
    Return rows in types that Spark takes.

    :raises UnsupportedStateError: for a type that Spark does not have.
    """
    wanted = taken_schema(table.schema)
    return table if wanted == table.schema else table.cast(wanted)


def _taken(kind: Any, column: str) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if types.is_struct(kind):
        return pa.struct([(field.name, _taken(field.type, column)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_taken(kind.key_type, column), _taken(kind.item_type, column))
    if types.is_list(kind):
        return pa.list_(_taken(kind.value_type, column))
    if types.is_timestamp(kind):
        # Spark knows moments as those of UTC.
        return pa.timestamp("us", "UTC" if kind.tz else None)
    found = _widened().get(kind) or _of_its_kind(kind)
    if found is None:
        raise UnsupportedStateError(
            f"Expected types of state that Spark has, found {kind} in the column {column!r}; read it with "
            f"airflow_provider_statecheck.state.reading.state_reader, which gives Arrow."
        )
    return found


def _widened() -> dict[Any, Any]:
    import pyarrow as pa

    return {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
    }


def _of_its_kind(kind: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_time(kind):
        # Most sessions refuse Spark's own type of times of day.
        return pa.string()
    if types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return kind if plain or types.is_string(kind) or types.is_binary(kind) or types.is_date32(kind) else None


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
    Return a keyed state of a checkpoint as a DataFrame; its tasks read the files, each those of some key groups.

    There is a column for each column of the key, and ``value``; of a map there is a row for each entry, with ``map_key`` and
    ``map_value``.

    :param spark: The session.
    :param pointer: Directory of a checkpoint or savepoint, or its metadata file.
    :param name: Of the state.
    :param uid: Of the function; needed where several have a state of that name.
    :param storage_options: Options of the filesystem; they go to the tasks and are shown nowhere.
    :param allowed_locations: Where else the checkpoint may name files, as URIs such as ``s3://archive``.
    :param now: What has expired by then is left out; by default what had expired when the checkpoint was taken.
    :param with_times: Whether state that expires gets a column ``last_access``.
    :param namespaces: Whether to read rows of namespaces too, with a column ``namespace``.
    :param partitions: How many tasks read; by default as many as the session works on at once, or more for large state.
    :raises CheckpointNotFoundError: if nothing is there.
    :raises UnknownStateError: if the checkpoint has no such state, naming those that it has.
    :raises InvalidConfigurationError: if several functions have one, or for a number of partitions below 1.
    :raises UnsupportedStateError: for types that this release or Spark does not know.
    :raises StorageError: if the storage fails.
    """
    states = CheckpointStates.load(pointer, storage_options, allowed_locations)
    content = states.content(name, uid)
    view = StateView(now_ms=milliseconds(now), with_times=with_times, namespaces=namespaces)
    tasks = _number_of_tasks(spark, content, partitions)
    reading = StateReading(TaskStorage.of(states.storage), content, view, tasks)
    return spark.range(0, tasks, 1, tasks).mapInArrow(reading, reading.spark_schema())


@dataclass(frozen=True, slots=True)
class StateReading:
    """The work of the tasks; it goes to them by pickling and shows no credentials."""

    storage: TaskStorage
    content: StateContent
    view: StateView
    tasks: int

    def spark_schema(self) -> Any:
        """
        Return the columns as Spark has them.

        :raises UnsupportedStateError: for a type that Spark does not have.
        """
        return spark_schema_of(StateReader(self.storage.open(), self.content, self.view).schema)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Read the key groups of each number that comes in."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read(key_group_range_of(number, self.tasks, self.content.max_parallelism))

    def _read(self, owned: KeyGroupRange) -> Iterator[Any]:
        reader = StateReader(self.storage.open(), self.content.within(owned), self.view)
        for table in reader.tables(owned):
            yield from as_spark_takes_it(table).to_batches(max_chunksize=_BATCH_ROWS)


def _number_of_tasks(spark: SparkSession, content: StateContent, partitions: int | None) -> int:
    if partitions is not None and partitions < 1:
        raise InvalidConfigurationError(f"Expected at least 1 partition, found {partitions}.")
    size = sum(handle.state_size for handle in content.handles)
    wanted = partitions or max(tasks_at_once(spark), -(-size // _BYTES_PER_TASK))
    return min(wanted, content.max_parallelism)


def tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks a session works on at once, as far as it can tell."""
    from airflow_provider_statecheck.spark.driver.session import is_connect

    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return int(spark.sparkContext.defaultParallelism)


_WRITTEN = "subtask int, rows bigint, handle string, code string, problem string"
_OF_DATA = {each.code: each for each in (InvalidConfigurationError, UnsupportedStateError)}
"""Errors that no repetition of a task would cure."""


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
    state_backend: str = "arrow",
    by: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
    clock: Clock | None = None,
) -> str:
    """
    Write a savepoint with a keyed state that is given, and return its pointer; a stage begins at it by ``from_savepoint``.

    It is as :func:`airflow_provider_statecheck.state.writing.write_savepoint.write_savepoint`, but each task writes the state
    of one subtask, which it has in memory while it sorts it.

    :param data: A DataFrame with the columns that ``read_state`` gives.
    :param parallelism: How many subtasks the state of a function is cut into that the base does not have; by default as
        many as the session works on at once.
    :raises InvalidConfigurationError: for arguments or columns that are missing or do not fit, and for a key that is there twice.
    :raises UnsupportedStateError: for values that do not fit the types.
    :raises UnknownStateError: for a name alone that the base does not have.
    :raises IncompatibleCheckpointError: if the base is another stage's.
    :raises StateMigrationError: for another key than that of the base.
    :raises CheckpointNotFoundError: if there is no base, or a file of it is missing.
    :raises StorageError: if the storage fails; what was written is deleted.
    """
    given = GivenState(
        state=state,
        stage=stage,
        function=function,
        key=key,
        max_parallelism=max_parallelism,
        parallelism=parallelism or tasks_at_once(data.sparkSession),
        state_backend=state_backend,
    )
    source = None if base is None else CheckpointStates.load(base, storage_options, allowed_locations)
    place = target_of(given, arrow_of_spark(data.schema), source)
    now = (clock or SystemClock()).now().isoformat()
    edit = open_edit(place, source, target, storage_options, now)
    with edit.deleting_on_failure():
        written, rows = _written(data, place, edit)
        return edit.finish(written, audit_of(place, base, rows, by, now))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskWriting:
    """The work of the tasks; it goes to them by pickling, without any code of the user."""

    storage: TaskStorage
    directory: str
    epoch: int
    is_full: bool
    schema: StateSchema
    keys: KeySerializer
    max_parallelism: int
    parallelism: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Write the rows of a partition and say where they are, or what is wrong with them."""
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        subtask = 0 if context is None else context.partitionId()
        found: dict[str, Any] = {"subtask": subtask, "rows": 0, "handle": None, "code": None, "problem": None}
        tables = [pa.Table.from_batches([batch]).drop_columns([KEY_GROUP_COLUMN]) for batch in batches]
        try:
            found |= self._write(subtask, pa.concat_tables(tables)) if tables else {}
        except tuple(_OF_DATA.values()) as error:
            found |= {"code": error.code, "problem": str(error)}
        yield pa.RecordBatch.from_pylist([found], schema=_report_schema())

    def _write(self, subtask: int, data: Any) -> dict[str, Any]:
        new = NewRows(registered(self.schema), self.keys, self.max_parallelism)
        rows = new.of(data)
        handles = NewHandles(self.storage.open(), self.directory, self.epoch, self.is_full)
        handle = handles.write(new, rows, self._owned(subtask))
        encoded = None if handle is None else json.dumps(encode_keyed(handle, _same))
        return {"rows": rows.num_rows, "handle": encoded}

    def _owned(self, subtask: int) -> KeyGroupRange:
        return key_group_range_of(subtask, self.parallelism, self.max_parallelism)


def _report_schema() -> Any:
    import pyarrow as pa

    kinds = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string()}
    return pa.schema([(name, kinds[kind]) for name, kind in (each.split() for each in _WRITTEN.split(", "))])


def _written(data: DataFrame, place: StateTarget, edit: SavepointEdit) -> tuple[Sequence[KeyedStateHandle | None], int]:
    rows = place.rows
    task = SubtaskWriting(
        storage=TaskStorage.of(edit.handles.storage),
        directory=edit.directory,
        epoch=edit.handles.epoch,
        is_full=place.is_full,
        schema=rows.state.schema(),
        keys=rows.keys,
        max_parallelism=rows.max_parallelism,
        parallelism=place.parallelism,
    )
    key = key_column_names([field.name for field in rows.keys.fields])
    dealt = shuffled(data, key, rows.max_parallelism, place.parallelism)
    found = dealt.mapInArrow(task, _WRITTEN).collect()
    _require_written([(row.code, row.problem) for row in found])
    handles: list[KeyedStateHandle | None] = [None] * place.parallelism
    for row in found:
        handles[row.subtask] = None if row.handle is None else decode_keyed(json.loads(row.handle), _same)
    return handles, sum(row.rows for row in found)


def _require_written(problems: list[tuple[str | None, str | None]]) -> None:
    for code, problem in problems:
        if code is not None:
            kind: type[StateCheckError] = _OF_DATA[code]
            raise kind(problem or code)


def _same(uri: str) -> str:
    return uri
