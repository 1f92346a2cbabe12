"""How a place handles columns of each type, compared with plain Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import FloatType, Geography, Geometry, VariantVal

from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.spark.snapshots.columns import nested_types
from airflow_provider_statecheck.spark.tables.schemas import spark_schema
from tests.types.cases import ROWS, TypeCase, frame_of
from tests.types.places import AbsentError, chosen, plain

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

REFUSED, ABSENT, EQUAL = "refused", "absent", "yes"
Place = Callable[["DataFrame", Path], Any]
"""
Writes the rows of a DataFrame below a folder, and returns what the place has then.

This is a DataFrame, an Arrow table, or columns by name, each with its type and its values.
"""


def outcomes(
    spark: SparkSession, place: Place, cases: Sequence[TypeCase], folder: Path, rows: int = ROWS
) -> dict[str, str]:
    """
    Return how each type is handled: refused, written and read equal, or equal under another type.

    All types share a DataFrame; one that is refused is left out of the next try.
    """
    found: dict[str, str] = {}
    left = list(cases)
    for number in range(len(cases) + 1):
        frame = frame_of(spark, left, rows)
        own = folder / str(number)
        own.mkdir(parents=True)
        before = _jobs(frame)
        try:
            there = place(frame, own) if left else None
            break
        except AbsentError as error:
            found[left.pop(_column_in(str(error))).name] = ABSENT
        except StateCheckError as error:
            found[left.pop(_require_early(frame, own, before, error)).name] = REFUSED
    frame, there = there if isinstance(there, tuple) else (frame, there)
    return found | dict(zip((case.name for case in left), _compared(frame, there) if left else (), strict=True))


def _require_early(frame: DataFrame, folder: Path, jobs: int, error: StateCheckError) -> int:
    """
    Require that an error names a column and its type, and comes before any work.

    Return the position of the column.
    """
    text = " ".join(str(error).split())
    position = _column_in(text)
    kinds = {part.simpleString() for part in nested_types(frame.schema[f"c{position}"].dataType)}
    assert any(re.split("[<( ]", kind)[0] in text for kind in kinds), (kinds, text)
    assert _jobs(frame) == jobs, text
    assert not [path for path in folder.rglob("*") if path.is_file() and _is_output(path, folder)], text
    return position


def _column_in(text: str) -> int:
    named = re.search(r"\bc(\d+)\b", text)
    assert named, text
    return int(named[1])


def _is_output(path: Path, folder: Path) -> bool:
    # The rows of the coordinator, and tables and input that were there before.
    first = path.relative_to(folder).parts[0]
    return first in ("out", "out.db") and "metadata" not in path.parts and path.name != "catalog.db"


def _jobs(frame: DataFrame) -> int:
    context: Any = frame.sparkSession.sparkContext
    return int(context._jsc.sc().dagScheduler().numTotalJobs())


def _compared(frame: DataFrame, found: Any) -> list[str]:
    if hasattr(found, "sparkSession"):
        assert _texts(found.select(frame.columns)) == _texts(frame)
        return [_name_of(frame, name, found.schema[name].dataType.simpleString()) for name in frame.columns[1:]]
    if not isinstance(found, Mapping):
        found = {
            name: (_spark_name(column.type), column.to_pylist())
            for name, column in zip(found.column_names, found.columns, strict=True)
        }
    _, order = found["id"]
    for name, expected in _expected(frame):
        values = [value for _, value in sorted(zip(order, found[name][1], strict=True), key=lambda pair: pair[0])]
        if isinstance(frame.schema[name].dataType, FloatType):
            # A database may return fewer digits, which still tell the number.
            values = [None if value is None else float(np.float32(value)) for value in values]
        pairs = list(zip(values, expected, strict=True))
        assert all(_is_same(*pair) for pair in pairs), (name, pairs)
    return [_name_of(frame, name, found[name][0]) for name in frame.columns[1:]]


def _expected(frame: DataFrame) -> Iterator[tuple[str, list[Any]]]:
    """Yield the columns with the values that Arrow has of them."""
    from pyspark.sql.types import GeographyType, GeometryType, VariantType

    ordered = chosen(frame, "true order by id")
    kinds = {field.name: field.dataType for field in frame.schema.fields[1:]}
    tagged = VariantType | GeometryType | GeographyType
    # Nor does Spark convert a variant or a geometry that is null.
    parted = [name for name, kind in kinds.items() if any(isinstance(part, tagged) for part in nested_types(kind))]
    arrow = plain(ordered.drop("id", *parted)).toArrow()
    rows = ordered.select(parted).collect() if parted else []
    for name in kinds:
        yield name, [_parts(row[name]) for row in rows] if name in parted else arrow.column(name).to_pylist()


def _parts(value: Any) -> Any:
    """Return a value of a variant or a geometry as Arrow has it."""
    if isinstance(value, Row):
        return {name: _parts(part) for name, part in value.asDict().items()}
    if isinstance(value, list):
        return [_parts(part) for part in value]
    if isinstance(value, VariantVal):
        return {"value": bytes(value.value), "metadata": bytes(value.metadata)}
    return (
        {"srid": value.getSrid(), "wkb": bytes(value.getBytes())} if isinstance(value, Geometry | Geography) else value
    )


def _name_of(frame: DataFrame, name: str, kind: str) -> str:
    return EQUAL if kind == frame.schema[name].dataType.simpleString() else kind


def _spark_name(kind: Any) -> str:
    return spark_schema(pa.schema([("", kind)])).fields[0].dataType.simpleString()


def _is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, Decimal) and isinstance(found, str):
        return Decimal(found) == expected
    if isinstance(expected, datetime) and expected.tzinfo is not None:
        # A database without time zones has times in UTC.
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        expected = expected.astimezone(UTC)
    return repr(found) == repr(expected)


def _texts(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(
        map(tuple, frame.select([_text(field.name, field.dataType) for field in frame.schema.fields]).collect()),
        key=repr,
    )


def _text(name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import GeographyType, GeometryType, VariantType

    if isinstance(kind, GeometryType | GeographyType):
        return F.expr(f"hex(st_asbinary({name}))")
    if any(isinstance(part, VariantType) for part in nested_types(kind)):
        # As text, a variant of null is null.
        return F.to_json(F.struct(name))
    return F.col(name).cast("string")
