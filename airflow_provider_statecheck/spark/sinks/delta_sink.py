"""Sink for a Delta table, with exactly-once commits per checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.spark.sinks.data_files import FileLayout
from airflow_provider_statecheck.spark.sinks.delta.delta_checks import (
    file_schema,
    new_columns,
    require_fitting,
    require_writable_table,
)
from airflow_provider_statecheck.spark.sinks.delta.delta_records import (
    DeltaRecords,
    LineageCommits,
    require_files_exist,
    require_first_opening,
    require_output_of_restored,
    require_owner,
    require_replaced,
    require_same_output,
    warn_if_unknown,
)
from airflow_provider_statecheck.spark.sinks.delta.delta_table import (
    DeltaCommit,
    DeltaCommittable,
    DeltaFile,
    DeltaFiles,
    DeltaLog,
    DeltaSnapshot,
    DeltaTableAccess,
    data_directory,
    deltalake,
    end_application,
    epoch_of_data_file,
    generation_application,
    head_application,
    library_options,
    require_safe_commits,
)
from airflow_provider_statecheck.spark.sinks.delta.delta_writer import DeltaSinkWriter
from airflow_provider_statecheck.spark.sinks.ledger import (
    ALL_CHECKPOINTS,
    CommitRecord,
    History,
    Ledger,
    Start,
    in_parallel,
    refuse_output_of_removed_stages,
)
from airflow_provider_statecheck.spark.sinks.sink import (
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    decode_schema,
    require_one_of,
)
from airflow_provider_statecheck.spark.sinks.target_files import OpenedTarget
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)
# Each failed try means that another writer has committed a version in the meantime.
_TRIES = 100
_DEFAULT_FILE_BYTES = 512 * 1024 * 1024
Compression = Literal["zstd", "snappy", "gzip", "none"]


class DeltaSink:
    """
    Adds the output of each checkpoint to a Delta table in one version, when the checkpoint is complete.

    A missing table is created. Other writers may write to the table concurrently; the sink never changes their files.

    :param table: Directory of the table as a path or a URI.
    :param partition_by: Partition columns of the table.
    :param merge_schema: Whether to add missing columns to the table.
    :param compression: Parquet compression codec.
    :param max_file_bytes: File size in bytes at which the writer starts a new file, by default 512 MiB.
    :param storage_options: Filesystem options; by default those of the stage's checkpoint storage.
    :param delta_options: Options of deltalake for the same storage; by default derived from ``storage_options``.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` replaces it with
        the first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    def __init__(
        self,
        table: str,
        *,
        partition_by: Sequence[str] = (),
        merge_schema: bool = False,
        compression: Compression = "zstd",
        max_file_bytes: int = _DEFAULT_FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        delta_options: Mapping[str, str] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        require_one_of("compression", compression, get_args(Compression))
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        if max_file_bytes < 1:
            raise InvalidConfigurationError(f"Expected max_file_bytes of 1 or more, found {max_file_bytes}; raise it.")
        self.table = table
        self._layout = FileLayout(
            compression=compression, partition_by=_partition_columns(partition_by), max_file_bytes=max_file_bytes
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
        Check the table and take ownership of it from earlier attempts; create a missing table if the schema is known.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises EnvironmentNotReadyError: if deltalake is missing, the table uses unsupported features, or the table has
            output of earlier starts that must not be replaced.
        :raises UnsupportedStateError: if the schema is incompatible with the table.
        :raises CorruptStateError: if output of the restored checkpoint was replaced, or output to replace was
            rewritten.
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
        Add the output of a completed checkpoint to the table; idempotent.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises CorruptStateError: if output is missing or was modified.
        :raises IncompatibleCheckpointError: if another job has not committed its output of the restored savepoint.
        :raises UnsupportedStateError: if the schema is incompatible with the table.
        """
        self._opened().commit(checkpoint_id, [DeltaCommittable.from_json(document) for document in committables])

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success, remove the uncommitted output of the sink.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises CorruptStateError: if output to replace was rewritten.
        """
        committer, self._committer = self._committer, None
        # After a failure, the next attempt determines which files it still needs.
        if committer is not None and succeeded:
            committer.close()

    def _files(self) -> DeltaFiles:
        if self._target is None:
            raise CoordinatorError(
                f"Expected {self!r} to be opened before it is used, found it unopened; open it on the driver."
            )
        return self._target.files(DeltaFiles)

    def _opened(self) -> DeltaCommitter:
        if self._committer is None:
            raise CoordinatorError(f"Expected {self!r} to be open, found it closed; open it before commits.")
        return self._committer


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRules:
    """Arguments of the sink that apply to commits."""

    partition_by: tuple[str, ...]
    refuses_earlier_output: bool
    merges_schema: bool


@dataclass(slots=True)
class DeltaCommitter:
    """Driver side of a Delta sink: the ownership of a table by one attempt."""

    table: DeltaTableAccess
    files: DeltaFiles
    context: SinkContext
    rules: CommitRules
    _ledger: Ledger = field(init=False)
    _table_id: str | None = field(init=False, default=None)

    def open(self) -> None:
        """
        Take ownership of the table.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises EnvironmentNotReadyError: if the sink cannot write to the table.
        :raises UnsupportedStateError: if the schema is incompatible with the table.
        :raises CorruptStateError: if output of the restored checkpoint was replaced, or output to replace was
            rewritten.
        """
        self._ledger = Ledger.load(self.files)
        self._ledger.require_newest(self.context.epoch)
        commits = self._read_commits()
        require_owner(commits, self.context.epoch)
        if self.rules.refuses_earlier_output and self.context.restored_checkpoint_id is None:
            refuse_earlier_output(commits)
        self._refuse_output_of_removed_stages(commits)
        self._require_fitting(commits.snapshot, self.context.schema)
        start = Start(self.context.generation, self.context.restored_checkpoint_id, self.context.restored_epoch)
        require_first_opening(commits, self.context.epoch, start)
        warn_if_unknown(commits, start)
        require_output_of_restored(commits, start)
        history = self._ledger.history()
        ancestry = History({**history.starts, self.context.epoch: start}, history.taken).ancestry_of(self.context.epoch)
        # Fails the start if a later commit could not remove the output that it replaces.
        files_to_remove(commits, self._records.without_files(ALL_CHECKPOINTS, ancestry), self.files)
        self._ledger.begin_attempt(self.context.epoch, start)
        self._retry_on_conflict(self._take_over)

    def commit(self, checkpoint_id: int, committables: Sequence[DeltaCommittable]) -> None:
        """
        Add the output of a checkpoint to the table.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises CorruptStateError: if output is missing or was modified.
        :raises IncompatibleCheckpointError: if another job has not committed its output of the restored savepoint.
        :raises UnsupportedStateError: if the schema is incompatible with the table.
        """
        own = [task for task in committables if task.lineage == self.files.lineage]
        foreign = [task for task in committables if task.lineage != self.files.lineage]
        if foreign:
            require_foreign_output_committed(self.table, self.files, foreign)
        if not own and (committables or checkpoint_id <= (self.context.restored_checkpoint_id or 0)):
            return  # no output, and the attempt that took the checkpoint is unknown
        self._retry_on_conflict(lambda commits: self._try_commit(commits, checkpoint_id, own))

    def close(self) -> None:
        """
        Remove, after a success, the output outside the ancestry of this attempt, and delete orphan files.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises CorruptStateError: if output to replace was rewritten.
        """
        self._retry_on_conflict(self._try_end)
        self._sweep()

    @property
    def _records(self) -> DeltaRecords:
        return DeltaRecords(self.context, self.rules.partition_by)

    def _retry_on_conflict(self, step: Callable[[LineageCommits], bool]) -> None:
        for _ in range(_TRIES):
            commits = self._read_commits()
            require_owner(commits, self.context.epoch)
            if step(commits):
                return
        raise StorageError(
            f"Expected to commit to the Delta table {self.table.shown}, found a concurrent commit at each of {_TRIES} tries; "
            "reduce the number of concurrent writers, and run the task again."
        )

    def _read_commits(self) -> LineageCommits:
        snapshot = self.table.snapshot()
        self._require_same_table(snapshot)
        commits = LineageCommits(self.files.lineage, self._ledger, snapshot, self.context.generation, self.table.shown)
        if not commits.lacks_records:
            return commits
        # An older attempt committed between the read of the ledger and its fencing.
        self._ledger = Ledger.load(self.files)
        return replace(commits, ledger=self._ledger)

    def _take_over(self, commits: LineageCommits) -> bool:
        versions = {head_application(self.files.lineage): self.context.epoch}
        if commits.head == self.context.epoch:
            return True
        if commits.snapshot is not None:
            return self.table.commit(commits.snapshot, DeltaCommit(versions=versions, note=self._note("begins")))
        if self.context.schema is None:
            return True
        schema = file_schema(self.context.schema)
        return self.table.create(
            schema, self.rules.partition_by, DeltaCommit(versions=versions, note=self._note("begins"))
        )

    def _try_commit(self, commits: LineageCommits, checkpoint_id: int, tasks: Sequence[DeltaCommittable]) -> bool:
        record = self._records.of_checkpoint(commits, checkpoint_id, tasks)
        newest = commits.newest
        if commits.is_committed(record):
            require_same_output(self._ledger, record, tasks, self.context.epoch, self.table.shown)
            return True
        if newest is not None and newest.order > record.order:
            require_replaced(commits, record, newest, self.context.epoch)
            return True
        files = {file.name: file for task in tasks for file in task.files if file.name in record.staged}
        return self._publish(commits, record, list(files.values()))

    def _publish(self, commits: LineageCommits, record: CommitRecord, files: Sequence[DeltaFile]) -> bool:
        removed = files_to_remove(commits, record, self.files)
        if not files and not removed:
            return True
        schema = decode_schema(record.schema) if record.schema else None
        self._require_fitting(commits.snapshot, schema)
        require_files_exist(self.files, record, files)
        if record.key not in self._ledger.intents:
            self._ledger.intend(record)
        versions = {
            head_application(self.files.lineage): self.context.epoch,
            generation_application(self.files.lineage, record.generation): record.checkpoint_id,
        }
        note = self._note("commits", record, retracted=len(removed))
        commit = DeltaCommit(versions=versions, note=note, added=files, removed=removed)
        if commits.snapshot is None:
            return self.table.create(schema, self.rules.partition_by, commit)
        if self._adds_columns(commits.snapshot, schema):
            return False
        return self.table.commit(commits.snapshot, commit)

    def _adds_columns(self, snapshot: DeltaSnapshot, schema: Any) -> bool:
        import pyarrow as pa

        missing = [] if schema is None else new_columns(snapshot.schema, schema)
        if missing:
            versions = {head_application(self.files.lineage): self.context.epoch}
            columns = pa.schema([schema.field(name) for name in missing])
            # The caller reads the new version of the table, whichever writer committed it.
            self.table.add_columns(snapshot, columns, DeltaCommit(versions=versions, note=self._note("adds columns")))
        return bool(missing)

    def _try_end(self, commits: LineageCommits) -> bool:
        ancestry = self._ledger.history().ancestry_of(self.context.epoch)
        newest = commits.newest
        if commits.snapshot is None or (newest is not None and ancestry.holds(newest.epoch, newest.checkpoint_id)):
            return True
        restored = self.context.restored_checkpoint_id or 0
        record = self._records.without_files(restored, self._ledger.history().ancestry_of(self.context.epoch, restored))
        removed = files_to_remove(commits, record, self.files)
        if not removed:
            return True
        self._ledger.intend(record)
        versions = dict.fromkeys(
            (head_application(self.files.lineage), end_application(self.files.lineage)), self.context.epoch
        )
        note = self._note("ends", record, retracted=len(removed))
        return self.table.commit(commits.snapshot, DeltaCommit(versions=versions, note=note, removed=removed))

    def _sweep(self) -> None:
        snapshot = self.table.snapshot()
        directory = data_directory(self.files.lineage)
        named = {file.name for record in self._ledger.intents.values() for file in record.files}
        named |= frozenset() if snapshot is None else snapshot.own_files
        names = [f"{directory}/{name}" for name in self.files.list_files(directory)]
        strays = [n for n in names if n not in named and 0 < epoch_of_data_file(n) <= self.context.epoch]
        in_parallel(self.files.delete, strays, is_local=self.files.is_local)

    def _require_fitting(self, snapshot: DeltaSnapshot | None, schema: Any) -> None:
        if snapshot is not None:
            require_writable_table(self.table, snapshot)
        rules = self.rules
        require_fitting(self.table, snapshot, schema, rules.partition_by, merges=rules.merges_schema)

    def _refuse_output_of_removed_stages(self, commits: LineageCommits) -> None:
        def has_output(lineage: str) -> bool:
            ledger = Ledger.load(DeltaFiles(self.files.storage, lineage))
            return LineageCommits(lineage, ledger, commits.snapshot, 0, commits.shown).has_output

        if not self._ledger.starts:
            refuse_output_of_removed_stages(self.context, commits.shown, has_output)

    def _require_same_table(self, snapshot: DeltaSnapshot | None) -> None:
        found = None if snapshot is None else snapshot.table_id
        if self._table_id is not None and found != self._table_id:
            raise CorruptStateError(
                f"Expected the Delta table {self.table.shown} that this attempt opened, found "
                f"{'none' if found is None else 'a table that was recreated'}; run the task again."
            )
        self._table_id = found

    def _note(self, event: str, record: CommitRecord | None = None, **more: Any) -> dict[str, Any]:
        commit = {} if record is None else {"checkpoint": record.checkpoint_id, "generation": record.generation}
        owner = {"job": self.context.job_name, "uid": self.context.uid, "epoch": self.context.epoch}
        return {"attempt": event, **owner, **commit, **more}


def refuse_earlier_output(commits: LineageCommits) -> None:
    """
    Refuse a fresh start if the table has output of earlier starts.

    :raises EnvironmentNotReadyError: if it has such output.
    """
    committed = [record for record in commits.in_force if record.files]
    if committed:
        rows = sum(file.rows for record in committed for file in record.files)
        raise EnvironmentNotReadyError(
            f"Expected no output of earlier starts of {committed[0].uid!r} of job {committed[0].job_name!r} in {commits.shown}, found "
            f"{rows} rows of {len(committed)} checkpoint(s); choose another table, restore from checkpoint "
            f"{max(committed, key=lambda record: record.order).checkpoint_id}, or set on_earlier_output='retract'."
        )


def files_to_remove(commits: LineageCommits, record: CommitRecord, files: DeltaFiles) -> dict[str, int | None]:
    """
    Return the files that the commit of a record removes from the table, with their sizes.

    :raises EnvironmentNotReadyError: if the table is append-only.
    :raises CorruptStateError: if another writer has rewritten such files.
    """
    newest = commits.newest
    continues_newest = newest is not None and record.ancestry.holds(newest.epoch, newest.checkpoint_id)
    if commits.snapshot is None or continues_newest:
        return {}  # the newest record has already replaced all older output
    removed = commits.files_replaced_by(record)
    if removed and commits.snapshot.handle.metadata().configuration.get("delta.appendOnly") == "true":
        raise EnvironmentNotReadyError(
            f"Expected to replace {len(removed)} file(s) of earlier output in {commits.shown}, found that the table is "
            "append-only; set delta.appendOnly to false, restore from the newest checkpoint, or choose another table."
        )
    lost = commits.removed_by_other_writers(record)
    rewritten = _rewritten(DeltaLog(files.storage), commits.snapshot.version, lost) if lost else []
    if rewritten:
        raise CorruptStateError(
            f"Expected to replace the files of earlier output in {commits.shown}, found that another writer has rewritten "
            f"{len(rewritten)} of them, such as {rewritten[0]}; after OPTIMIZE, UPDATE or DELETE their rows cannot be "
            "identified. Delete the rows of this job, move the directory "
            f"_statecheck/{commits.lineage} of the table away, and run the task again; or write to another table."
        )
    return removed


def require_foreign_output_committed(
    table: DeltaTableAccess, files: DeltaFiles, committables: Iterable[DeltaCommittable]
) -> None:
    """
    Require that another job has committed the output of the savepoint that this job restored.

    :param committables: Committables of other lineages in the savepoint.
    :raises IncompatibleCheckpointError: if some of the output was never in the table.
    """
    named: dict[str, set[str]] = {}
    for task in committables:
        named.setdefault(task.lineage, set()).update(file.name for file in task.files)
    for lineage, names in named.items():
        ledger = Ledger.load(DeltaFiles(files.storage, lineage))
        if not ledger.starts:
            log.warning(
                "The savepoint belongs to a job that writes to another table; its uncommitted output is left to that job"
            )
            continue
        unknown = names - _committed_files(LineageCommits(lineage, ledger, table.snapshot(), 0, table.shown))
        if unknown:
            raise IncompatibleCheckpointError(
                f"Expected all output of the savepoint to be committed to {table.shown}, found {len(unknown)} file(s) of "
                f"lineage {lineage} that never were: the job that took the savepoint ended before their commit. Run that job "
                "until it succeeds, or take another savepoint of it."
            )


def _rewritten(log: DeltaLog, version: int, names: Iterable[str]) -> list[str]:
    # A version that only removed files has deleted their rows.
    wanted = set(names)
    for entry in log.back_from(version):
        found = wanted & set(entry.removed)
        if found and not entry.added:
            wanted -= found
        elif found:
            break
        if not wanted:
            break
    return sorted(wanted)


def _committed_files(commits: LineageCommits) -> set[str]:
    newest = commits.newest
    records = commits.ledger.intents.values()
    return {name for r in records if newest is not None and r.order <= newest.order for name in r.staged}


def _partition_columns(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str) or len(set(columns)) != len(columns):
        raise InvalidConfigurationError(
            f"Expected partition_by as a list of unique column names, found {columns!r}; correct the list."
        )
    return tuple(columns)
