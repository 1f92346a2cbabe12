"""
Columns of one table in the schema of another: matched by name, and widened as Spark does.

Spark decides the wider of two types, for the settings of its session, as in a union. A type is foreign if such a union
would convert values to another kind, such as numbers to text.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.exceptions import SourceChangedError
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema, readable_type
from airflow_provider_statecheck.spark.tables.common_types import TypeRules, is_same, positions_of
from airflow_provider_statecheck.spark.tables.schemas import union_all
from airflow_provider_statecheck.storage.snapshot_manifest import column_name
from airflow_provider_statecheck.storage.stored_json import decoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

log = logging.getLogger(__name__)


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether names of columns that differ only in case are different."""
    return is_on(spark, "spark.sql.caseSensitive")


def is_on(spark: SparkSession, name: str) -> bool:
    """Return whether a setting of a session is on."""
    return str(spark.conf.get(name)).lower() == "true"


def type_rules(spark: SparkSession) -> TypeRules:
    """Return the rules of a session for the common types of columns."""
    return TypeRules(spark, is_case_sensitive(spark))


def positional(frame: DataFrame) -> DataFrame:
    """
    Return the columns of a DataFrame under names by position.

    By other names, pyspark does not find a column with a dot or a backtick, and none of two that differ only in case.
    """
    return frame.toDF(*(column_name(at) for at in range(len(frame.columns))))


def is_alike(schema: StructType, other: StructType) -> bool:
    """Return whether two schemas have the same names and types; nullability and metadata are no part of them."""
    return schema.names == other.names and all(
        readable_type(mine.dataType) == readable_type(theirs.dataType)
        for mine, theirs in zip(schema.fields, other.fields, strict=True)
    )


