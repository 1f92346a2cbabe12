"""A new savepoint whose state is given as a DataFrame, written by Spark's tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, UnsupportedStateError
from airflow_provider_statecheck.spark.key_groups import KEY_GROUP_COLUMN, shuffled
from airflow_provider_statecheck.spark.stages.executor.task_storage import TaskStorage
from airflow_provider_statecheck.spark.stages.output_schemas import arrow_of_spark
from airflow_provider_statecheck.spark.state_reading import tasks_at_once
from airflow_provider_statecheck.state.descriptors import StateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.columns import key_column_names
from airflow_provider_statecheck.state.reading.state_reader import registered
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.writing.new_handles import NewHandles
from airflow_provider_statecheck.state.writing.new_rows import NewRows
from airflow_provider_statecheck.state.writing.places import GivenState, place_of
from airflow_provider_statecheck.state.writing.savepoint_edit import SavepointEdit, StatePlace
from airflow_provider_statecheck.state.writing.write_savepoint import audit_of, open_edit
from airflow_provider_statecheck.storage.handle_json import decode_keyed, encode_keyed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    place = place_of(given, arrow_of_spark(data.schema), source)
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


def _written(data: DataFrame, place: StatePlace, edit: SavepointEdit) -> tuple[Sequence[KeyedStateHandle | None], int]:
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
