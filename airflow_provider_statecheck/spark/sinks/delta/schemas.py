"""The columns of a Delta table, and whether what a sink writes fits them."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError

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
