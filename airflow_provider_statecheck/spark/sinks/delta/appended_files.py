"""Output of a Delta sink that appends rows: data files in the directory of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from airflow_provider_statecheck.exceptions import CorruptStateError, EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.spark.sinks.commits.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.commits.commit_log import (
    ALL_CHECKPOINTS,
    CommitLog,
    CommitRange,
    LogChange,
    Publication,
)
from airflow_provider_statecheck.spark.sinks.delta.delta_destination import DeltaOutput
from airflow_provider_statecheck.spark.sinks.delta.delta_files import (
    DeltaFiles,
    data_directory,
    lineage_of_data_file,
    own_files,
    require_files_exist,
    writer_of_data_file,
)
from airflow_provider_statecheck.spark.tables.delta import (
    DeltaCommit,
    DeltaFile,
    DeltaLog,
    DeltaSnapshot,
    DeltaTableAccess,
)
from airflow_provider_statecheck.storage.file_operations import in_parallel


@dataclass(frozen=True, slots=True)
class AppendedFiles(DeltaOutput):
    """
    Data files of one lineage.

    :param table: The table.
    :param files: Files of the lineage in the table.
    :param records: Records of the output of each checkpoint.
    """

    table: DeltaTableAccess
    files: DeltaFiles
    records: CommitFiles

    @override
    def require_retractable(self, snapshot: DeltaSnapshot, ranges: Sequence[CommitRange]) -> None:
        self._removed(snapshot, ranges)

    @override
    def commit(self, snapshot: DeltaSnapshot, change: LogChange, commit: DeltaCommit) -> StorageError | None:
        added = [] if change.publication is None else self._complete_files(change.publication)
        removed = self._removed(snapshot, change.retracted)
        note = {**commit.note, "retracted": len(removed)}
        return self.table.commit(snapshot, replace(commit, added=added, removed=removed, note=note))

    @override
    def sweep(self, current: CommitLog, last_epoch: int) -> None:
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
    def writers(self, snapshot: DeltaSnapshot, newest: int) -> Mapping[int, int]:
        found = (writer_of_data_file(name) for name in self._files_in(snapshot))
        return {epoch: generation for generation, epoch in found}

    def _complete_files(self, publication: Publication) -> list[DeltaFile]:
        files = [file for task in publication.committables for file in task.files]
        require_files_exist(self.files, publication.checkpoint_id, files)
        return files

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
                f"Expected to replace {len(removed)} file(s) of earlier output in {self.table.shown}, found that the table is "
                "append-only; set delta.appendOnly to false, restore from the newest checkpoint, or choose another table."
            )
        self._require_not_rewritten(snapshot, recorded.keys() - present)
        return removed

    def _writers_without_records(self, ranges: Iterable[CommitRange]) -> set[tuple[int, int]]:
        found = [each for each in ranges if each.last == ALL_CHECKPOINTS]
        kept = next((each for each in found if each.first > 1), None)
        if kept is not None:
            raise CorruptStateError(
                f"Expected to replace the output of attempt {kept.epoch} in {self.table.shown} from checkpoint {kept.first} on, "
                "found that the log of the sink, which tells its checkpoints apart, was lost; start over.",
                checkpoint_id=kept.first,
            )
        return {(each.generation, each.epoch) for each in found}

    def _require_appended(self, names: Iterable[str]) -> None:
        if any(lineage_of_data_file(name) is None for name in names):
            raise EnvironmentNotReadyError(
                f"Expected to replace the files of earlier output in {self.table.shown}, found that the sink has upserted it; set "
                "upsert_by as before, restore from the newest checkpoint, or choose another table."
            )

    def _require_not_rewritten(self, snapshot: DeltaSnapshot, names: Iterable[str]) -> None:
        rewritten = _rewritten(DeltaLog(self.files.storage), snapshot.version, names)
        if rewritten:
            raise CorruptStateError(
                f"Expected to replace the files of earlier output in {self.table.shown}, found that another writer has rewritten "
                f"{len(rewritten)} of them, such as {rewritten[0]}; after OPTIMIZE, UPDATE, DELETE or MERGE their rows cannot be "
                "identified. Delete the rows of this job, move the directory "
                f"_statecheck/{self.files.lineage} of the table away, and start over; or write to another table."
            )

    def _recorded(self, ranges: Iterable[CommitRange]) -> dict[str, int]:
        found = self.records.publications(ranges)
        return {file.name: file.size_bytes for each in found for task in each.committables for file in task.files}

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
