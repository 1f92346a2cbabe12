"""Operator state as Parquet, in canonical savepoints."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import DistributionMode
from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.state.operator.stream_format import KEY, VALUE, WrittenElements, WrittenState
from airflow_provider_statecheck.state.serializers.portable_types import (
    DESCRIPTION,
    conformed,
    portable_schema,
    storing,
    to_portable,
)
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer, restored_user_keys
from airflow_provider_statecheck.state.serializers.serializer import decode_snapshot, encode_snapshot

PARQUET_MAGIC = b"PAR1"


def encode_parquet(state: WrittenState) -> bytes:
    """
    Encode a state with one piece as a Parquet file with a column ``value``, and ``key`` for a map.

    :raises UnsupportedStateError: if Parquet cannot hold a value.
    """
    import pyarrow as pa
    from pyarrow import parquet

    (piece,) = state.pieces
    description = {
        "name": state.name,
        "mode": state.mode.value,
        "key": None if piece.key is None else encode_snapshot(piece.key),
        "value": encode_snapshot(piece.value),
    }
    schema = portable_schema(piece.table.schema)
    schema = schema.with_metadata({DESCRIPTION: json.dumps(description, sort_keys=True)})
    sink = pa.BufferOutputStream()
    table = to_portable(piece.table, schema)
    with storing():
        parquet.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())


def decode_parquet(data: bytes) -> WrittenState:
    """
    Decode a state.

    :raises CorruptStateError: if the file is not one of an operator state.
    :raises UnsupportedStateError: if this release does not support a type.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(pa.BufferReader(data)).read()
        described = json.loads(table.schema.metadata[DESCRIPTION])
        key = None if described["key"] is None else decode_snapshot(described["key"])
        value = decode_snapshot(described["value"])
        mode = DistributionMode(described["mode"])
        columns = {} if key is None else {KEY: _column(table, KEY, restored_user_keys(key).arrow_type)}
        columns[VALUE] = _column(table, VALUE, restored_serializer(value).arrow_type)
        return WrittenState(described["name"], mode, (WrittenElements(key, value, pa.table(columns)),))
    except (LookupError, TypeError, ValueError, OSError) as error:
        raise CorruptStateError(
            f"Expected operator state in a Parquet file, found damaged data: {error}; restore from another checkpoint."
        ) from error


def _column(table: Any, name: str, wanted: Any) -> Any:
    return conformed(table.column(name).combine_chunks(), wanted, name)
