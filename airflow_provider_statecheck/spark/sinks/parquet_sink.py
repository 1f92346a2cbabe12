"""A directory of Parquet files to which each completed checkpoint adds its files exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.spark.sinks.choices import OnEarlierOutput, require_one_of
from airflow_provider_statecheck.spark.sinks.committable import Committable
from airflow_provider_statecheck.spark.sinks.committer import ParquetCommitter
from airflow_provider_statecheck.spark.sinks.data_file_writer import FileLayout
from airflow_provider_statecheck.spark.sinks.parquet_writer import ParquetSinkWriter
from airflow_provider_statecheck.spark.sinks.sink import SinkContext, SinkTaskContext
from airflow_provider_statecheck.spark.sinks.target_checks import require_directory
from airflow_provider_statecheck.spark.sinks.target_files import OpenedTarget, TargetFiles
from airflow_provider_statecheck.spark.snapshots.executor_files import HiddenOptions
from airflow_provider_statecheck.storage.uris import redact

_FILE_BYTES = 512 * 1024 * 1024
Compression = Literal["zstd", "snappy", "gzip", "lz4", "brotli", "none"]


class ParquetSink:
    """
    Writes each checkpoint's output as Parquet files that appear when the checkpoint is complete.

    Several sinks, of one stage or of many, may share a target; none touches the files of another.

    :param path: A directory: a path or any fsspec URI.
    :param compression: Of the columns.
    :param partition_by: Columns whose values become directories ``column=value``.
    :param max_file_bytes: A file that reaches this size is finished and another one begun.
    :param storage_options: Options of the target's filesystem; by default those of the stage's checkpoint storage.
    :param on_earlier_output: What a fresh start does with the output of earlier ones: ``retract`` replaces it when the
        first output of the new one is committed, ``refuse`` does not start.
    :raises InvalidConfigurationError: for a value out of its range.
    """

    def __init__(
        self,
        path: str,
        *,
        compression: Compression = "zstd",
        partition_by: Sequence[str] = (),
        max_file_bytes: int = _FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        require_one_of("compression", compression, get_args(Compression))
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        if max_file_bytes < 1:
            raise InvalidConfigurationError(f"Expected max_file_bytes of 1 or more, found {max_file_bytes}.")
        self.path = path
        self._layout = FileLayout(
            compression=compression, partition_by=_partition_columns(partition_by), max_file_bytes=max_file_bytes
        )
        self._given_options = None if storage_options is None else HiddenOptions(storage_options)
        self._refuses_earlier_output = on_earlier_output == "refuse"
        self._target: OpenedTarget | None = None
        self._committer: ParquetCommitter | None = None

    def __repr__(self) -> str:
        return f"ParquetSink({redact(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks write; only the driver commits.
        return {**self.__dict__, "_committer": None}

    def open(self, context: SinkContext) -> None:
        """
        Check the target and take it over from earlier attempts.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: It is a file, or holds output of earlier starts that is not to be replaced.
        :raises UnsupportedStateError: What is to be written does not fit what is there.
        :raises CorruptStateError: Output of the restored checkpoint is gone.
        """
        self._target = OpenedTarget.of(self.path, context, self._given_options)
        files = self._files()
        require_directory(files)
        committer = ParquetCommitter(files, context, self._layout.partition_by, self._refuses_earlier_output)
        committer.open()
        self._committer = committer

    def writer(self, context: SinkTaskContext) -> ParquetSinkWriter:
        """Return the writer of one Spark task."""
        return ParquetSinkWriter(self._files(), self._layout, context)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Publish what belongs to a completed checkpoint, once however often it is tried.

        :raises StaleAttemptError: A newer attempt has the target.
        :raises CorruptStateError: Output is missing or was changed.
        :raises IncompatibleCheckpointError: It is of another job, which has not committed it.
        :raises UnsupportedStateError: It does not fit what is there.
        """
        self._opened().commit(checkpoint_id, [Committable.from_json(document) for document in committables])

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success nothing stays but what was committed.

        :raises StaleAttemptError: A newer attempt has the target.
        :raises CorruptStateError: Output of this attempt is gone.
        """
        committer, self._committer = self._committer, None
        # After a failure the next attempt knows what is still needed.
        if committer is not None and succeeded:
            committer.close()

    def _files(self) -> TargetFiles:
        if self._target is None:
            raise CoordinatorError(f"Expected {self!r} to be opened before it is used; open it on the driver.")
        return self._target.files(TargetFiles)

    def _opened(self) -> ParquetCommitter:
        if self._committer is None:
            raise CoordinatorError(f"Expected {self!r} to be open, found it closed; open it before commits.")
        return self._committer


def _partition_columns(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise InvalidConfigurationError(f"Expected partition_by as a list of columns, found the text {columns!r}.")
    hidden = [column for column in columns if not column or column[0] in "._"]
    if hidden or len(set(columns)) != len(columns):
        raise InvalidConfigurationError(
            f"Expected partition_by to name different columns, none beginning with '.' or '_', found {list(columns)}; readers "
            "pass over directories with such names."
        )
    return tuple(columns)
