"""Data files of Iceberg as plain values, so that they fit into a checkpoint and into a task of Spark."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")
_KINDS: Mapping[str, Callable[[str], Any]] = {"bytes": base64.b64decode, "decimal": Decimal, "uuid": UUID}


def encode_data_file(file: Any, *, with_metrics: bool = True) -> dict[str, Any]:
    """
    Return a data file, or a file of deleted positions, as JSON.

    :param with_metrics: Whether to tell what is known of the columns, by which queries pass over files.
    """
    document: dict[str, Any] = {
        "content": int(file.content),
        "path": file.file_path,
        "format": file.file_format.value,
        "rows": file.record_count,
        "bytes": file.file_size_in_bytes,
        "spec": file.spec_id,
        "partition": [_plain(file.partition[i]) for i in range(len(file.partition))],
    }
    if with_metrics:
        document |= {name: _pairs(getattr(file, name)) for name in _COUNTS}
        document |= {name: _pairs(getattr(file, name), _text) for name in _BOUNDS}
        document["split_offsets"] = file.split_offsets
    return document


def decode_data_file(document: Mapping[str, Any]) -> Any:
    """Return the data file that was encoded."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    metrics: dict[str, Any] = {name: _restored_pairs(document.get(name)) for name in _COUNTS}
    metrics |= {name: _restored_pairs(document.get(name), base64.b64decode) for name in _BOUNDS}
    found = DataFile.from_args(
        content=DataFileContent(document["content"]),
        file_path=str(document["path"]),
        file_format=FileFormat(document["format"]),
        partition=Record(*(_restored(value) for value in document["partition"])),
        record_count=int(document["rows"]),
        file_size_in_bytes=int(document["bytes"]),
        key_metadata=None,
        split_offsets=document.get("split_offsets"),
        equality_ids=None,
        sort_order_id=None,
        **metrics,
    )
    found.spec_id = int(document["spec"])
    return found


def _pairs(values: Mapping[int, Any] | None, plain: Any = int) -> list[list[Any]] | None:
    return None if values is None else [[int(key), plain(value)] for key, value in sorted(values.items())]


def _restored_pairs(pairs: Any, restored: Any = int) -> dict[int, Any] | None:
    return None if pairs is None else {int(key): restored(value) for key, value in pairs}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": _text(value)}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, UUID):
        return {"uuid": str(value)}
    return value


def _restored(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return _KINDS[kind](text)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
