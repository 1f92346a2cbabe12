"""Checks of a Delta table and its columns before a sink writes to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.data_files import require_partitionable
from airflow_provider_statecheck.spark.sinks.delta.delta_table import DeltaSnapshot, DeltaTableAccess, deltalake

_UTC = frozenset({"UTC", "Etc/UTC", "+00:00", "Z"})


def file_schema(schema: Any) -> Any:
    """
    Return the Arrow schema of the files that hold an output, in the types that Delta has.

    :raises UnsupportedStateError: if a column has a type that it does not have, or two have one name.
    """
    import pyarrow as pa

    lower = [name.lower() for name in schema.names]
    repeated = sorted({name for name in schema.names if lower.count(name.lower()) > 1})
    if repeated or not lower:
        raise UnsupportedStateError(
            f"Expected columns with different names for a Delta table, whatever their case, found {repeated or 'none'}; "
            "rename them."
        )
    return pa.schema([pa.field(field.name, _type(field.name, field.type), field.nullable) for field in schema])


def misfits(table: Any, ours: Any, *, merges: bool) -> list[str]:
    """
    Return why files of one schema cannot be files of a table with another.

    :param table: The Arrow schema of the table.
    :param ours: That of the files, as Delta gives it back.
    :param merges: Whether columns may be added to the table.
    """
    found = [
        f"column {field.name!r} of the table may not be null and is not written"
        for field in table
        if ours.get_field_index(field.name) < 0 and not field.nullable
    ]
    for field in ours:
        if table.get_field_index(field.name) >= 0:
            found += _differences(table.field(field.name), field)
        elif not merges:
            found.append(f"the table has no column {field.name!r} (merge_schema=True adds it)")
        elif not field.nullable:
            found.append(f"column {field.name!r} is new and may not be null")
    return found


def new_columns(table: Any, ours: Any) -> list[str]:
    """Return the columns that a table has to be given before files can be added."""
    return [name for name in ours.names if table.get_field_index(name) < 0]


def _differences(theirs: Any, ours: Any) -> list[str]:
    if theirs.type != ours.type:
        return [f"column {ours.name!r} is {theirs.type} in the table and {ours.type} here"]
    if ours.nullable and not theirs.nullable:
        return [f"column {ours.name!r} may not be null in the table and may be here"]
    return []


def _type(name: str, kind: Any) -> Any:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _type(name, kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind) or types.is_string(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return _timestamp(name, kind)
    if types.is_nested(kind):
        return _nested(name, kind)
    plain = (types.is_signed_integer, types.is_float32, types.is_float64, types.is_boolean, types.is_date32)
    if any(test(kind) for test in plain) or types.is_decimal128(kind):
        return kind
    raise _unsupported(name, kind)


def _timestamp(name: str, kind: Any) -> Any:
    import pyarrow as pa

    if kind.unit == "ns" or kind.tz not in (None, *_UTC):
        raise _unsupported(name, kind)
    return pa.timestamp("us", "UTC" if kind.tz else None)


def _nested(name: str, kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _type(f"{name}.{f.name}", f.type), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        item = pa.field("value", _type(f"{name}.value", kind.item_type), kind.item_field.nullable)
        return pa.map_(pa.field("key", _type(f"{name}.key", kind.key_type), nullable=False), item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_field
        return pa.list_(pa.field("element", _type(f"{name}.element", element.type), element.nullable))
    raise _unsupported(name, kind)


def _unsupported(name: str, kind: Any) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Delta tables have no type for the column {name!r} of type {kind}; convert it in the stage. They have whole and "
        "floating numbers, decimals, texts, bytes, booleans, dates, timestamps in microseconds, and lists, maps and structs of "
        "these."
    )


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
