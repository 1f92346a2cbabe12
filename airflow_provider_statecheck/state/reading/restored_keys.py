"""The serializer of keys from its snapshot alone."""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot

_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


def restored_keys(snapshot: SerializerSnapshot) -> KeySerializer:
    """
    Return the serializer that a snapshot is of.

    :raises UnsupportedStateError: for a type of key that this release does not know.
    :raises CorruptStateError: for a snapshot that is not of keys.
    """
    try:
        fields = [(field["name"], field["type"]) for field in snapshot.config["fields"]]
    except (LookupError, TypeError) as error:
        raise CorruptStateError(f"Expected the columns of a key, found {snapshot.config!r:.200}.") from error
    return KeySerializer(tuple(KeyField(name, _arrow_type(kind)) for name, kind in fields))


def _arrow_type(name: str) -> Any:
    import pyarrow as pa

    match = _DECIMAL.fullmatch(name)
    if match:
        return pa.decimal128(int(match.group(1)), int(match.group(2)))
    known = {
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    if name not in known:
        raise UnsupportedStateError(
            f"Expected a type of key that this release knows, found {name!r}; read it with the release that wrote it."
        )
    return known[name]
