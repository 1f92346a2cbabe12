"""What a Delta table forbids in plain data files: constraints, features, and long texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_statecheck.spark.connectors.delta.table import DeltaSnapshot

Path = tuple[str, ...]
"""Names of a column and of its part."""

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


_BOUNDED_TEXTS = "__CHAR_VARCHAR_TYPE_STRING"
"""
Metadata with which Spark keeps the type of a column with texts of a limited length, whose type in Delta is string.
"""
_BOUNDED = re.compile(r"(?:var)?char\((\d+)\)", re.IGNORECASE)
_RULES = {
    "delta.generationExpression": "generated",
    "delta.identity.start": "an identity",
    "delta.invariants": "checked",
}


def restrictions_of(snapshot: DeltaSnapshot) -> list[str]:
    """Return what plain data files would violate in a table."""
    metadata, features = snapshot.handle.metadata(), snapshot.handle.protocol().writer_features or ()
    return [
        *_table_restrictions(metadata.configuration),
        *(
            f"the column {'.'.join(path)!r}, which is {description}"
            for path, found in _metadata_of(_fields(snapshot))
            for rule, description in _RULES.items()
            if rule in found
        ),
        *(f"the table feature {name}" for name in features if name not in _WRITER_FEATURES),
    ]


def text_lengths(snapshot: DeltaSnapshot) -> dict[Path, int]:
    """
    Return the largest number of characters of the texts of columns, and of their parts, that Spark declared with one.
    """
    return {
        (*path, *steps): length
        for path, found in _metadata_of(_fields(snapshot))
        for steps, length in _lengths_in(str(found.get(_BOUNDED_TEXTS, "")))
    }


def _fields(snapshot: DeltaSnapshot) -> Any:
    return json.loads(snapshot.handle.schema().to_json())


def _metadata_of(kind: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the metadata of all fields of a type in the JSON of Delta, with the path of each."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        yield (*path, field["name"]), field.get("metadata") or {}
        yield from _metadata_of(field["type"], (*path, field["name"]))
    for part, name in {"elementType": "element", "keyType": "key", "valueType": "value"}.items():
        yield from _metadata_of(kind.get(part), (*path, name))


def _lengths_in(kind: str) -> Iterator[tuple[Path, int]]:
    """Yield the limited texts in a type in the words of Spark, such as ``array<varchar(3)>``."""
    bounded = _BOUNDED.fullmatch(kind.strip())
    if bounded:
        yield (), int(bounded[1])
    name, _, inner = kind.strip().removesuffix(">").partition("<")
    for step, part in _parts_of(name.lower(), _split(inner)):
        for steps, length in _lengths_in(part):
            yield (step, *steps), length


def _parts_of(name: str, parts: list[str]) -> list[tuple[str, str]]:
    if name == "struct":
        named = (part.rpartition(":") if "<" not in part else part.partition(":") for part in parts)
        return [(field.strip().strip("`"), kind) for field, _, kind in named]
    steps = {"array": ("element",), "map": ("key", "value")}.get(name, ())
    return list(zip(steps, parts, strict=False))


def _split(inner: str) -> list[str]:
    """Return the parts between the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in inner:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
