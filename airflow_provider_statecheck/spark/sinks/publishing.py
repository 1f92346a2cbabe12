"""Publish staged files under their final names, each once however often it is tried."""

from __future__ import annotations

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError
from airflow_provider_statecheck.spark.sinks.names import staging_directory
from airflow_provider_statecheck.spark.sinks.record import CommitRecord, PublishedFile
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, why_gone
from airflow_provider_statecheck.spark.snapshots.manifest import footer_digest


def publish(files: TargetFiles, record: CommitRecord, file: PublishedFile) -> None:
    """
    Give a staged file its final name; if it has that already, that is success.

    :raises CorruptStateError: if the file is nowhere, or another one has its name.
    """
    staged = f"{staging_directory(files.lineage)}/{file.staged}"
    if files.size(file.name) is None:
        try:
            files.move(staged, file.name)
        except CheckpointNotFoundError:
            if files.size(file.name) is None:
                raise _lost(files, record, file) from None
        else:
            return
    _require_same(files, file)
    files.delete(staged)


def _require_same(files: TargetFiles, file: PublishedFile) -> None:
    size = files.size(file.name)
    if size != file.size_bytes or _digest(files, file) != file.footer_sha256:
        raise CorruptStateError(
            f"Expected {file.size_bytes} bytes of our own in {files.target}/{file.name}, found {size} that differ; somebody "
            "changed the file. Move it away and run the task again.",
            uri=f"{files.target}/{file.name}",
        )


def _digest(files: TargetFiles, file: PublishedFile) -> str:
    return footer_digest(lambda start, end: files.read_range(file.name, start, end), file.name, file.size_bytes)


def _lost(files: TargetFiles, record: CommitRecord, file: PublishedFile) -> CorruptStateError:
    return CorruptStateError(
        f"Expected output of checkpoint {record.checkpoint_id} in {files.target}, either as {file.name} or staged as "
        f"{file.staged}, found neither; {why_gone(files.is_local)}",
        uri=f"{files.target}/{file.name}",
        checkpoint_id=record.checkpoint_id,
    )
