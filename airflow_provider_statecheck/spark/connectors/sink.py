"""Contract between a stage and its sinks, their committables, and upserts by key."""

from __future__ import annotations

import base64
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    UnfitOutputError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.places import RestoredOutput
from airflow_provider_statecheck.spark.tables.data_files import WrittenFile

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions


@runtime_checkable
class Sink(Protocol):
    """
    A destination for output that takes part in checkpoints.

    The driver calls :meth:`open` once, after the restored checkpoint is known and before any work. It then calls
    :meth:`commit` for each completed checkpoint without a confirmed commit, in the order of their ids. Commits of
    earlier attempts come before the first commit of this attempt. Finally, it calls :meth:`close`.

    Spark tasks call :meth:`writer` on a pickled copy of the opened sink. Only the committables of successful tasks
    reach the driver; the output of failed and duplicate tasks is never committed.
    """

    def open(self, context: SinkContext) -> None:
        """
        Check the target and take ownership of it from earlier attempts; idempotent.

        :raises StaleAttemptError: if a newer attempt owns the target.
        :raises StateCheckError: if the sink cannot write to the target.
        """

    def writer(self, context: SinkTaskContext) -> SinkWriter:
        """Return the writer of one Spark task."""

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Publish the output of a completed checkpoint; idempotent, also across attempts.

        :param committables: Committables that the writers of the checkpoint returned, in any order. After a restore
            from a savepoint of another job they may belong to that job; a sink does not publish those.
        """

    def close(self, succeeded: bool) -> None:
        """
        End the attempt.

        :param succeeded: Whether the stage succeeded with every commit confirmed.
        """


class SinkWriter(Protocol):
    """
    Writes the output of one Spark task.

    The task calls :meth:`write` any number of times, then :meth:`prepare_commit` once, or :meth:`abort` if it fails.
    The output stays invisible to readers until the driver commits it.
    """

    def write(self, table: Any) -> None:
        """
        Write an Arrow table.

        :param table: An Arrow table with the columns of the schema, in any order.
        :raises UnsupportedStateError: if the output cannot be written, such as a row of an upsert without a key.
        :raises StorageError: if the storage fails.
        """

    def prepare_commit(self) -> list[dict[str, Any]]:
        """
        Make the output durable and return its committables as plain JSON, at least one.

        :raises StorageError: if the storage fails.
        """

    def abort(self) -> None:
        """Discard the output; called instead of :meth:`prepare_commit`, or after it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """The attempt that opens a sink."""

    job_id: str
    job_name: str
    uid: str
    """UID of the sink within its job."""
    operator_id: str
    epoch: int
    """Fencing epoch of the attempt."""
    generation: int
    """Number that increases with each fresh start."""
    restored_checkpoint_id: int | None
    """Checkpoint that the attempt restored; ``None`` for a fresh start and for a checkpoint of another job."""
    restored_epoch: int | None = None
    """Epoch of the attempt that took the restored checkpoint; ``None`` if there is none."""
    restored_output: RestoredOutput | None = None
    """Output of the restored checkpoint; ``None`` without one of this job."""
    is_fresh: bool
    """Whether the attempt starts without a checkpoint."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Filesystem options for a sink that has no options set; they may contain credentials."""
    schema: Any = None
    """Arrow schema of the output, if known; a sink refuses an incompatible schema before the stage does any work."""
    gone_uids: tuple[str, ...] = ()
    """UIDs of the sinks of removed stages of the job; a sink that is new in a target refuses their output there."""

    @property
    def lineage(self) -> str:
        """The identifier of the sink of the job across all attempts."""
        return lineage_of(self.job_id, self.uid)

    def options(self, own: HiddenOptions | None) -> dict[str, Any]:
        """Return the options of the filesystem: those of the sink, or those of the stage if it has none."""
        return dict(self.storage_options) if own is None else own.reveal()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTaskContext:
    """The Spark task that opens a writer."""

    subtask: int
    epoch: int
    task_id: str
    """Unique for each try of each task, across attempts and checkpoints."""
    schema: Any
    """Arrow schema of the output."""


_FORMAT = ("format_version", "kind")
_LINEAGE_LENGTH = 12
OnEarlierOutput = Literal["retract", "refuse"]
"""Handling of the output of earlier starts by a fresh start."""