def nullable_schema(schema: StructType) -> StructType:
    """Return a schema whose columns, and all parts of them, can be null."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, readable_type(f.dataType), True, f.metadata) for f in schema.fields])


def aligned(frame: DataFrame, schema: StructType) -> DataFrame:
    """
    Return the columns of a schema from a DataFrame, matched by name.

    :param schema: Schema of :meth:`InputColumns.with_rows`, whose types are those of the DataFrame or wider.
    :raises SourceChangedError: if a column is missing.
    """
    if is_alike(frame.schema, schema):
        return frame
    found, rules = frame.columns, type_rules(frame.sparkSession)
    positions = positions_of(found, schema.names, is_case_sensitive=rules.is_case_sensitive)
    renamed = positional(frame)
    columns = []
    for at, wanted in zip(positions, schema.fields, strict=True):
        if at is None:
            raise _other_columns("rows", schema.names, found, positions)
        column = rules.converted(renamed[column_name(at)], frame.schema.fields[at].dataType, wanted.dataType)
        columns.append(column.alias(wanted.name, metadata=wanted.metadata))
    return renamed.select(columns)


def differences_of(known: StructType, found: StructType, spark: SparkSession) -> list[str]:
    """Return how the columns of rows differ from those of earlier rows; their order and nullability do not count."""
    positions = positions_of(found.names, known.names, is_case_sensitive=is_case_sensitive(spark))
    pairs = list(zip(known.fields, positions, strict=True))
    missing = [f"no column {mine.name!r}" for mine, at in pairs if at is None]
    further = [f"a new column {name!r}" for at, name in enumerate(found.names) if at not in positions]
    return [
        *missing,
        *further,
        *(
            f"column {mine.name!r} as {found.fields[at].dataType.simpleString()} instead of "
            f"{mine.dataType.simpleString()}"
            for mine, at in pairs
            if at is not None and not is_same(mine.dataType, found.fields[at].dataType)
        ),
    ]


def union_by_name(frames: Sequence[DataFrame]) -> DataFrame:
    """
    Return the rows of all DataFrames, at least one, with the columns of the first one.

    :raises SourceChangedError: if another one has other columns, or a narrower or foreign type.
    """
    columns = InputColumns(schema=frames[0].schema)
    for frame in frames[1:]:
        columns = columns.with_rows(frame.schema, frame.sparkSession)
    return union_all(aligned(frame, columns.schema) for frame in frames)


def extended(
    known: StructType, found: StructType, spark: SparkSession, texts: Mapping[str, Collection[str | None]]
) -> StructType:
    """
    Return the columns with which the files of a later run are read.

    :param known: Columns of the files of earlier runs. As everywhere in Spark, a narrower type of a file is read as
        theirs.
    :param found: Columns that Spark finds in the files of the run.
    :param texts: All values of partition columns, which have a type only through the names of directories.
    :raises SourceChangedError: if a column has a type of another kind, or one that Spark does not read as the wider
        one.
    """
    from pyspark.sql.types import StringType, StructType

    rules = type_rules(spark)
    positions = positions_of(found.names, known.names, is_case_sensitive=rules.is_case_sensitive)
    fields = []
    for mine, at in zip(known.fields, positions, strict=True):
        values = None if at is None else texts.get(found.names[at])
        is_text = values is not None and (isinstance(mine.dataType, StringType) or not set(values) - {None})
        kind = mine.dataType if at is None or is_text else _common_type(mine, found.fields[at], rules)
        if at is not None and values is None:
            _require_read_as(mine, found.fields[at], [found.fields[at]], kind, rules)
        fields.append(_with_type(mine, kind))
    return StructType([*fields, *(each for at, each in enumerate(found.fields) if at not in positions)])


def file_columns(known: StructType, found: StructType, spark: SparkSession) -> StructType:
    """
    Return the columns with which files are read that have wider columns.

    :param known: Columns with which the files before are read.
    :param found: Columns that Spark finds in a file, without those of directories.
    :raises SourceChangedError: if Spark does not read the values of both from their files as one type.
    """
    from pyspark.sql.types import StructType

    rules = type_rules(spark)
    positions = positions_of(found.names, known.names, is_case_sensitive=rules.is_case_sensitive)
    fields = []
    for mine, at in zip(known.fields, positions, strict=True):
        kind = mine.dataType if at is None else _common_type(mine, found.fields[at], rules)
        if at is not None:
            _require_read_as(mine, found.fields[at], [mine, found.fields[at]], kind, rules)
        fields.append(_with_type(mine, kind))
    return StructType(fields)


def further_columns(known: StructType, found: StructType, spark: SparkSession, *, is_selected: bool) -> list[str]:
    """
    Return the columns, and the fields of columns, that a file has in addition, such as ``address.street``.

    :param known: The columns that are read.
    :param is_selected: Whether the user has selected them, and other columns are left out.
    """
    from pyspark.sql.types import StructField, StructType

    rules = type_rules(spark)
    positions = positions_of(known.names, found.names, is_case_sensitive=rules.is_case_sensitive)
    read = [field for at, field in zip(positions, found.fields, strict=True) if at is not None or not is_selected]
    return rules.further_fields(known, StructType([StructField(f.name, f.dataType) for f in read]))


def _common_type(mine: StructField, theirs: StructField, rules: TypeRules) -> DataType:
    if rules.holds(mine.dataType, theirs.dataType):
        return mine.dataType
    wider = rules.common(mine.dataType, theirs.dataType)
    if wider is None:
        raise _other_type(mine, theirs, "is of another kind")
    return wider


def _require_read_as(
    mine: StructField, theirs: StructField, stored: Iterable[StructField], kind: DataType, rules: TypeRules
) -> None:
    if not all(rules.is_read_as(each.dataType, kind) for each in stored):
        raise _other_type(
            mine, theirs, f"Spark does not read from files as {kind.simpleString()} with the values before"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumns:
    """Columns of the rows of a source, which widen as later rows need it."""

    schema: StructType
    earlier: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Types that columns had before they were widened, which later rows may have too."""

    def with_rows(self, found: StructType, spark: SparkSession) -> Self:
        """
        Return the columns that also hold later rows.

        :param found: Schema of these rows.
        :raises SourceChangedError: if they have other columns, or a narrower or foreign type.
        """
        if is_alike(self.schema, found):
            return self
        positions = positions_of(found.names, self.schema.names, is_case_sensitive=is_case_sensitive(spark))
        if None in positions or len(found.fields) > len(self.schema.fields):
            raise _other_columns("later rows", self.schema.names, found.names, positions)
        pairs = zip(self.schema.fields, positions, strict=True)
        later = self._widened(((mine, found.fields[at]) for mine, at in pairs if at is not None), spark)
        return self if is_alike(later.schema, self.schema) else later

    def of_next_run(self, found: StructType, spark: SparkSession) -> Self:
        """
        Return the columns of a later run, which may lack columns and have new ones.

        :param found: Schema of its first rows, which decides the columns and their order.
        :raises SourceChangedError: if a column has a narrower or foreign type.
        """
        positions = positions_of(self.schema.names, found.names, is_case_sensitive=is_case_sensitive(spark))
        known = [
            theirs if at is None else _with_type(theirs, self.schema.fields[at].dataType)
            for theirs, at in zip(found.fields, positions, strict=True)
        ]
        return self._widened(zip(known, found.fields, strict=True), spark)

    def _widened(self, pairs: Iterable[tuple[StructField, StructField]], spark: SparkSession) -> Self:
        from pyspark.sql.types import StructType

        fields, earlier, rules = [], dict(self.earlier), type_rules(spark)
        for mine, theirs in pairs:
            known = earlier.get(mine.name, ())
            kind = mine.dataType
            if not rules.holds(kind, theirs.dataType) and theirs.dataType.simpleString() not in known:
                kind = _wider_type(mine, theirs, rules)
                earlier[mine.name] = (*known, mine.dataType.simpleString())
            fields.append(_with_type(mine, kind))
        return replace(self, schema=StructType(fields), earlier=earlier)

    def encode(self) -> dict[str, Any]:
        """Return the columns as plain values."""
        return {"schema": self.schema.json(), "earlier": {name: list(each) for name, each in self.earlier.items()}}

    @classmethod
    def decode(cls, encoded: Mapping[str, Any]) -> Self:
        """
        Return the columns that :meth:`encode` encoded.

        :raises CorruptStateError: if they are invalid.
        """
        with decoding("the columns of a source"):
            earlier = {str(name): tuple(map(str, each)) for name, each in encoded["earlier"].items()}
            return cls(schema=parse_schema(encoded["schema"]), earlier=earlier)


