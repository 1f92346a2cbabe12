"""Data files of a Delta sink: checks of the table, names, committables, and tasks that write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import CorruptStateError, EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.sinks.sink import (
    SinkTaskContext,
    TaskCommittable,
    decode_file,
    encode_schema,
)
from airflow_provider_statecheck.spark.sinks.target_files import (
    ParquetSinkWriter,
    TargetFiles,
    data_file,
    lineage_of_data_file,
    missing_file_cause,
    staged_name,
    staging_directory,
)
from airflow_provider_statecheck.spark.tables.data_files import (
    DataFileWriter,
    FileLayout,
    WrittenFile,
    require_partitionable,
)
from airflow_provider_statecheck.spark.tables.delta import DeltaFile, DeltaSnapshot, DeltaTableAccess
from airflow_provider_statecheck.spark.tables.delta_files import (
    file_schema,
    incompatibilities,
    statistics_of,
    stored_schema,
)
from airflow_provider_statecheck.storage.file_operations import in_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommittable(TaskCommittable):
    """Data files of one task."""

    KIND: ClassVar[str] = "a committable of a Delta sink"

    schema: str
    """Encoded Arrow schema with the partition columns."""
    files: tuple[DeltaFile, ...]

    @property
    @override
    def has_output(self) -> bool:
        return bool(self.files)

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        files = tuple(decode_file(DeltaFile, file) for file in document["files"])
        return {"schema": str(document["schema"]), "files": files}


def application(lineage: str) -> str:
    """Return the application id whose version is that of the commit log of a lineage."""
    return f"statecheck-{lineage}"


def require_files_exist(files: TargetFiles, checkpoint_id: int, wanted: Sequence[DeltaFile]) -> None:
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
            f"Expected {file.size_bytes} bytes of checkpoint {checkpoint_id} in {files.target}/{file.name}, found {found}",
            checkpoint_id=checkpoint_id,
        )


def own_files(snapshot: DeltaSnapshot) -> frozenset[str]:
    """Return the data files in the table that sinks of this package wrote."""
    # Only the tail is compared, because the URI of the table has several spellings.
    tails = (uri[uri.rfind("/statecheck-") + 1 :] for uri in snapshot.file_uris)
    return frozenset(tail for tail in tails if lineage_of_data_file(tail) is not None)


_WRITER_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
        "columnMapping",
    }
)
"""Features that restrict a writer only if the table uses them; the use is checked separately."""
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"


def require_writable_table(table: DeltaTableAccess, snapshot: DeltaSnapshot) -> None:
    """
    Require a table without features that plain data files would violate, and with unlimited transaction retention.

    :raises EnvironmentNotReadyError: if the table has such a feature.
    """
    metadata, protocol = snapshot.handle.metadata(), snapshot.handle.protocol()
    found = [*_table_restrictions(metadata.configuration), *_column_restrictions(snapshot)]
    found += [f"the table feature {name}" for name in protocol.writer_features or () if name not in _WRITER_FEATURES]
    if found:
        raise EnvironmentNotReadyError(
            f"Expected a Delta table at {table.shown} without restrictions on plain data files, found "
            f"{', '.join(sorted(set(found)))}; remove them from the table, or choose another one."
        )


def require_fitting(
    table: DeltaTableAccess, snapshot: DeltaSnapshot | None, schema: Any, partition_by: tuple[str, ...], *, merges: bool
) -> None:
    """
    Require output that is compatible with the table.

    :param schema: Arrow schema of the output; ``None`` if it is not known yet.
    :raises UnsupportedStateError: if the schema is incompatible; the message lists the differences.
    """
    if schema is not None:
        require_partitionable(file_schema(schema), partition_by)
    if snapshot is None:
        return
    found = [] if schema is None else incompatibilities(snapshot.schema, stored_schema(schema), merges=merges)
    if snapshot.partition_by != partition_by:
        found.append(
            f"the table is partitioned by {', '.join(snapshot.partition_by) or 'nothing'} and the sink by "
            f"{', '.join(partition_by) or 'nothing'}"
        )
    if found:
        raise UnsupportedStateError(
            f"Expected output that fits the Delta table {table.shown}, found: {'; '.join(found)}. Convert it in the stage, or "
            "choose another table.",
            differences=found,
        )


def _table_restrictions(configuration: Mapping[str, str]) -> list[str]:
    found = [f"the constraint {name}" for name in configuration if name.startswith("delta.constraints.")]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        found.append("column mapping")
    if configuration.get("delta.enableDeletionVectors", "false") == "true":
        found.append("deletion vectors")
    if configuration.get("delta.enableRowTracking", "false") == "true":
        found.append("row tracking")
    if _TRANSACTION_RETENTION in configuration:
        found.append(f"{_TRANSACTION_RETENTION}, which expires the records of committed checkpoints")
    return found


def _column_restrictions(snapshot: DeltaSnapshot) -> list[str]:
    rules = {
        "delta.generationExpression": "generated",
        "delta.identity.start": "an identity",
        "delta.invariants": "checked",
    }
    return [
        f"the column {column['name']!r}, which is {description}"
        for column in json.loads(snapshot.handle.schema().to_json())["fields"]
        for rule, description in rules.items()
        if rule in column["metadata"]
    ]


def delta_writer(
    files: TargetFiles, layout: FileLayout, generation: int, context: SinkTaskContext, keys: Sequence[str] = ()
) -> ParquetSinkWriter:
    """
    Return a writer of data files under their permanent names.

    :param keys: Key columns for upserts, whose files wait in the staging directory; empty for appends.
    """
    schema = file_schema(context.schema)

    def name(directory: str) -> str:
        if keys:
            return f"{staging_directory(files.lineage)}/{staged_name(context.epoch, new_key())}"
        return data_file(files.lineage, directory, generation, context.epoch, context.subtask, new_key())

    def committable(written: Sequence[WrittenFile]) -> DeltaCommittable:
        return DeltaCommittable(
            lineage=files.lineage,
            epoch=context.epoch,
            subtask=context.subtask,
            schema=encode_schema(schema),
            files=tuple(_delta_file(file) for file in written),
        )

    return ParquetSinkWriter(DataFileWriter(files, layout, schema, name), committable, keys)


def _delta_file(file: WrittenFile) -> DeltaFile:
    return DeltaFile(
        name=file.name,
        size_bytes=file.size_bytes,
        rows=file.rows,
        footer_sha256=file.footer_sha256,
        statistics=statistics_of(file.metadata),
    )
