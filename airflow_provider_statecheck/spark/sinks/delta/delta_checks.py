"""Checks of a Delta table and its columns before a sink writes to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.spark.tables.data_files import require_partitionable
from airflow_provider_statecheck.spark.tables.delta import DeltaSnapshot, DeltaTableAccess
from airflow_provider_statecheck.spark.tables.delta_columns import file_schema, incompatibilities, stored_schema

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
