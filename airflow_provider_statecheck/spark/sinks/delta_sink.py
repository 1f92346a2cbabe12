"""A Delta table that receives the output of each completed checkpoint exactly once, in one commit."""

from __future__ import annotations

import logging
import sys
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
    require_all_named,
    require_dead,
    require_first_opening,
    require_output_of_restored,
    require_owner,
    require_there,
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
    end_of,
    epoch_of_data_file,
    generation_key,
    head_of,
    library_options,
    require_safe_commits,
)
from airflow_provider_statecheck.spark.sinks.delta.delta_writer import DeltaSinkWriter
from airflow_provider_statecheck.spark.sinks.ledger import (
    CommitRecord,
    History,
    Ledger,
    Start,
    in_parallel,
    refuse_output_of_gone,
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


def refuse_earlier_output(standing: LineageCommits) -> None:
    """
    Refuse to start over beside output of earlier starts.

    :raises EnvironmentNotReadyError: if there is some.
    """
    there = [record for record in standing.in_force if record.files]
    if there:
        rows = sum(file.rows for record in there for file in record.files)
        raise EnvironmentNotReadyError(
            f"Expected no output of earlier starts of {there[0].uid!r} of job {there[0].job_name!r} in {standing.shown}, found "
            f"{rows} rows of {len(there)} checkpoint(s); choose another table, restore from checkpoint "
            f"{max(there, key=lambda record: record.order).checkpoint_id}, or let on_earlier_output='retract' replace them."
        )


def require_replaceable(standing: LineageCommits, record: CommitRecord, files: DeltaFiles) -> dict[str, int | None]:
    """
    Return the files of the table that go when a record comes to pass.

    :raises EnvironmentNotReadyError: if the table lets nothing be removed.
    :raises CorruptStateError: if somebody has written rows of ours into files of their own.
    """
    newest = standing.newest
    goes_on = newest is not None and record.line.holds(newest.epoch, newest.checkpoint_id)
    if standing.snapshot is None or goes_on:
        return {}  # the newest record has replaced what there was to replace
    removed = standing.replaced_by(record)
    if removed and standing.snapshot.handle.metadata().configuration.get("delta.appendOnly") == "true":
        raise EnvironmentNotReadyError(
            f"Expected to replace {len(removed)} file(s) of earlier output in {standing.shown}, found that the table is "
            "append-only; set delta.appendOnly to false, restore from the newest checkpoint, or choose another table."
        )
    lost = standing.taken_away_by_others(record)
    rewritten = _rewritten(DeltaLog(files.storage), standing.snapshot.version, lost) if lost else []
    if rewritten:
        raise CorruptStateError(
            f"Expected to replace the files of earlier output in {standing.shown}, found that somebody has rewritten "
            f"{len(rewritten)} of them, such as {rewritten[0]}, so that nobody can tell which rows were in them; OPTIMIZE, UPDATE "
            "and DELETE do so. Delete the rows of this job by hand, move the directory "
            f"_statecheck/{standing.lineage} of the table away, and run the task again; or write to another table."
        )
    return removed


def _rewritten(log: DeltaLog, version: int, names: Iterable[str]) -> list[str]:
    # Where whole files went and none came, the rows are gone.
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


log = logging.getLogger(__name__)


def require_committed_by_others(
    table: DeltaTableAccess, files: DeltaFiles, committables: Iterable[DeltaCommittable]
) -> None:
    """
    Refuse to begin at a savepoint of another job that has not committed its output.

    :param committables: What the savepoint has of other lineages.
    :raises IncompatibleCheckpointError: if some of it was never part of the table.
    """
    named: dict[str, set[str]] = {}
    for task in committables:
        named.setdefault(task.lineage, set()).update(file.name for file in task.files)
    for lineage, names in named.items():
        theirs = Ledger.load(DeltaFiles(files.storage, lineage))
        if not theirs.starts:
            log.warning(
                "The savepoint is of a job that writes elsewhere; what it had not committed is left to that job"
            )
            continue
        unknown = names - _committed(LineageCommits(lineage, theirs, table.snapshot(), 0, table.shown))
        if unknown:
            raise IncompatibleCheckpointError(
                f"Expected all output of the savepoint to be committed to {table.shown}, found {len(unknown)} file(s) of "
                f"lineage {lineage} that never were: the job that took the savepoint ended before. Let that job go on until "
                "it succeeds, or take another savepoint of it."
            )


def _committed(standing: LineageCommits) -> set[str]:
    newest = standing.newest
    records = standing.ledger.intents.values()
    return {name for r in records if newest is not None and r.order <= newest.order for name in r.staged}


_ALL = sys.maxsize
# Each loss means that another writer has won, so this is how many of them may come in between.
_TRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRules:
    """What a user has chosen."""

    partition_by: tuple[str, ...]
    refuses_earlier_output: bool
    merges_schema: bool


@dataclass(slots=True)
class DeltaCommitter:
    """One attempt's hold on a table."""

    table: DeltaTableAccess
    files: DeltaFiles
    context: SinkContext
    rules: CommitRules
    _ledger: Ledger = field(init=False)
    _table_id: str | None = field(init=False, default=None)

    def open(self) -> None:
        """
        Take the table over.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: Nothing can be written there.
        :raises UnsupportedStateError: What is to be written does not fit the table.
        :raises CorruptStateError: Output of the restored checkpoint is gone, or what is to be replaced was rewritten.
        """
        self._ledger = Ledger.load(self.files)
        self._ledger.require_newest(self.context.epoch)
        standing = self._standing()
        require_owner(standing, self.context.epoch)
        if self.rules.refuses_earlier_output and self.context.restored_checkpoint_id is None:
            refuse_earlier_output(standing)
        self._refuse_output_of_gone(standing)
        self._require_fitting(standing.snapshot, self.context.schema)
        start = Start(self.context.generation, self.context.restored_checkpoint_id, self.context.restored_epoch)
        require_first_opening(standing, self.context.epoch, start)
        warn_if_unknown(standing, start)
        require_output_of_restored(standing, start)
        history = self._ledger.history()
        line = History({**history.starts, self.context.epoch: start}, history.taken).line_to(self.context.epoch, _ALL)
        require_replaceable(standing, self._records.without_files(_ALL, line), self.files)
        self._ledger.begin_attempt(self.context.epoch, start)
        self._repeat(self._take_over)

    def commit(self, checkpoint_id: int, committables: Sequence[DeltaCommittable]) -> None:
        """
        Make what belongs to a checkpoint part of the table.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: Output is missing or was changed.
        :raises IncompatibleCheckpointError: It is of another job, which has not committed it.
        :raises UnsupportedStateError: It does not fit the table.
        """
        ours = [task for task in committables if task.lineage == self.files.lineage]
        others = [task for task in committables if task.lineage != self.files.lineage]
        if others:
            require_committed_by_others(self.table, self.files, others)
        if not ours and (committables or checkpoint_id <= (self.context.restored_checkpoint_id or 0)):
            return  # nothing to commit, and nothing tells which attempt of ours took it
        self._repeat(lambda standing: self._try_commit(standing, checkpoint_id, ours))

    def close(self) -> None:
        """
        Clean up after a success.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: What is to be replaced was rewritten.
        """
        self._repeat(self._try_end)
        self._sweep()

    @property
    def _records(self) -> DeltaRecords:
        return DeltaRecords(self.context, self.rules.partition_by)

    def _repeat(self, step: Callable[[LineageCommits], bool]) -> None:
        for _ in range(_TRIES):
            standing = self._standing()
            require_owner(standing, self.context.epoch)
            if step(standing):
                return
        raise StorageError(
            f"Expected to commit to the Delta table {self.table.shown}, found that others were faster {_TRIES} times; let fewer "
            "write to it at once, and run the task again."
        )

    def _standing(self) -> LineageCommits:
        snapshot = self.table.snapshot()
        self._require_same_table(snapshot)
        standing = LineageCommits(self.files.lineage, self._ledger, snapshot, self.context.generation, self.table.shown)
        if not standing.lacks_records:
            return standing
        # An older attempt has committed after the ledger was read, and before it was fenced.
        self._ledger = Ledger.load(self.files)
        return replace(standing, ledger=self._ledger)

    def _take_over(self, standing: LineageCommits) -> bool:
        versions = {head_of(self.files.lineage): self.context.epoch}
        if standing.head == self.context.epoch:
            return True
        if standing.snapshot is not None:
            return self.table.commit(standing.snapshot, DeltaCommit(versions=versions, note=self._note("begins")))
        if self.context.schema is None:
            return True
        schema = file_schema(self.context.schema)
        return self.table.create(
            schema, self.rules.partition_by, DeltaCommit(versions=versions, note=self._note("begins"))
        )

    def _try_commit(self, standing: LineageCommits, checkpoint_id: int, tasks: Sequence[DeltaCommittable]) -> bool:
        record = self._records.of_checkpoint(standing, checkpoint_id, tasks)
        newest = standing.newest
        if standing.is_committed(record):
            require_all_named(self._ledger, record, tasks, self.context.epoch, self.table.shown)
            return True
        if newest is not None and newest.order > record.order:
            require_dead(standing, record, newest, self.context.epoch)
            return True
        files = {file.name: file for task in tasks for file in task.files if file.name in record.staged}
        return self._publish(standing, record, list(files.values()))

    def _publish(self, standing: LineageCommits, record: CommitRecord, files: Sequence[DeltaFile]) -> bool:
        removed = require_replaceable(standing, record, self.files)
        if not files and not removed:
            return True
        schema = decode_schema(record.schema) if record.schema else None
        self._require_fitting(standing.snapshot, schema)
        require_there(self.files, record, files)
        if record.key not in self._ledger.intents:
            self._ledger.intend(record)
        versions = {
            head_of(self.files.lineage): self.context.epoch,
            generation_key(self.files.lineage, record.generation): record.checkpoint_id,
        }
        note = self._note("commits", record, retracted=len(removed))
        commit = DeltaCommit(versions=versions, note=note, added=files, removed=removed)
        if standing.snapshot is None:
            return self.table.create(schema, self.rules.partition_by, commit)
        if self._widens(standing.snapshot, schema):
            return False
        return self.table.commit(standing.snapshot, commit)

    def _widens(self, snapshot: DeltaSnapshot, schema: Any) -> bool:
        import pyarrow as pa

        missing = [] if schema is None else new_columns(snapshot.schema, schema)
        if missing:
            versions = {head_of(self.files.lineage): self.context.epoch}
            columns = pa.schema([schema.field(name) for name in missing])
            # Whoever wins, the table is another one now and is looked at again.
            self.table.add_columns(snapshot, columns, DeltaCommit(versions=versions, note=self._note("adds columns")))
        return bool(missing)

    def _try_end(self, standing: LineageCommits) -> bool:
        line = self._ledger.history().line_to(self.context.epoch, _ALL)
        newest = standing.newest
        if standing.snapshot is None or (newest is not None and line.holds(newest.epoch, newest.checkpoint_id)):
            return True
        restored = self.context.restored_checkpoint_id or 0
        record = self._records.without_files(restored, self._ledger.history().line_to(self.context.epoch, restored))
        removed = require_replaceable(standing, record, self.files)
        if not removed:
            return True
        self._ledger.intend(record)
        versions = dict.fromkeys((head_of(self.files.lineage), end_of(self.files.lineage)), self.context.epoch)
        note = self._note("ends", record, retracted=len(removed))
        return self.table.commit(standing.snapshot, DeltaCommit(versions=versions, note=note, removed=removed))

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

    def _refuse_output_of_gone(self, standing: LineageCommits) -> None:
        def has_output(lineage: str) -> bool:
            theirs = Ledger.load(DeltaFiles(self.files.storage, lineage))
            return LineageCommits(lineage, theirs, standing.snapshot, 0, standing.shown).has_output

        if not self._ledger.starts:
            refuse_output_of_gone(self.context, standing.shown, has_output)

    def _require_same_table(self, snapshot: DeltaSnapshot | None) -> None:
        found = None if snapshot is None else snapshot.table_id
        if self._table_id is not None and found != self._table_id:
            raise CorruptStateError(
                f"Expected the Delta table {self.table.shown} that this attempt opened, found "
                f"{'none' if found is None else 'one that was made anew'}; run the task again."
            )
        self._table_id = found

    def _note(self, what: str, record: CommitRecord | None = None, **more: Any) -> dict[str, Any]:
        told = {} if record is None else {"checkpoint": record.checkpoint_id, "generation": record.generation}
        owner = {"job": self.context.job_name, "uid": self.context.uid, "epoch": self.context.epoch}
        return {"attempt": what, **owner, **told, **more}


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
