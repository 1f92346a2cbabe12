"""
Records of a Delta sink's commits, in its ledger and in the table's log.

The ledger of a lineage says which files belong to which checkpoint; it is written before each commit. Which of its records
came to pass is in the log of the table alone: with the files, each commit sets the version of an application that is named
after the lineage and the generation to the id of the checkpoint.
"""

from __future__ import annotations

import logging
import sys
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
    end_of,
    generation_key,
    generation_of_data_file,
    head_of,
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
from airflow_provider_statecheck.spark.sinks.target_files import why_gone


@dataclass(frozen=True)
class LineageCommits:
    """What one version of a table holds."""

    lineage: str
    ledger: Ledger
    snapshot: DeltaSnapshot | None
    generation: int
    """Of the attempt that asks."""
    shown: str

    @property
    def head(self) -> int | None:
        """Return the newest attempt that the table knows."""
        return self._version_of(head_of(self.lineage))

    @cached_property
    def newest(self) -> CommitRecord | None:
        """
        Return the newest record that came to pass.

        :raises CorruptStateError: if the table knows a checkpoint of this generation that the ledger does not.
        """
        return max(self._newest(), key=lambda record: record.order, default=None)

    @property
    def lacks_records(self) -> bool:
        """Tell whether something came to pass that the ledger, as it was read, does not have."""
        return not self._ends_known or any(
            f"{generation}-{checkpoint}" not in self.ledger.intents for generation, checkpoint in self._versions()
        )

    def is_committed(self, record: CommitRecord) -> bool:
        """Tell whether a record came to pass and nothing has replaced it."""
        newest = self.newest
        return (
            newest is not None
            and record.order <= newest.order
            and newest.line.holds(record.epoch, record.checkpoint_id)
        )

    @property
    def in_force(self) -> list[CommitRecord]:
        """Return the records whose rows are the output."""
        return [record for record in self.ledger.intents.values() if self.is_committed(record)]

    @property
    def has_output(self) -> bool:
        """Tell whether the table holds rows of the lineage."""
        return any(record.files for record in self.in_force)

    def replaced_by(self, record: CommitRecord) -> dict[str, int | None]:
        """Return the files of the table, with their sizes where known, that go when a record comes to pass."""
        older = [r for r in self.ledger.intents.values() if record.replaces(r)]
        kept = {f.name for r in self.ledger.intents.values() if not record.replaces(r) for f in r.files}
        known = {file.name: file.size_bytes for r in older for file in r.files if file.name not in kept}
        return {
            name: known.get(name)
            for name in self._own_files()
            if name in known or (name not in kept and generation_of_data_file(name) < record.generation)
        }

    def taken_away_by_others(self, record: CommitRecord) -> list[str]:
        """Return the files of output that a record replaces, as far as somebody else has removed them from the table."""
        there = set(self._own_files())
        return sorted(
            file.name for r in self.in_force if record.replaces(r) for file in r.files if file.name not in there
        )

    def _own_files(self) -> Iterator[str]:
        files = frozenset() if self.snapshot is None else self.snapshot.own_files
        return (name for name in files if lineage_of_data_file(name) == self.lineage)

    def _newest(self) -> Iterator[CommitRecord]:
        for generation, checkpoint in self._versions():
            yield from self._record_of(generation, checkpoint)
        yield from (r for r in self.ledger.intents.values() if r.is_end and r.epoch == self._end)

    def _versions(self) -> Iterator[tuple[int, int]]:
        for generation in {self.generation, *(start.generation for start in self.ledger.starts.values())}:
            checkpoint = self._version_of(generation_key(self.lineage, generation))
            if checkpoint is not None:
                yield generation, checkpoint

    @property
    def _end(self) -> int | None:
        return self._version_of(end_of(self.lineage))

    @property
    def _ends_known(self) -> bool:
        return self._end is None or any(r.is_end and r.epoch == self._end for r in self.ledger.intents.values())

    def _version_of(self, application: str) -> int | None:
        return None if self.snapshot is None else self.snapshot.version_of(application)

    def _record_of(self, generation: int, checkpoint_id: int) -> Iterator[CommitRecord]:
        record = self.ledger.intents.get(f"{generation}-{checkpoint_id}")
        if record is not None:
            yield record
        elif generation == self.generation:
            raise CorruptStateError(
                f"Expected the record of checkpoint {checkpoint_id} below _statecheck/{self.lineage} in {self.shown}, found "
                "none; somebody deleted it. Put the directory back from a backup, or start over.",
                checkpoint_id=checkpoint_id,
            )