def lineage_of(job_id: str, uid: str) -> str:
    """Return the identifier of one sink of one job across all attempts."""
    return hashlib.sha256(f"{job_id}/{uid}".encode()).hexdigest()[:_LINEAGE_LENGTH]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCommittable(ABC):
    """
    Output of one task.

    A task without output has a committable, too: it records the attempt that took the checkpoint.
    """

    KIND: ClassVar[str]
    """Description for error messages."""
    FORMAT: ClassVar[Mapping[str, Any]] = {"format_version": 1}
    """
    Further values of the JSON form, which tell it from those of other versions and, with ``kind``, of other sinks.
    """
    KEEPS_EMPTY: ClassVar[bool] = False
    """Whether the output of a task without rows is committed too, for its schema."""

    lineage: str
    epoch: int
    subtask: int

    @property
    @abstractmethod
    def has_output(self) -> bool:
        """Whether the task has written rows."""

    def to_json(self) -> dict[str, Any]:
        """Return the committable as plain JSON values."""
        return {**self.FORMAT, **encode(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """
        Return the committable that :meth:`to_json` encoded.

        :raises CorruptStateError: if the document is of another kind or format.
        """
        try:
            if {name: document[name] for name in _FORMAT if name in document} != cls.FORMAT:
                raise ValueError(document)  # noqa: TRY301 - reported below with other invalid documents
            return decode(cls, document)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(
                f"Expected {cls.KIND} of format {cls.FORMAT['format_version']}, found {str(document)[:100]!r}; restore "
                "with the version and the kind of sink that wrote it, or from another checkpoint."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Committable(TaskCommittable):
    """Files of one task that wait for their commit."""

    KIND: ClassVar[str] = "the uncommitted output of a Parquet sink"
    KEEPS_EMPTY: ClassVar[bool] = True

    schema: str
    """Output of :func:`encode_schema`, with the partition columns."""
    partition_by: tuple[str, ...] = ()
    files: tuple[WrittenFile, ...]

    @property
    @override
    def has_output(self) -> bool:
        return bool(self.files)


def encode_schema(schema: Any) -> str:
    """Return an Arrow schema as text."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def decode_schema(text: str) -> Any:
    """Return the Arrow schema that :func:`encode_schema` encoded."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


LINEAGE, CHECKPOINT = "_statecheck_lineage", "_statecheck_checkpoint"
"""Columns that record the lineage and the checkpoint that inserted a row."""
ROW = "_statecheck_row"
"""Column that rows have only during an upsert."""


def unique_names(argument: str, columns: Sequence[str]) -> tuple[str, ...]:
    """
    Return the column names of an argument.

    :raises InvalidConfigurationError: if it is not a list of texts, or a name is empty or repeated.
    """
    given: Any = columns
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or not all(isinstance(name, str) and name for name in given) or len(set(given)) != len(given):
        raise InvalidConfigurationError(
            f"Expected {argument} as a list of unique column names, found {columns!r}; correct the list."
        )
    paths = [name for name in given if name.startswith(".")]
    if paths:
        raise InvalidConfigurationError(
            f"Expected no name beginning with '.' in {argument}, which Arrow reads as a path, found "
            f"{', '.join(paths)}; rename the columns."
        )
    return tuple(columns)


def require_distinct_names(names: Sequence[str], place: str) -> None:
    """
    Require output columns with different names, at least one.

    :param place: What the sink writes to, for the error message.
    :raises UnsupportedStateError: if a name is repeated, or there is none.
    """
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        raise UnsupportedStateError(
            f"Expected columns with different names for {place}, found {', '.join(repeated) or 'none'} "
            f"{'more than once' if repeated else 'at all'}; rename them."
        )


def require_output_columns(names: Sequence[str], keys: Sequence[str], reserved: Sequence[str]) -> None:
    """
    Require the key columns of an upsert in the output, and no column that the sink adds itself.

    :param keys: Key columns for upserts; empty for other output.
    :raises UnsupportedStateError: if a name is missing or reserved.
    """
    taken = [name for name in reserved if name in names]
    if taken:
        raise UnsupportedStateError(
            f"Expected no column named {taken[0]!r}, found one in the output; rename it, because the sink uses this "
            "name."
        )
    missing = [name for name in keys if name not in names]
    if missing:
        raise UnsupportedStateError(
            f"Expected the columns of upsert_by in the output, found no {', '.join(missing)} among {', '.join(names)}; "
            "add the columns, or correct upsert_by."
        )


def require_key_values(table: Any, keys: Iterable[str]) -> None:
    """
    Require a value in the key columns of each row of an Arrow table.

    :raises UnfitOutputError: if a key is null or missing.
    """
    empty = [name for name in keys if name not in table.column_names or table.column(name).null_count]
    if empty:
        raise UnfitOutputError(
            f"Expected values in the columns of upsert_by, found null in {', '.join(empty)}; drop such rows in the "
            "stage, or fill the column."
        )


def require_values(table: Any, names: Iterable[str], place: str) -> None:
    """
    Require values in the columns of a table that cannot be null.

    :param table: Arrow table with the rows to write.
    :param names: Columns that cannot be null there.
    :param place: What the sink writes to, for the error message.
    :raises UnfitOutputError: if a row has null in one of them.
    """
    for name in names:
        nulls = table.column(name).null_count if name in table.column_names else 0
        if nulls:
            raise UnfitOutputError(
                f"Expected values in the column {name!r}, which cannot be null in {place}, found null in "
                f"{counted(nulls, 'row')}; fill it or drop such rows in the stage, or let the column of the table be "
                "null."
            )


def numbered(table: Any, first: int = 0) -> Any:
    """Return an Arrow table with the column :data:`ROW`, which numbers its rows."""
    return table.append_column(ROW, pa.array(range(first, first + table.num_rows), pa.int64()))


def last_rows(table: Any, keys: Sequence[str]) -> Any:
    """Return the last row of each key, in the order of the rows."""
    newest = numbered(table.select(keys)).group_by(list(keys)).aggregate([(ROW, "max")]).column(f"{ROW}_max")
    return table if len(newest) == table.num_rows else table.take(newest.combine_chunks().sort())


def with_constants(table: Any, **values: Any) -> Any:
    """Return an Arrow table with additional constant columns."""
    for name, value in values.items():
        table = table.append_column(name, pa.repeat(value, table.num_rows))
    return table
