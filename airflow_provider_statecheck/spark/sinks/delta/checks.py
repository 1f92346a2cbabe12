"""Whether a sink can write to a Delta table that is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.delta.library import deltalake
from airflow_provider_statecheck.spark.sinks.delta.schemas import file_schema, misfits
from airflow_provider_statecheck.spark.sinks.delta.table import DeltaSnapshot, DeltaTableAccess
from airflow_provider_statecheck.spark.sinks.partitions import require_partitionable

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
"""Those that ask nothing of a writer unless the table also makes use of them, which is looked at by itself."""
_FORGETS = "delta.setTransactionRetentionDuration"


def require_writable_table(table: DeltaTableAccess, snapshot: DeltaSnapshot) -> None:
    """
    Refuse a table whose rules a writer of plain files would break, or that forgets what was committed.

    :raises EnvironmentNotReadyError: Says which rule.
    """
    metadata, protocol = snapshot.handle.metadata(), snapshot.handle.protocol()
    found = [*_rules_of(metadata.configuration), *_rules_of_columns(snapshot)]
    found += [f"the table feature {name}" for name in protocol.writer_features or () if name not in _WRITER_FEATURES]
    if found:
        raise EnvironmentNotReadyError(
            f"Expected a Delta table at {table.shown} to which whole files can be added, found {', '.join(sorted(set(found)))}; "
            "drop that from the table, or choose another one."
        )


def require_fitting(
    table: DeltaTableAccess, snapshot: DeltaSnapshot | None, schema: Any, partition_by: tuple[str, ...], *, merges: bool
) -> None:
    """
    Refuse an output that does not fit a table.

    :param schema: What will be written; ``None`` if it is not known yet.
    :raises UnsupportedStateError: Says in what it differs.
    """
    if schema is not None:
        require_partitionable(file_schema(schema), partition_by)
    if snapshot is None:
        return
    found = [] if schema is None else misfits(snapshot.schema, as_delta_has_it(schema), merges=merges)
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


def as_delta_has_it(schema: Any) -> Any:
    """Return an Arrow schema as a Delta table with it gives it back."""
    import pyarrow as pa

    return pa.schema(deltalake().Schema.from_arrow(file_schema(schema)).to_arrow())


def _rules_of(configuration: Mapping[str, str]) -> list[str]:
    found = [f"the constraint {name}" for name in configuration if name.startswith("delta.constraints.")]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        found.append("column mapping")
    if configuration.get("delta.enableDeletionVectors", "false") == "true":
        found.append("deletion vectors")
    if configuration.get("delta.enableRowTracking", "false") == "true":
        found.append("row tracking")
    if _FORGETS in configuration:
        found.append(f"{_FORGETS}, by which it forgets which checkpoints were committed")
    return found


def _rules_of_columns(snapshot: DeltaSnapshot) -> list[str]:
    rules = {
        "delta.generationExpression": "generated",
        "delta.identity.start": "an identity",
        "delta.invariants": "checked",
    }
    return [
        f"the column {column['name']!r} that is {what}"
        for column in json.loads(snapshot.handle.schema().to_json())["fields"]
        for rule, what in rules.items()
        if rule in column["metadata"]
    ]
