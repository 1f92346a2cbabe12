"""What a Delta sink notes in its ledger before each commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.committable import decode_schema, encode_schema
from airflow_provider_statecheck.spark.sinks.delta.attempt_checks import require_all_named
from airflow_provider_statecheck.spark.sinks.delta.committable import DeltaCommittable, DeltaFile
from airflow_provider_statecheck.spark.sinks.delta.schemas import file_schema
from airflow_provider_statecheck.spark.sinks.delta.standing import Standing
from airflow_provider_statecheck.spark.sinks.line import Line
from airflow_provider_statecheck.spark.sinks.record import CommitRecord, PublishedFile
from airflow_provider_statecheck.spark.sinks.sink import SinkContext


@dataclass(frozen=True, slots=True)
class DeltaRecords:
    """Makes the records of one attempt."""

    context: SinkContext
    partition_by: tuple[str, ...]

    def of_checkpoint(self, standing: Standing, checkpoint_id: int, tasks: Sequence[DeltaCommittable]) -> CommitRecord:
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

    def without_files(self, checkpoint_id: int, line: Line) -> CommitRecord:
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


def _new_files(standing: Standing, tasks: Sequence[DeltaCommittable]) -> tuple[PublishedFile, ...]:
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