log = logging.getLogger(__name__)


def require_owner(standing: LineageCommits, epoch: int) -> None:
    """
    Refuse an attempt after a newer one took the table over.

    :raises StaleAttemptError: if one did.
    """
    if standing.head is None:
        # Also where somebody has made the table anew meanwhile.
        standing.ledger.require_newest(epoch)
    elif standing.head > epoch:
        raise StaleAttemptError(
            f"Attempt {epoch} no longer owns its output in {standing.shown}: attempt {standing.head} took it over; stop this "
            "one.",
            epoch=standing.head,
        )


def require_first_opening(standing: LineageCommits, epoch: int, start: Start) -> None:
    """
    Refuse an attempt that goes back behind its own commits.

    :raises CoordinatorError: if it does.
    """
    ledger = standing.ledger
    if ledger.starts.get(epoch, start) != start and any(record.epoch == epoch for record in ledger.active):
        raise CoordinatorError(
            f"Expected attempt {epoch} to restore nothing after its own first commit to {standing.shown}, found checkpoint "
            f"{start.restored}; register a new attempt."
        )


def warn_if_unknown(standing: LineageCommits, start: Start) -> None:
    """Tell that the table knows nothing of what an attempt goes on from."""
    if start.restored is not None and start.taken_by is not None and start.taken_by not in standing.ledger.starts:
        log.warning(
            "The Delta table %s does not know attempt %s, which took the restored checkpoint %s: the sink is new here, or the "
            "table was made anew and lacks all output until then",
            standing.shown,
            start.taken_by,
            start.restored,
        )


def require_output_of_restored(standing: LineageCommits, start: Start) -> None:
    """
    Refuse to go on from a checkpoint whose output was replaced.

    :raises CorruptStateError: if it was.
    """
    newest, history = standing.newest, standing.ledger.history()
    taken_by = start.taken_by or history.taken.get(start.restored or 0)
    if start.restored is None or taken_by is None or newest is None:
        return
    line = history.line_to(taken_by, start.restored)
    own = [r for r in standing.ledger.active if r.files and line.holds(r.epoch, r.checkpoint_id)]
    gone = [record for record in own if newest.replaces(record)]
    if gone:
        raise CorruptStateError(
            f"Expected the output of checkpoint {gone[0].checkpoint_id} in {standing.shown}, found that checkpoint "
            f"{newest.checkpoint_id} of attempt {newest.epoch} replaced it; restore from the newest checkpoint or from one "
            "before that, or start over.",
            checkpoint_id=gone[0].checkpoint_id,
        )


def require_all_named(
    ledger: Ledger, record: CommitRecord, tasks: Sequence[DeltaCommittable], epoch: int, shown: str
) -> None:
    """
    Refuse another output for a checkpoint than the one that its record has, with what it carried along.

    :param epoch: The attempt, which goes on from what was carried.
    :raises CorruptStateError: if it is another one.
    """
    line = ledger.history().line_to(epoch, sys.maxsize)
    ours = [r for r in ledger.active if r.key == record.key or line.holds(r.epoch, r.checkpoint_id)]
    named = {name for known in ours for name in known.staged}
    unknown = sorted({file.name for task in tasks for file in task.files} - named)
    if unknown:
        raise CorruptStateError(
            f"Expected the same output with each commit of checkpoint {record.checkpoint_id} to {shown}, found {unknown[0]} "
            "beside what was committed; the checkpoint is not the one that was committed. Start over.",
            checkpoint_id=record.checkpoint_id,
        )


