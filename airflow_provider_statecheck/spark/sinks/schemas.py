"""Whether what a sink will write fits what is in its target already."""

from __future__ import annotations

import io
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError


def require_writable(schema: Any) -> None:
    """
    Refuse a schema that Parquet has no place for.

    :raises UnsupportedStateError: Says what Parquet says.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated or not schema.names:
        raise UnsupportedStateError(
            f"Expected columns with different names for a Parquet sink, found {', '.join(repeated) or 'none'} "
            f"{'more than once' if repeated else 'at all'}; rename them."
        )
    try:
        pq.write_table(schema.empty_table(), io.BytesIO())
    except (pa.ArrowException, NotImplementedError) as error:
        raise UnsupportedStateError(
            f"Parquet cannot hold the output: {error}; convert the column in the stage."
        ) from error


def differences(before: Any, after: Any) -> list[str]:
    """Return what changed from one schema to a later one, but for new columns that may be null."""
    found = [f"column {name!r} is gone" for name in before.names if after.get_field_index(name) < 0]
    for field in after:
        if before.get_field_index(field.name) < 0:
            found += [] if field.nullable else [f"column {field.name!r} is new and may not be null"]
        else:
            found += _changes(before.field(field.name), field)
    return found


def contradictions(ours: Any, theirs: Any) -> list[str]:
    """Return why the files of two writers cannot be read as one table."""
    shared = [field for field in ours if theirs.get_field_index(field.name) >= 0]
    return [
        f"column {field.name!r} is {theirs.field(field.name).type} there and {field.type} here"
        for field in shared
        if theirs.field(field.name).type != field.type
    ] or ([] if shared else ["no column has a name in common"])


def _changes(before: Any, after: Any) -> list[str]:
    if before.type != after.type:
        return [f"column {after.name!r} was {before.type} and is {after.type}"]
    if after.nullable and not before.nullable:
        return [f"column {after.name!r} could not be null and now may be"]
    return []
