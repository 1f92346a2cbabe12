"""A Delta table to which each completed checkpoint adds its rows exactly once, in one version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.spark.sinks.choices import OnEarlierOutput, require_one_of
from airflow_provider_statecheck.spark.sinks.data_file_writer import FileLayout
from airflow_provider_statecheck.spark.sinks.delta.committable import DeltaCommittable
from airflow_provider_statecheck.spark.sinks.delta.committer import CommitRules, DeltaCommitter
from airflow_provider_statecheck.spark.sinks.delta.files import DeltaFiles
from airflow_provider_statecheck.spark.sinks.delta.library import deltalake, library_options, require_safe_commits
from airflow_provider_statecheck.spark.sinks.delta.table import DeltaTableAccess
from airflow_provider_statecheck.spark.sinks.delta.writer import DeltaSinkWriter
from airflow_provider_statecheck.spark.sinks.sink import SinkContext, SinkTaskContext
from airflow_provider_statecheck.spark.sinks.target_files import OpenedTarget
from airflow_provider_statecheck.spark.snapshots.executor_files import HiddenOptions
from airflow_provider_statecheck.storage.uris import redact

_FILE_BYTES = 512 * 1024 * 1024
Compression = Literal["zstd", "snappy", "gzip", "none"]


class DeltaSink:
    """
    Adds each checkpoint's output to a Delta table when the checkpoint is complete, in one version of the table.

    The table is made if there is none. Others may write to it at the same time; their rows and files are never touched.

    :param table: The directory of the table: a path or a URI.
    :param partition_by: The columns that the table is partitioned by.
    :param merge_schema: Whether columns that the table lacks are added to it.
    :param compression: Of the columns.
    :param max_file_bytes: A file that reaches this size is finished and another one begun.
    :param storage_options: Options of the filesystem; by default those of the stage's checkpoint storage.
    :param delta_options: Options of deltalake for the same storage; by default they are made of ``storage_options``.
    :param on_earlier_output: What a fresh start does with the output of earlier ones: ``retract`` replaces it in the version
        that commits the first output of the new one, ``refuse`` does not start.
    :raises InvalidConfigurationError: for a value out of its range.
    """

    def __init__(
        self,
        table: str,
        *,
        partition_by: Sequence[str] = (),
        merge_schema: bool = False,
        compression: Compression = "zstd",
        max_file_bytes: int = _FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        delta_options: Mapping[str, str] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        require_one_of("compression", compression, get_args(Compression))
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        if max_file_bytes < 1:
            raise InvalidConfigurationError(f"Expected max_file_bytes of 1 or more, found {max_file_bytes}.")
        self.table = table
        self._layout = FileLayout(
            compression=compression, partition_by=_columns(partition_by), max_file_bytes=max_file_bytes
        )
        self._rules = CommitRules(
            partition_by=self._layout.partition_by,
            refuses_earlier_output=on_earlier_output == "refuse",
            merges_schema=merge_schema,
        )
        self._given_options = None if storage_options is None else HiddenOptions(storage_options)
        self._given_delta_options = None if delta_options is None else HiddenOptions(delta_options)
        self._target: OpenedTarget | None = None
        self._generation = 0
        self._committer: DeltaCommitter | None = None

    def __repr__(self) -> str:
        return f"DeltaSink({redact(self.table)!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks write; only the driver commits.
        return {**self.__dict__, "_committer": None, "_given_delta_options": None}

    def open(self, context: SinkContext) -> None:
        """
        Check the table and take it over from earlier attempts; make it if there is none and its columns are known.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: deltalake is missing, or the table has rules that the sink cannot keep, or holds output
            of earlier starts that is not to be replaced.
        :raises UnsupportedStateError: What is to be written does not fit the table.
        :raises CorruptStateError: Output of the restored checkpoint is gone, or what is to be replaced was rewritten.
        """
        deltalake()
        self._target = target = OpenedTarget.of(self.table, context, self._given_options)
        self._generation = context.generation
        options = self._given_delta_options or HiddenOptions(library_options(target.uri, target.options.reveal()))
        require_safe_commits(options.reveal())
        committer = DeltaCommitter(DeltaTableAccess(target.uri, options), self._files(), context, self._rules)
        committer.open()
        self._committer = committer

    def writer(self, context: SinkTaskContext) -> DeltaSinkWriter:
        """Return the writer of one Spark task."""
        return DeltaSinkWriter(self._files(), self._layout, self._generation, context)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Make what belongs to a completed checkpoint part of the table, once however often it is tried.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: Output is missing or was changed.
        :raises IncompatibleCheckpointError: It is of another job, which has not committed it.
        :raises UnsupportedStateError: It does not fit the table.
        """
        self._opened().commit(checkpoint_id, [DeltaCommittable.from_json(document) for document in committables])

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success the table has what was committed and nothing else of this sink.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: What is to be replaced was rewritten.
        """
        committer, self._committer = self._committer, None
        # After a failure the next attempt knows what is still needed.
        if committer is not None and succeeded:
            committer.close()

    def _files(self) -> DeltaFiles:
        if self._target is None:
            raise CoordinatorError(f"Expected {self!r} to be opened before it is used; open it on the driver.")
        return self._target.files(DeltaFiles)

    def _opened(self) -> DeltaCommitter:
        if self._committer is None:
            raise CoordinatorError(f"Expected {self!r} to be open, found it closed; open it before commits.")
        return self._committer


def _columns(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str) or len(set(columns)) != len(columns):
        raise InvalidConfigurationError(f"Expected partition_by as a list of different columns, found {columns!r}.")
    return tuple(columns)
