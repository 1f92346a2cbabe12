"""
Commit records of a Delta sink.

The ledger of a lineage records the files of each checkpoint before their commit. The transaction log of the table alone
determines which records are committed: together with the files, each commit sets the version of an application id,
named after the lineage and the generation, to the id of the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    StaleAttemptError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sinks.delta.delta_checks import file_schema
from airflow_provider_statecheck.spark.sinks.delta.delta_table import (
    DeltaCommittable,
    DeltaFile,
    DeltaFiles,
    DeltaSnapshot,
    end_application,
    generation_application,
    generation_of_data_file,
    head_application,
    lineage_of_data_file,
)
from airflow_provider_statecheck.spark.sinks.ledger import (
    Ancestry,
    CommitRecord,
    Ledger,
    PublishedFile,
    Start,
    in_parallel,
)
from airflow_provider_statecheck.spark.sinks.sink import SinkContext, decode_schema, encode_schema
from airflow_provider_statecheck.spark.sinks.target_files import missing_file_cause

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LineageCommits:
    """Commits of one lineage in one version of a table."""

    lineage: str
    ledger: Ledger
    snapshot: DeltaSnapshot | None
    generation: int
    """Generation of the attempt that reads the commits."""
    shown: str
    """Name of the table for error messages, without credentials."""

    @property
    def head(self) -> int | None:
        """Return the epoch of the newest attempt in the table."""
        return self._version_of(head_application(self.lineage))

    @cached_property
    def newest(self) -> CommitRecord | None:
        """
        Return the newest committed record.

        :raises CorruptStateError: if the ledger lacks the record of a committed checkpoint of this generation.
        """
        return max(self._newest_records(), key=lambda record: record.order, default=None)

    @property
    def lacks_records(self) -> bool:
        """Return whether the table has a commit without a record in the ledger."""
        return not self._end_is_known or any(
            f"{generation}-{checkpoint}" not in self.ledger.intents for generation, checkpoint in self._versions()
        )

    def is_committed(self, record: CommitRecord) -> bool:
        """Return whether a record is committed and not replaced."""
        newest = self.newest
        return (
            newest is not None
            and record.order <= newest.order
            and newest.ancestry.holds(record.epoch, record.checkpoint_id)
        )

    @property
    def in_force(self) -> list[CommitRecord]:
        """Return the records whose rows are the current output."""
        return [record for record in self.ledger.intents.values() if self.is_committed(record)]

    @property
    def has_output(self) -> bool:
        """Return whether the table has rows of the lineage."""
        return any(record.files for record in self.in_force)

    def files_replaced_by(self, record: CommitRecord) -> dict[str, int | None]:
        """Return the files that a record removes from the table, with their sizes where known."""
        older = [r for r in self.ledger.intents.values() if record.replaces(r)]
        retained = {f.name for r in self.ledger.intents.values() if not record.replaces(r) for f in r.files}
        known = {file.name: file.size_bytes for r in older for file in r.files if file.name not in retained}
        return {
            name: known.get(name)
            for name in self._own_files()
            if name in known or (name not in retained and generation_of_data_file(name) < record.generation)
        }

    def removed_by_other_writers(self, record: CommitRecord) -> list[str]:
        """Return the files that a record would replace, but that another writer has removed from the table."""
        own_files = set(self._own_files())
        return sorted(
            file.name for r in self.in_force if record.replaces(r) for file in r.files if file.name not in own_files
        )

    def _own_files(self) -> Iterator[str]:
        files = frozenset() if self.snapshot is None else self.snapshot.own_files
        return (name for name in files if lineage_of_data_file(name) == self.lineage)

    def _newest_records(self) -> Iterator[CommitRecord]:
        for generation, checkpoint in self._versions():
            yield from self._record_of(generation, checkpoint)
        yield from (r for r in self.ledger.intents.values() if r.is_end and r.epoch == self._end_epoch)

    def _versions(self) -> Iterator[tuple[int, int]]:
        for generation in {self.generation, *(start.generation for start in self.ledger.starts.values())}:
            checkpoint = self._version_of(generation_application(self.lineage, generation))
            if checkpoint is not None:
                yield generation, checkpoint

    @property
    def _end_epoch(self) -> int | None:
        return self._version_of(end_application(self.lineage))

    @property
    def _end_is_known(self) -> bool:
        return self._end_epoch is None or any(
            r.is_end and r.epoch == self._end_epoch for r in self.ledger.intents.values()
        )

    def _version_of(self, application: str) -> int | None:
        return None if self.snapshot is None else self.snapshot.version_of(application)

    def _record_of(self, generation: int, checkpoint_id: int) -> Iterator[CommitRecord]:
        record = self.ledger.intents.get(f"{generation}-{checkpoint_id}")
        if record is not None:
            yield record
        elif generation == self.generation:
            raise CorruptStateError(
                f"Expected the record of checkpoint {checkpoint_id} below _statecheck/{self.lineage} in {self.shown}, found "
                "none; it was deleted. Restore the directory from a backup, or start over.",
                checkpoint_id=checkpoint_id,
            )


@dataclass(frozen=True, slots=True)
class DeltaRecords:
    """Creates the commit records of one attempt."""

    context: SinkContext
    partition_by: tuple[str, ...]

    def of_checkpoint(
        self, commits: LineageCommits, checkpoint_id: int, tasks: Sequence[DeltaCommittable]
    ) -> CommitRecord:
        """
        Return the existing record of a checkpoint, or a new one.

        :raises CorruptStateError: if the existing record has other output.
        :raises UnsupportedStateError: if tasks wrote different columns.
        """
        ledger = commits.ledger
        epoch = max((task.epoch for task in tasks), default=self.context.epoch)
        generation = ledger.starts[epoch].generation if epoch in ledger.starts else self.context.generation
        existing = ledger.intents.get(f"{generation}-{checkpoint_id}")
        if existing is not None:
            require_same_output(ledger, existing, tasks, self.context.epoch, commits.shown)
            return existing
        return CommitRecord(
            job_name=self.context.job_name,
            uid=self.context.uid,
            generation=generation,
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            ancestry=ledger.history().ancestry_of(epoch, checkpoint_id),
            schema=self._schema_of(tasks, commits.shown),
            partition_by=self.partition_by,
            files=_new_files(commits, tasks),
        )

    def without_files(self, checkpoint_id: int, ancestry: Ancestry) -> CommitRecord:
        """Return a record without files, for an attempt that ends without a checkpoint or is about to start."""
        return CommitRecord(
            job_name=self.context.job_name,
            uid=self.context.uid,
            generation=self.context.generation,
            checkpoint_id=checkpoint_id,
            epoch=self.context.epoch,
            ancestry=ancestry,
            schema="",
            partition_by=self.partition_by,
            files=(),
            is_end=True,
        )

    def _schema_of(self, tasks: Sequence[DeltaCommittable], shown: str) -> str:
        found = sorted({task.schema for task in tasks})
        if len(found) > 1:
            raise UnsupportedStateError(
                f"Expected all tasks of a checkpoint to write the same columns to {shown}, found "
                f"{' and '.join(str(decode_schema(text)) for text in found[:2])}; start the stage over."
            )
        if found or self.context.schema is None:
            return found[0] if found else ""
        return encode_schema(file_schema(self.context.schema))


def require_owner(commits: LineageCommits, epoch: int) -> None:
    """
    Require that no newer attempt has taken ownership of the table.

    :raises StaleAttemptError: if a newer attempt owns the table.
    """
    if commits.head is None:
        # Applies to new tables and to recreated ones.
        commits.ledger.require_newest(epoch)
    elif commits.head > epoch:
        raise StaleAttemptError(
            f"Attempt {epoch} no longer owns its output in {commits.shown}: attempt {commits.head} took it over; stop "
            f"attempt {epoch}.",
            epoch=commits.head,
        )


def require_first_opening(commits: LineageCommits, epoch: int, start: Start) -> None:
    """
    Require that an attempt keeps its restored checkpoint after its first commit.

    :raises CoordinatorError: if it restored another one.
    """
    ledger = commits.ledger
    if ledger.starts.get(epoch, start) != start and any(record.epoch == epoch for record in ledger.active):
        raise CoordinatorError(
            f"Expected attempt {epoch} to keep its restored checkpoint after its first commit to {commits.shown}, found "
            f"checkpoint {start.restored} restored; register a new attempt."
        )


def warn_if_unknown(commits: LineageCommits, start: Start) -> None:
    """Log a warning if the ledger has no record of the attempt that took the restored checkpoint."""
    if start.restored is not None and start.taken_by is not None and start.taken_by not in commits.ledger.starts:
        log.warning(
            "The Delta table %s does not know attempt %s, which took the restored checkpoint %s: the sink is new in this "
            "table, or the table was recreated and lacks all earlier output",
            commits.shown,
            start.taken_by,
            start.restored,
        )


def require_output_of_restored(commits: LineageCommits, start: Start) -> None:
    """
    Require that the output of the restored checkpoint is still in the table.

    :raises CorruptStateError: if output was replaced.
    """
    newest, history = commits.newest, commits.ledger.history()
    taken_by = start.taken_by or history.taken.get(start.restored or 0)
    if start.restored is None or taken_by is None or newest is None:
        return
    ancestry = history.ancestry_of(taken_by, start.restored)
    own = [r for r in commits.ledger.active if r.files and ancestry.holds(r.epoch, r.checkpoint_id)]
    replaced = [record for record in own if newest.replaces(record)]
    if replaced:
        raise CorruptStateError(
            f"Expected the output of checkpoint {replaced[0].checkpoint_id} in {commits.shown}, found that checkpoint "
            f"{newest.checkpoint_id} of attempt {newest.epoch} replaced it; restore from the newest checkpoint or from one "
            "before the replaced ones, or start over.",
            checkpoint_id=replaced[0].checkpoint_id,
        )


def require_same_output(
    ledger: Ledger, record: CommitRecord, tasks: Sequence[DeltaCommittable], epoch: int, shown: str
) -> None:
    """
    Require that a repeated commit of a checkpoint has the same output as its record.

    :param epoch: Epoch of the attempt; the checkpoint may also carry committables of its ancestry.
    :raises CorruptStateError: if the output differs.
    """
    ancestry = ledger.history().ancestry_of(epoch)
    records = [r for r in ledger.active if r.key == record.key or ancestry.holds(r.epoch, r.checkpoint_id)]
    named = {name for each in records for name in each.staged}
    unknown = sorted({file.name for task in tasks for file in task.files} - named)
    if unknown:
        raise CorruptStateError(
            f"Expected the same output with each commit of checkpoint {record.checkpoint_id} to {shown}, found {unknown[0]} "
            "in addition to the committed files; another checkpoint with this id was committed. Start over.",
            checkpoint_id=record.checkpoint_id,
        )


def require_replaced(commits: LineageCommits, record: CommitRecord, newest: CommitRecord, epoch: int) -> None:
    """
    Require that an old checkpoint was replaced by the ancestry of the attempt.

    :raises CoordinatorError: if it was not.
    """
    # The stage repeats open commits of an abandoned branch until they are confirmed.
    ancestry = commits.ledger.history(record).ancestry_of(epoch)
    if not ancestry.holds(newest.epoch, newest.checkpoint_id):
        raise CoordinatorError(
            f"Expected to commit a checkpoint after {newest.checkpoint_id} of attempt {newest.epoch} to {commits.shown}, "
            f"found checkpoint {record.checkpoint_id} of attempt {record.epoch}; restore from checkpoint "
            f"{newest.checkpoint_id}, or start over.",
            checkpoint_id=record.checkpoint_id,
        )
    log.warning("The output of checkpoint %s is not committed, because later commits replaced it", record.key)


def require_files_exist(files: DeltaFiles, record: CommitRecord, wanted: Sequence[DeltaFile]) -> None:
    """
    Require that data files are complete before the transaction log refers to them.

    :raises CorruptStateError: if a file is missing or was modified.
    """
    sizes = in_parallel(lambda file: files.size(file.name), wanted, is_local=files.is_local)
    wrong = [(file, size) for file, size in zip(wanted, sizes, strict=True) if size != file.size_bytes]
    if wrong:
        file, size = wrong[0]
        found = f"{size} bytes; the file was modified. Restore from an earlier checkpoint, or start over."
        if size is None:
            found = f"no file; {missing_file_cause(files.is_local)} VACUUM deletes files that wait longer than its retention for their commit."
        raise CorruptStateError(
            f"Expected {file.size_bytes} bytes of checkpoint {record.checkpoint_id} in {files.target}/{file.name}, found {found}",
            checkpoint_id=record.checkpoint_id,
        )


def _new_files(commits: LineageCommits, tasks: Sequence[DeltaCommittable]) -> tuple[PublishedFile, ...]:
    # A checkpoint also carries the committables of earlier commits that were made but not confirmed.
    known = {name for record in commits.in_force for name in record.staged}
    found = {_published_file(file) for task in tasks for file in task.files if file.name not in known}
    return tuple(sorted(found, key=lambda file: file.name))


def _published_file(file: DeltaFile) -> PublishedFile:
    return PublishedFile(
        staged=file.name,
        name=file.name,
        size_bytes=file.size_bytes,
        rows=file.rows,
        footer_sha256=file.footer_sha256,
    )