def _with_type(column: StructField, kind: DataType) -> StructField:
    from pyspark.sql.types import StructField

    return StructField(column.name, kind, column.nullable, column.metadata)


def _other_columns(
    what: str, known: Sequence[str], found: Sequence[str], positions: Sequence[int | None]
) -> SourceChangedError:
    missing = [name for name, at in zip(known, positions, strict=True) if at is None]
    further = [name for at, name in enumerate(found) if at not in positions]
    differences = [*([f"without {missing}"] if missing else []), *([f"with {further} in addition"] if further else [])]
    return SourceChangedError(
        f"Expected {what} with the columns {list(known)}, as before, found {list(found)}, {' and '.join(differences)}; "
        "let all splits have the same columns, or start over."
    )


def _wider_type(mine: StructField, theirs: StructField, rules: TypeRules) -> DataType:
    known, found = mine.dataType, theirs.dataType
    wider = rules.common(known, found)
    if wider is None or is_same(known, wider):
        raise _other_type(mine, theirs, "is of another kind" if wider is None else "is narrower")
    log.info("Column %r is %s from now on, instead of %s", mine.name, wider.simpleString(), known.simpleString())
    return wider


def _other_type(mine: StructField, theirs: StructField, relation: str) -> SourceChangedError:
    known, found = mine.dataType.simpleString(), theirs.dataType.simpleString()
    return SourceChangedError(
        f"Expected the column {mine.name!r} of later rows to be {known}, as before, or wider, found {found}, which "
        f"{relation}; cast it to {known}, or give it another name."
    )
