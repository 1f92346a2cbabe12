"""Sink for a directory of Parquet files, with exactly-once commits per checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    CorruptStateError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.spark.sinks.data_files import FileLayout, ParquetSinkWriter
from airflow_provider_statecheck.spark.sinks.ledger import (
    Ancestry,
    CommitRecord,
    Ledger,
    PublishedFile,
    Start,
    in_parallel,
    refuse_output_of_removed_stages,
)
from airflow_provider_statecheck.spark.sinks.sink import (
    Committable,
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    require_one_of,
)
from airflow_provider_statecheck.spark.sinks.target_checks import (
    agreed_schema,
    refuse_earlier_output,
    require_directory,
    require_fitting,
    require_foreign_output_committed,
)
from airflow_provider_statecheck.spark.sinks.target_files import (
    OpenedTarget,
    TargetFiles,
    final_name,
    lineage_of_file,
    missing_file_cause,
    staged_epoch,
    staging_directory,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.storage.snapshot_manifest import footer_digest
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)
_DEFAULT_FILE_BYTES = 512 * 1024 * 1024
Compression = Literal["zstd", "snappy", "gzip", "lz4", "brotli", "none"]


class ParquetSink:
    """
    Writes the output of each checkpoint as Parquet files, which become visible when the checkpoint is complete.

    Several sinks of one or more stages may share a target; each changes only its own files.

    :param path: Directory as a path or an fsspec URI.
    :param compression: Parquet compression codec.
    :param partition_by: Columns for Hive-style partition directories ``column=value``.
    :param max_file_bytes: File size in bytes at which the writer starts a new file, by default 512 MiB.
    :param storage_options: Filesystem options of the target; by default those of the stage's checkpoint storage.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` replaces it with
        the first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    def __init__(
        self,
        path: str,
        *,
        compression: Compression = "zstd",
        partition_by: Sequence[str] = (),
        max_file_bytes: int = _DEFAULT_FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        require_one_of("compression", compression, get_args(Compression))
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        if max_file_bytes < 1:
            raise InvalidConfigurationError(f"Expected max_file_bytes of 1 or more, found {max_file_bytes}; raise it.")
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
        Check the target and take ownership of it from earlier attempts.

        :raises StaleAttemptError: if a newer attempt owns the target.
        :raises EnvironmentNotReadyError: if the target is a file, or has output of earlier starts that must not be
            replaced.
        :raises UnsupportedStateError: if the schema is incompatible with the target.
        :raises CorruptStateError: if output of the restored checkpoint was retracted.
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
        Publish the output of a completed checkpoint; idempotent.

        :raises StaleAttemptError: if a newer attempt owns the target.
        :raises CorruptStateError: if output is missing or was modified.
        :raises IncompatibleCheckpointError: if another job has not committed its output of the restored savepoint.
        :raises UnsupportedStateError: if the schema is incompatible with the target.
        """
        self._opened().commit(checkpoint_id, [Committable.from_json(document) for document in committables])

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success, delete all uncommitted files of the sink.

        :raises StaleAttemptError: if a newer attempt owns the target.
        :raises CorruptStateError: if output of this attempt was retracted.
        """
        committer, self._committer = self._committer, None
        # After a failure, the next attempt determines which files it still needs.
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


@dataclass(slots=True)
class ParquetCommitter:
    """Driver side of a Parquet sink: the ownership of a target by one attempt."""

    files: TargetFiles
    context: SinkContext
    partition_by: tuple[str, ...]
    refuses_earlier_output: bool
    _ledger: Ledger = field(init=False)
    _has_swept: bool = field(init=False, default=False)

    def open(self) -> None:
        """
        Take ownership of the target.

        :raises StaleAttemptError: if a newer attempt owns the target.
        :raises EnvironmentNotReadyError: if the sink cannot write to the target.
        :raises UnsupportedStateError: if the schema is incompatible with the target.
        :raises CorruptStateError: if output of the restored checkpoint was retracted.
        """
        # List the files before reading the ledger: a listed file without a record is an orphan.
        names = self.files.list_files()
        self._ledger = Ledger.load(self.files)
        self._ledger.require_newest(self.context.epoch)
        if self.refuses_earlier_output and self.context.restored_checkpoint_id is None:
            refuse_earlier_output(self.files, self._ledger)
        self._refuse_output_of_removed_stages()
        require_fitting(self.files, names, self._ledger, self.context.schema, self.partition_by)
        start = Start(self.context.generation, self.context.restored_checkpoint_id, self.context.restored_epoch)
        self._require_first_opening(start)
        self._require_output_of_restored(start)
        self._ledger.begin_attempt(self.context.epoch, start)
        self._ledger.require_newest(self.context.epoch)
        self._retract_replaced()
        self._sweep_published(names)

    def commit(self, checkpoint_id: int, committables: Sequence[Committable]) -> None:
        """
        Publish the output of a checkpoint.

        :raises StaleAttemptError: if a newer attempt owns the target.
        :raises CorruptStateError: if output is missing or was modified.
        :raises IncompatibleCheckpointError: if another job has not committed its output of the restored savepoint.
        :raises UnsupportedStateError: if the schema is incompatible with the target.
        """
        own = [task for task in committables if task.lineage == self.files.lineage]
        require_foreign_output_committed(
            self.files, [task for task in committables if task.lineage != self.files.lineage]
        )
        self._ledger.require_newest(self.context.epoch)
        if not own and (committables or checkpoint_id <= (self.context.restored_checkpoint_id or 0)):
            return  # no output, and the attempt that took the checkpoint is unknown
        record = self._record(checkpoint_id, own)
        if self._is_replaced(record):
            log.warning("The output of checkpoint %s is not published, because later commits replaced it", record.key)
            self._ledger.retract(record)
        elif record.key not in self._ledger.commits:
            self._publish_in_order(record)
        self._retract_replaced()
        self._sweep_staged_once()

    def close(self) -> None:
        """
        Publish open commits and delete orphan files after a success.

        :raises StaleAttemptError: if a newer attempt owns the target.
        :raises CorruptStateError: if output of this attempt was retracted.
        """
        names = self.files.list_files()
        self._ledger = Ledger.load(self.files)
        self._ledger.require_newest(self.context.epoch)
        ancestry = self._ledger.history().ancestry_of(self.context.epoch)
        self._require_not_retracted(ancestry)
        for record in self._ledger.active:
            if record.key in self._ledger.intents and ancestry.holds(record.epoch, record.checkpoint_id):
                self._publish(record)
        self._commit_end(ancestry)
        self._retract_replaced()
        self._ledger.drop_finished_intents()
        self._sweep_published(names)
        self._sweep_staged(self.context.epoch)

    def _record(self, checkpoint_id: int, committables: Sequence[Committable]) -> CommitRecord:
        epoch = max((task.epoch for task in committables), default=self.context.epoch)
        generation = self._ledger.starts[epoch].generation if epoch in self._ledger.starts else self.context.generation
        existing = self._ledger.commits.get(f"{generation}-{checkpoint_id}") or self._ledger.intents.get(
            f"{generation}-{checkpoint_id}"
        )
        if existing is not None:
            self._require_same_output(existing, committables)
            return existing
        return self._new_record(checkpoint_id, epoch, generation, committables)

    def _new_record(
        self, checkpoint_id: int, epoch: int, generation: int, committables: Sequence[Committable]
    ) -> CommitRecord:
        ancestry = self._ledger.history().ancestry_of(epoch, checkpoint_id)
        return CommitRecord(
            job_name=self.context.job_name,
            uid=self.context.uid,
            generation=generation,
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            ancestry=ancestry,
            schema=agreed_schema(self.files, self._ledger, committables, self.context.schema),
            partition_by=self.partition_by,
            files=self._files_of(checkpoint_id, generation, committables),
        )

    def _files_of(
        self, checkpoint_id: int, generation: int, committables: Sequence[Committable]
    ) -> tuple[PublishedFile, ...]:
        # A checkpoint also carries the committables of earlier commits that were made but not confirmed.
        named = self._known_staged_files()
        found = (
            PublishedFile(
                staged=file.staged,
                name="/".join(
                    part
                    for part in (
                        file.directory,
                        final_name(self.files.lineage, generation, checkpoint_id, task.subtask, file.staged),
                    )
                    if part
                ),
                size_bytes=file.size_bytes,
                rows=file.rows,
                footer_sha256=file.footer_sha256,
            )
            for task in committables
            for file in task.files
            if file.staged not in named
        )
        return tuple(sorted(set(found), key=lambda file: file.name))

    def _known_staged_files(self) -> frozenset[str]:
        return frozenset(name for record in self._ledger.active for name in record.staged)

    def _require_same_output(self, existing: CommitRecord, committables: Sequence[Committable]) -> None:
        unknown = sorted({file.staged for task in committables for file in task.files} - self._known_staged_files())
        if unknown:
            raise CorruptStateError(
                f"Expected the same output with each commit of checkpoint {existing.checkpoint_id} in {self.files.target}, found "
                f"{unknown[0]} in addition to the committed files; another checkpoint with this id was committed. Start over.",
                checkpoint_id=existing.checkpoint_id,
            )

    def _is_replaced(self, record: CommitRecord) -> bool:
        # The stage repeats open commits of an abandoned branch until they are confirmed.
        newest = self._ledger.newest
        if newest is None or record.key in self._ledger.commits or not newest.replaces(record):
            return False
        ancestry = self._ledger.history(record).ancestry_of(self.context.epoch)
        return ancestry.holds(newest.epoch, newest.checkpoint_id)

    def _publish_in_order(self, record: CommitRecord) -> None:
        self._require_not_retracted(record.ancestry)
        self._require_in_order(record)
        waiting = [r for r in self._ledger.active if r.key in self._ledger.intents and r.order < record.order]
        for earlier in waiting:
            if record.ancestry.holds(earlier.epoch, earlier.checkpoint_id):
                self._publish(earlier)
        self._publish(record)

    def _require_in_order(self, record: CommitRecord) -> None:
        newest = self._ledger.newest
        if newest is not None and newest.order > record.order:
            raise CoordinatorError(
                f"Expected to commit a checkpoint after {newest.checkpoint_id} of attempt {newest.epoch} to "
                f"{self.files.target}, found checkpoint {record.checkpoint_id} of attempt {record.epoch}; restore from "
                f"checkpoint {newest.checkpoint_id}, or start over.",
                checkpoint_id=record.checkpoint_id,
            )

    def _refuse_output_of_removed_stages(self) -> None:
        if not self._ledger.starts:
            storage = self.files.storage
            refuse_output_of_removed_stages(
                self.context, self.files.target, lambda lineage: Ledger.load(TargetFiles(storage, lineage)).has_output
            )

    def _require_first_opening(self, start: Start) -> None:
        epoch = self.context.epoch
        if self._ledger.starts.get(epoch, start) != start and any(r.epoch == epoch for r in self._ledger.active):
            raise CoordinatorError(
                f"Expected attempt {epoch} to keep its restored checkpoint after its first commit to {self.files.target}, "
                f"found checkpoint {start.restored} restored; register a new attempt."
            )

    def _require_output_of_restored(self, start: Start) -> None:
        history = self._ledger.history()
        taken_by = start.taken_by or history.taken.get(start.restored or 0)
        if start.restored is not None and taken_by is not None:
            self._require_not_retracted(history.ancestry_of(taken_by, start.restored))

    def _require_not_retracted(self, ancestry: Ancestry) -> None:
        retracted = [r for r in self._ledger.retracted.values() if r.files and ancestry.holds(r.epoch, r.checkpoint_id)]
        if retracted:
            raise _retracted_error(self.files, retracted[0], self._ledger.newest)

    def _publish(self, record: CommitRecord) -> None:
        if record.key not in self._ledger.intents:
            self._ledger.intend(record)
        try:
            in_parallel(lambda file: publish(self.files, record, file), record.files, is_local=self.files.is_local)
        finally:
            # Being fenced explains any failure above.
            self._ledger.require_newest(self.context.epoch)
        self._ledger.complete(record)

    def _retract_replaced(self) -> None:
        newest = self._ledger.newest
        replaced = [r for r in self._ledger.active if newest is not None and newest.replaces(r)]
        if not replaced and not self._ledger.half_retracted:
            return
        self._ledger.require_newest(self.context.epoch)
        for record in (*replaced, *self._ledger.half_retracted):
            self._ledger.retract(record)
        self._ledger.half_retracted = []

    def _commit_end(self, ancestry: Ancestry) -> None:
        newest = self._ledger.newest
        outside = [r for r in self._ledger.active if not ancestry.holds(r.epoch, r.checkpoint_id)]
        if not outside or (newest is not None and newest.epoch == self.context.epoch):
            return
        restored = self.context.restored_checkpoint_id or 0
        latest = self._ledger.latest_schema
        self._ledger.complete(
            CommitRecord(
                job_name=self.context.job_name,
                uid=self.context.uid,
                generation=self.context.generation,
                checkpoint_id=restored,
                epoch=self.context.epoch,
                ancestry=self._ledger.history().ancestry_of(self.context.epoch, restored),
                schema=latest.schema if latest else "",
                partition_by=self.partition_by,
                files=(),
                is_end=True,
            )
        )

    def _sweep_published(self, names: dict[str, int]) -> None:
        known = {file.name for record in self._ledger.active for file in record.files}
        orphans = [n for n in names if lineage_of_file(n) == self.files.lineage and n not in known]
        in_parallel(self.files.delete, orphans, is_local=self.files.is_local)

    def _sweep_staged_once(self) -> None:
        newest = self._ledger.newest
        if not self._has_swept and newest is not None and newest.epoch == self.context.epoch:
            self._sweep_staged(self.context.epoch - 1)
            self._has_swept = True

    def _sweep_staged(self, last_epoch: int) -> None:
        directory = staging_directory(self.files.lineage)
        named = {name for record in self._ledger.intents.values() for name in record.staged}
        orphans = [
            f"{directory}/{name}"
            for name in self.files.list_files(directory)
            if name not in named and (staged_epoch(name) or 0) <= last_epoch
        ]
        in_parallel(self.files.delete, orphans, is_local=self.files.is_local)


def publish(files: TargetFiles, record: CommitRecord, file: PublishedFile) -> None:
    """
    Move a staged file to its published name; idempotent.

    :raises CorruptStateError: if the file is missing, or another file has its name.
    """
    staged = f"{staging_directory(files.lineage)}/{file.staged}"
    if files.size(file.name) is None:
        try:
            files.move(staged, file.name)
        except CheckpointNotFoundError:
            if files.size(file.name) is None:
                raise _missing_error(files, record, file) from None
        else:
            return
    _require_published(files, file)
    files.delete(staged)


def _partition_columns(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise InvalidConfigurationError(
            f"Expected partition_by as a list of columns, found the string {columns!r}; write [{columns!r}]."
        )
    hidden = [column for column in columns if not column or column[0] in "._"]
    if hidden or len(set(columns)) != len(columns):
        raise InvalidConfigurationError(
            f"Expected partition_by to name different columns, none beginning with '.' or '_', found {list(columns)}; readers "
            "ignore directories with such names. Rename the columns."
        )
    return tuple(columns)


def _require_published(files: TargetFiles, file: PublishedFile) -> None:
    size = files.size(file.name)
    if size != file.size_bytes or _digest(files, file) != file.footer_sha256:
        raise CorruptStateError(
            f"Expected {file.size_bytes} bytes with the committed footer in {files.target}/{file.name}, found {size} bytes; "
            "the file was modified. Move it away and run the task again.",
            uri=f"{files.target}/{file.name}",
        )


def _digest(files: TargetFiles, file: PublishedFile) -> str:
    return footer_digest(lambda start, end: files.read_range(file.name, start, end), file.name, file.size_bytes)


def _missing_error(files: TargetFiles, record: CommitRecord, file: PublishedFile) -> CorruptStateError:
    return CorruptStateError(
        f"Expected output of checkpoint {record.checkpoint_id} in {files.target}, either as {file.name} or staged as "
        f"{file.staged}, found neither; {missing_file_cause(files.is_local)}",
        uri=f"{files.target}/{file.name}",
        checkpoint_id=record.checkpoint_id,
    )


def _retracted_error(files: TargetFiles, retracted: CommitRecord, newest: CommitRecord | None) -> CorruptStateError:
    by = f" when checkpoint {newest.checkpoint_id} of attempt {newest.epoch} replaced it" if newest else ""
    return CorruptStateError(
        f"Expected the output of checkpoint {retracted.checkpoint_id} in {files.target}, found that it was retracted{by}; restore "
        "from the newest checkpoint or from one before that, or start over.",
        checkpoint_id=retracted.checkpoint_id,
    )