def require_dead(standing: LineageCommits, record: CommitRecord, newest: CommitRecord, epoch: int) -> None:
    """
    Refuse an old checkpoint, unless the attempt goes on from what replaced it.

    :raises CoordinatorError: if it does not.
    """
    # Open commits of a branch that an attempt left are told to it again and again until they are confirmed.
    line = standing.ledger.history(record).line_to(epoch, sys.maxsize)
    if not line.holds(newest.epoch, newest.checkpoint_id):
        raise CoordinatorError(
            f"Expected to commit no output to {standing.shown} but that of checkpoints after {newest.checkpoint_id} of attempt "
            f"{newest.epoch}, found checkpoint {record.checkpoint_id} of attempt {record.epoch}; restore from checkpoint "
            f"{newest.checkpoint_id}, or start over.",
            checkpoint_id=record.checkpoint_id,
        )
    log.warning("The output of checkpoint %s is not committed: what was committed since replaces it", record.key)


def require_there(files: DeltaFiles, record: CommitRecord, wanted: Sequence[DeltaFile]) -> None:
    """
    Refuse to name files in the log that are not there as a whole.

    :raises CorruptStateError: if one is not.
    """
    sizes = in_parallel(lambda file: files.size(file.name), wanted, is_local=files.is_local)
    wrong = [(file, size) for file, size in zip(wanted, sizes, strict=True) if size != file.size_bytes]
    if wrong:
        file, size = wrong[0]
        found = f"{size}; the file was changed. Restore from an earlier checkpoint, or start over."
        if size is None:
            found = f"no file; {why_gone(files.is_local)} VACUUM deletes what has waited for its commit for too long."
        raise CorruptStateError(
            f"Expected {file.size_bytes} bytes of checkpoint {record.checkpoint_id} in {files.target}/{file.name}, found {found}",
            checkpoint_id=record.checkpoint_id,
        )


@dataclass(frozen=True, slots=True)
class DeltaRecords:
    """Makes the records of one attempt."""

    context: SinkContext
    partition_by: tuple[str, ...]

    def of_checkpoint(
        self, standing: LineageCommits, checkpoint_id: int, tasks: Sequence[DeltaCommittable]
    ) -> CommitRecord:
        """
        Return the record of a checkpoint: the one that was begun, or a new one.

        :raises CorruptStateError: if the one that was begun has another output.
        :raises UnsupportedStateError: if tasks wrote different columns.
        """
        ledger = standing.ledger
        epoch = max((task.epoch for task in tasks), default=self.context.epoch)
        generation = ledger.starts[epoch].generation if epoch in ledger.starts else self.context.generation
        begun = ledger.intents.get(f"{generation}-{checkpoint_id}")
        if begun is not None:
            require_all_named(ledger, begun, tasks, self.context.epoch, standing.shown)
            return begun
        return CommitRecord(
            job_name=self.context.job_name,
            uid=self.context.uid,
            generation=generation,
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            line=ledger.history().line_to(epoch, checkpoint_id),
            schema=self._schema_of(tasks, standing.shown),
            partition_by=self.partition_by,
            files=_new_files(standing, tasks),
        )

    def without_files(self, checkpoint_id: int, line: Ancestry) -> CommitRecord:
        """Return the record of an attempt that ends at the checkpoint where it began, or that is about to begin."""
        return CommitRecord(
            job_name=self.context.job_name,
            uid=self.context.uid,
            generation=self.context.generation,
            checkpoint_id=checkpoint_id,
            epoch=self.context.epoch,
            line=line,
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


def _new_files(standing: LineageCommits, tasks: Sequence[DeltaCommittable]) -> tuple[PublishedFile, ...]:
    # Carried along from a checkpoint whose commit was never confirmed, though it was made.
    known = {name for record in standing.in_force for name in record.staged}
    found = {_published(file) for task in tasks for file in task.files if file.name not in known}
    return tuple(sorted(found, key=lambda file: file.name))


def _published(file: DeltaFile) -> PublishedFile:
    return PublishedFile(
        staged=file.name,
        name=file.name,
        size_bytes=file.size_bytes,
        rows=file.rows,
        footer_sha256=file.footer_sha256,
    )
