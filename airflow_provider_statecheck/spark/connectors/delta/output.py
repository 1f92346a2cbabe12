"""
Output of a Delta sink: data files of tasks that are appended, or merged by key.

Two columns of the table record the sink and the checkpoint that inserted an upserted row, so that a retraction can
delete it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.delta.destination import DeltaDestination
from airflow_provider_statecheck.spark.connectors.delta.table import DeltaCommit, DeltaLog, DeltaSnapshot, deltalake
from airflow_provider_statecheck.spark.connectors.delta.table_files import file_schema, statistics_of
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import (
    ALL_CHECKPOINTS,
    CommitLog,
    CommitRange,
    LogChange,
    Publication,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import (
    ParquetSinkWriter,
    TargetFiles,
    data_directory,
    data_file,
    delete_after_commit,
    lineage_of_data_file,
    missing_file_cause,
    sweep_staged,
    writer_of_data_file,
)
from airflow_provider_statecheck.spark.connectors.limits import delta_limits, length_limits
from airflow_provider_statecheck.spark.connectors.sink import (
    CHECKPOINT,
    LINEAGE,
    ROW,
    Committable,
    SinkTaskContext,
    last_rows,
    require_output_columns,
    with_constants,
)
from airflow_provider_statecheck.spark.tables.data_files import FileLayout, WrittenFile
from airflow_provider_statecheck.storage.file_operations import in_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommittable(Committable):
    """Data files of one task."""

    KIND: ClassVar[str] = "the uncommitted output of a Delta sink"
    KEEPS_EMPTY: ClassVar[bool] = False
    FORMAT: ClassVar[Mapping[str, Any]] = {"format_version": 1, "kind": "delta"}


def require_files_exist(files: TargetFiles, checkpoint_id: int, wanted: Sequence[WrittenFile]) -> None:
    """
    Require that files are complete before a version of the table refers to them.

    :raises CorruptStateError: if a file is missing or was modified.
    """
    sizes = in_parallel(lambda file: files.size(file.name), wanted, is_local=files.is_local)
    wrong = [(file, size) for file, size in zip(wanted, sizes, strict=True) if size != file.size_bytes]
    if wrong:
        file, size = wrong[0]
        found = f"{size} bytes; the file was modified. Restore from an earlier checkpoint, or start over."
        if size is None:
            found = f"no file; {missing_file_cause(files.is_local)}"
            if lineage_of_data_file(file.name) is not None:
                found += " VACUUM deletes files that wait longer than its retention for their commit."
        raise CorruptStateError(
            f"Expected {file.size_bytes} bytes of checkpoint {checkpoint_id} in {files.target}/{file.name}, found "
            f"{found}",
            checkpoint_id=checkpoint_id,
        )


def own_files(snapshot: DeltaSnapshot) -> frozenset[str]:
    """Return the data files in the table that sinks of this package wrote."""
    # Only the tail is compared, because the URI of the table has several spellings.
    tails = (uri[uri.rfind("/statecheck-") + 1 :] for uri in snapshot.file_uris)
    return frozenset(tail for tail in tails if lineage_of_data_file(tail) is not None)


def delta_writer(
    files: TargetFiles,
    layout: FileLayout,
    generation: int,
    context: SinkTaskContext,
    keys: Sequence[str] = (),
    *,
    required: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    lengths: Mapping[tuple[str, ...], int] = MappingProxyType({}),
) -> ParquetSinkWriter:
    """
    Return a writer of data files under their permanent names.

    :param keys: Key columns for upserts, whose files wait in the staging directory; empty for appends.
    :param required: Columns that cannot be null in the table.
    :param partition_by: Partition columns of the table.
    :param lengths: Largest number of characters of texts, by the path of a column or of its part.
    """
    schema = file_schema(context.schema)
    target = f"the Delta table {files.target}"
    limits = delta_limits(schema, target, keys=keys, required=required, partition_by=partition_by)
    limits = replace(limits, limits=(*limits.limits, *length_limits(schema, lengths)))

    def name(directory: str) -> str:
        return data_file(files.lineage, directory, generation, context.epoch, context.subtask, new_key())

    return ParquetSinkWriter(
        files,
        layout,
        context,
        limits=limits,
        schema=schema,
        committable=DeltaCommittable,
        name=None if keys else name,
        statistics=statistics_of,
    )


Operation = Callable[[Any, Any], None]


@dataclass(slots=True, kw_only=True)
class UpsertedRows(DeltaDestination):
    """
    Rows of one lineage, identified by key.

    :param keys: Key columns.
    """

    keys: tuple[str, ...]
    compression: str

    @override
    def _columns(self, schema: Any) -> Any:
        require_output_columns(schema.names, self.keys, (LINEAGE, CHECKPOINT, ROW))
        unfit = [name for name in schema.names if "`" in name]
        unfit += [name for name in self.keys if _is_inexact(schema.field(name).type)]
        if unfit:
            raise UnsupportedStateError(
                "Expected columns without backticks, and neither nested nor floating-point ones in upsert_by, for an "
                f"upsert, found {unfit[0]!r}; rename it, or choose another key."
            )
        marks = [pa.field(LINEAGE, pa.string()), pa.field(CHECKPOINT, pa.int64())]
        return file_schema(pa.schema([*schema, *marks]))

    @override
    def _require_removable(self, snapshot: DeltaSnapshot, ranges: Sequence[CommitRange]) -> None:
        recorded = self.records.publications(each for each in ranges if each.last != ALL_CHECKPOINTS)
        appended = [file.name for each in recorded for file in each.files if lineage_of_data_file(file.name)]
        if any(each.last == ALL_CHECKPOINTS for each in ranges):
            appended += [name for name in own_files(snapshot) if lineage_of_data_file(name) == self.files.lineage]
        if appended:
            raise EnvironmentNotReadyError(
                f"Expected to delete the rows of earlier output in {self.table.shown} by their marks, found "
                f"{len(appended)} file(s) that the sink appended without upsert_by; restore from the newest "
                f"checkpoint, delete the rows of this job and the directory _statecheck/{self.files.lineage} of the "
                "table and start over, or choose another table."
            )

    @override
    def _write(self, snapshot: DeltaSnapshot, change: LogChange, commit: DeltaCommit) -> StorageError | None:
        self._require_updatable(snapshot)
        if change.publication is None and not change.retracted:
            return self.table.commit(snapshot, commit)
        self._require_removable(snapshot, change.retracted)
        version, write = snapshot.version, self._operation(change)
        failure = self.table.commit_with(snapshot, commit, write)
        if failure is None and snapshot.version == version:
            # deltalake writes no version if no row has changed.
            failure = self.table.commit(snapshot, commit)
        if failure is None and change.publication is not None:
            delete_after_commit(self.files, change.publication)
        return failure

    @override
    def _sweep_files(self, current: CommitLog, last_epoch: int) -> None:
        sweep_staged(self.files, last_epoch)

    @override
    def _writers(self, snapshot: DeltaSnapshot, newest: int) -> Mapping[int, int]:
        # The marks do not tell attempts apart; a fresh start, which alone asks, replaces all rows.
        return {newest: 0}

    def _operation(self, change: LogChange) -> Operation:
        if change.publication is None:
            condition = self._condition(change.retracted, "")
            return lambda handle, properties: handle.delete(
                condition, writer_properties=self._file_properties(), commit_properties=properties
            )
        condition, rows = self._condition(change.retracted, "target."), self._rows(change.publication)
        return lambda handle, properties: self._merge(handle, rows, condition, properties)

    def _merge(self, handle: Any, rows: Any, retracted: str, properties: Any) -> None:
        keys = " AND ".join(f"{_in_table(name)} = {_in_rows(name)}" for name in self.keys)
        merge = handle.merge(
            rows,
            predicate=keys,
            source_alias="output",
            target_alias="target",
            # Bounds of the keys exclude files of the table, but statistics of files have rounded decimals.
            streamed_exec=any(pa.types.is_decimal(rows.schema.field(name).type) for name in self.keys),
            writer_properties=self._file_properties(),
            commit_properties=properties,
        )
        values = {name: _in_rows(name) for name in rows.column_names if name not in (*self.keys, LINEAGE, CHECKPOINT)}
        merge.when_matched_update({_in_table(name): value for name, value in {**values, **_marks(retracted)}.items()})
        merge.when_not_matched_insert_all()
        if retracted:
            merge.when_not_matched_by_source_delete(retracted)
        merge.execute()

    def _condition(self, ranges: Sequence[CommitRange], alias: str) -> str:
        checkpoints = " OR ".join(f"{alias}`{CHECKPOINT}` BETWEEN {each.first} AND {each.last}" for each in ranges)
        return f"{alias}`{LINEAGE}` = '{self.files.lineage}' AND ({checkpoints})" if ranges else ""

    def _rows(self, publication: Publication) -> Any:
        tasks = sorted(publication.committables, key=lambda task: (task.epoch, task.subtask))
        files = [file for task in tasks for file in task.files]
        require_files_exist(self.files, publication.checkpoint_id, files)
        rows = pa.concat_tables(in_parallel(self._read, files, is_local=self.files.is_local))
        marks = {LINEAGE: self.files.lineage, CHECKPOINT: publication.checkpoint_id}
        return with_constants(last_rows(rows, self.keys), **marks)

    def _read(self, file: WrittenFile) -> Any:
        data = self.files.read(file.name)
        try:
            return parquet.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read()
        except (OSError, pa.ArrowException) as error:
            raise CorruptStateError(
                f"Expected staged rows in {self.files.target}/{file.name}, found other content: {error}; restore from "
                "an earlier checkpoint, or start over."
            ) from error

    def _require_updatable(self, snapshot: DeltaSnapshot) -> None:
        if snapshot.is_append_only:
            raise EnvironmentNotReadyError(
                f"Expected a table that accepts updates at {self.table.shown}, found that it is append-only; set "
                "delta.appendOnly to false, remove upsert_by, or choose another table."
            )

    def _file_properties(self) -> Any:
        codec = "UNCOMPRESSED" if self.compression == "none" else self.compression.upper()
        return deltalake().WriterProperties(compression=codec)


def _is_inexact(kind: Any) -> bool:
    # Statistics of files omit not-a-number, so that a merge skips its rows; and two zeros are equal, but differ in
    # bytes.
    return bool(pa.types.is_nested(kind) or pa.types.is_floating(kind))


def _marks(retracted: str) -> dict[str, str]:
    # The marks of a row stay while only one sink writes it; a row that another sink has written is never deleted.
    first = f"WHEN {retracted} THEN {{0}} " if retracted else ""
    cases = f"CASE {first}WHEN {_in_table(LINEAGE)} = {_in_rows(LINEAGE)} THEN {{1}} END"
    return {name: cases.format(_in_rows(name), _in_table(name)) for name in (LINEAGE, CHECKPOINT)}


def _in_table(name: str) -> str:
    return f"target.`{name}`"


def _in_rows(name: str) -> str:
    return f"output.`{name}`"


class AppendedFiles(DeltaDestination):
    """Data files of one lineage."""

    @override
    def _require_removable(self, snapshot: DeltaSnapshot, ranges: Sequence[CommitRange]) -> None:
        self._removed(snapshot, ranges)

    @override
    def _write(self, snapshot: DeltaSnapshot, change: LogChange, commit: DeltaCommit) -> StorageError | None:
        published = change.publication
        added = published.files if published else []
        if published is not None:
            require_files_exist(self.files, published.checkpoint_id, added)
        removed = self._removed(snapshot, change.retracted)
        note = {**commit.note, "retracted": len(removed)}
        return self.table.commit(snapshot, replace(commit, added=added, removed=removed, note=note))

    @override
    def _sweep_files(self, current: CommitLog, last_epoch: int) -> None:
        directory = data_directory(self.files.lineage)
        names = [f"{directory}/{name}" for name in self.files.list_files(directory)]
        ranges = (*current.committed, *current.retracted)
        # Nothing records which files of other attempts older versions of the table show.
        epochs = {each for each in current.starts if each <= last_epoch} - {
            each.epoch for each in ranges if each.last == ALL_CHECKPOINTS
        }
        strays = {name for name in names if writer_of_data_file(name)[1] in epochs}
        # The table is read after its directory: a file that a commit adds in between is in the table.
        strays = strays and strays - self._files_in(self.table.snapshot())
        strays = strays and strays - self._recorded(ranges).keys()
        in_parallel(self.files.delete, sorted(strays), is_local=self.files.is_local)

    @override
    def _writers(self, snapshot: DeltaSnapshot, newest: int) -> Mapping[int, int]:
        found = (writer_of_data_file(name) for name in self._files_in(snapshot))
        return {epoch: generation for generation, epoch in found}

    def _removed(self, snapshot: DeltaSnapshot, ranges: Sequence[CommitRange]) -> dict[str, int | None]:
        if not ranges:
            return {}
        unrecorded = self._writers_without_records(ranges)
        recorded = self._recorded(each for each in ranges if each.last != ALL_CHECKPOINTS)
        self._require_appended(recorded)
        present = self._files_in(snapshot)
        removed = {n: recorded.get(n) for n in present if n in recorded or writer_of_data_file(n) in unrecorded}
        if removed and snapshot.is_append_only:
            raise EnvironmentNotReadyError(
                f"Expected to replace {len(removed)} file(s) of earlier output in {self.table.shown}, found that the "
                "table is append-only; set delta.appendOnly to false, restore from the newest checkpoint, or choose "
                "another table."
            )
        self._require_not_rewritten(snapshot, recorded.keys() - present)
        return removed

    def _writers_without_records(self, ranges: Iterable[CommitRange]) -> set[tuple[int, int]]:
        found = [each for each in ranges if each.last == ALL_CHECKPOINTS]
        kept = next((each for each in found if each.first > 1), None)
        if kept is not None:
            raise CorruptStateError(
                f"Expected to replace the output of attempt {kept.epoch} in {self.table.shown} from checkpoint "
                f"{kept.first} on, found that the log of the sink, which tells its checkpoints apart, was lost; start "
                "over.",
                checkpoint_id=kept.first,
            )
        return {(each.generation, each.epoch) for each in found}

    def _require_appended(self, names: Iterable[str]) -> None:
        if any(lineage_of_data_file(name) is None for name in names):
            raise EnvironmentNotReadyError(
                f"Expected to replace the files of earlier output in {self.table.shown}, found that the sink has "
                "upserted it; set upsert_by as before, restore from the newest checkpoint, or choose another table."
            )

    def _require_not_rewritten(self, snapshot: DeltaSnapshot, names: Iterable[str]) -> None:
        rewritten = _rewritten(DeltaLog(self.files.storage), snapshot.version, names)
        if rewritten:
            raise CorruptStateError(
                f"Expected to replace the files of earlier output in {self.table.shown}, found that another writer has "
                f"rewritten {len(rewritten)} of them, such as {rewritten[0]}; after OPTIMIZE, UPDATE, DELETE or MERGE "
                "their rows cannot be identified. Delete the rows of this job, move the directory "
                f"_statecheck/{self.files.lineage} of the table away, and start over; or write to another table."
            )

    def _recorded(self, ranges: Iterable[CommitRange]) -> dict[str, int]:
        found = self.records.publications(ranges)
        return {file.name: file.size_bytes for each in found for file in each.files}

    def _files_in(self, snapshot: DeltaSnapshot | None) -> set[str]:
        names = frozenset() if snapshot is None else own_files(snapshot)
        return {name for name in names if lineage_of_data_file(name) == self.files.lineage}


def _rewritten(log: DeltaLog, version: int, names: Iterable[str]) -> list[str]:
    # A version that only removed files has deleted their rows.
    wanted = set(names)
    for entry in log.back_from(version) if wanted else ():
        found = wanted & set(entry.removed)
        if found and not entry.added:
            wanted -= found
        elif found:
            break
        if not wanted:
            break
    return sorted(wanted)
