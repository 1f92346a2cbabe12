"""Checks of a Delta table and its columns before a sink writes to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.data_files import require_partitionable
from airflow_provider_statecheck.spark.sinks.delta.delta_table import DeltaSnapshot, DeltaTableAccess, deltalake

_UTC = frozenset({"UTC", "Etc/UTC", "+00:00", "Z"})
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


def file_schema(schema: Any) -> Any:
    """
    Return the Arrow schema of data files for an output schema, with types that Delta supports.

    :raises UnsupportedStateError: if a column has an unsupported type, or names are duplicate.
    """
    import pyarrow as pa

    lower = [name.lower() for name in schema.names]
    repeated = sorted({name for name in schema.names if lower.count(name.lower()) > 1})
    if repeated or not lower:
        raise UnsupportedStateError(
            f"Expected columns with different names for a Delta table, regardless of case, found {repeated or 'none'}; "
            "rename them."
        )
    return pa.schema([pa.field(field.name, _delta_type(field.name, field.type), field.nullable) for field in schema])


def stored_schema(schema: Any) -> Any:
    """Return an Arrow schema as a Delta table returns it after storing it."""
    import pyarrow as pa

    return pa.schema(deltalake().Schema.from_arrow(file_schema(schema)).to_arrow())


def incompatibilities(table: Any, ours: Any, *, merges: bool) -> list[str]:
    """
    Return the reasons why files with one schema cannot be added to a table with another.

    :param table: Arrow schema of the table.
    :param ours: Arrow schema of the files, as a Delta table returns it.
    :param merges: Whether columns may be added to the table.
    """
    found = [
        f"column {field.name!r} of the table is not nullable and is not written"
        for field in table
        if ours.get_field_index(field.name) < 0 and not field.nullable
    ]
    for field in ours:
        if table.get_field_index(field.name) >= 0:
            found += _column_differences(table.field(field.name), field)
        elif not merges:
            found.append(f"the table has no column {field.name!r} (merge_schema=True adds it)")
        elif not field.nullable:
            found.append(f"column {field.name!r} is new and not nullable")
    return found


def new_columns(table: Any, ours: Any) -> list[str]:
    """Return the columns that the table lacks."""
    return [name for name in ours.names if table.get_field_index(name) < 0]


def _column_differences(theirs: Any, ours: Any) -> list[str]:
    if theirs.type != ours.type:
        return [f"column {ours.name!r} is {theirs.type} in the table and {ours.type} here"]
    if ours.nullable and not theirs.nullable:
        return [f"column {ours.name!r} is not nullable in the table and is nullable here"]
    return []


def _delta_type(name: str, kind: Any) -> Any:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _delta_type(name, kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind) or types.is_string(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return _timestamp_type(name, kind)
    if types.is_nested(kind):
        return _nested_type(name, kind)
    plain = (types.is_signed_integer, types.is_float32, types.is_float64, types.is_boolean, types.is_date32)
    if any(test(kind) for test in plain) or types.is_decimal128(kind):
        return kind
    raise _unsupported_error(name, kind)


def _timestamp_type(name: str, kind: Any) -> Any:
    import pyarrow as pa

    if kind.unit == "ns" or kind.tz not in (None, *_UTC):
        raise _unsupported_error(name, kind)
    return pa.timestamp("us", "UTC" if kind.tz else None)


def _nested_type(name: str, kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _delta_type(f"{name}.{f.name}", f.type), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        item = pa.field("value", _delta_type(f"{name}.value", kind.item_type), kind.item_field.nullable)
        return pa.map_(pa.field("key", _delta_type(f"{name}.key", kind.key_type), nullable=False), item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_field
        return pa.list_(pa.field("element", _delta_type(f"{name}.element", element.type), element.nullable))
    raise _unsupported_error(name, kind)


def _unsupported_error(name: str, kind: Any) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Expected a type of Delta tables for the column {name!r}, found {kind}; convert it in the stage to an integer, a "
        "float, a decimal, a string, binary, a boolean, a date, a timestamp in microseconds, or a list, a map or a struct of "
        "these."
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
