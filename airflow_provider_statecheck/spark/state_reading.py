"""The state of a checkpoint as a DataFrame of Spark, read by its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.stages.executor.task_storage import TaskStorage
from airflow_provider_statecheck.spark.state_reading_types import as_spark_takes_it, spark_schema_of
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates, StateContent
from airflow_provider_statecheck.state.reading.state_reader import StateReader, StateView, milliseconds

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
    from airflow_provider_statecheck.spark.driver.sessions import is_connect

    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return int(spark.sparkContext.defaultParallelism)
