"""The columns of a table or a query, which all increments have alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.snapshots.schema import parse_schema
from airflow_provider_statecheck.spark.sources.arrow_types import crosses
from airflow_provider_statecheck.spark.sources.schemas import struct_of
from airflow_provider_statecheck.spark.sources.sql.column_types import is_cast_to_text, spark_type
from airflow_provider_statecheck.spark.sources.sql.database import Database

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns with the types that they have for Spark."""

    schema: StructType
    casts: tuple[str, ...] = ()
    """Those that the database gives as text."""

    def encode(self) -> dict[str, Any]:
        """Return them as plain values."""
        return {"schema": self.schema.json(), "casts": list(self.casts)}

    @classmethod
    def decode(cls, encoded: Mapping[str, Any]) -> Columns:
        """
        Return columns of plain values.

        :raises CorruptStateError: if there is no schema in them.
        """
        return cls(parse_schema(encoded["schema"]), tuple(encoded["casts"]))

    def of(self, names: Sequence[str], shown: str) -> Columns:
        """
        Return some of the columns.

        :param shown: What has them, for the message.
        :raises InvalidConfigurationError: if one is not there, or of a type that Spark does not take from Python.
        """
        from pyspark.sql.types import StructType

        missing = [name for name in names if name not in self.schema.names]
        if missing:
            raise InvalidConfigurationError(
                f"Expected columns of {shown}, found {missing}; it has {self.schema.names}."
            )
        fields = [self.schema[name] for name in dict.fromkeys(names)]
        refused = [f"{field.name} {field.dataType.simpleString()}" for field in fields if not crosses(field.dataType)]
        if refused:
            raise _unreadable(shown, refused)
        return Columns(StructType(fields), tuple(name for name in self.casts if name in names))


def given_columns(schema: Any) -> Columns:
    """
    Return the columns that a user gave.

    :raises InvalidConfigurationError: if it is no schema.
    """
    return Columns(struct_of(schema))


def columns_of_table(database: Database, table: str, wanted: Sequence[str] | None) -> Columns:
    """
    Return what the database says of a table.

    :param wanted: The columns that matter, ``None`` for all.
    :raises InvalidConfigurationError: if there is no such table, or one of them has no counterpart in Spark.
    """
    from pyspark.sql.types import StructField, StructType

    with database.connect() as connection:
        found = _described(connection, table)
    types = {name: spark_type(kind) for name, kind in found.items()}
    unknown = [f"{name} {found[name]!r}" for name in wanted or types if name in types and types[name] is None]
    if unknown:
        raise _unreadable(f"table {table}", unknown)
    fields = [StructField(name, kind) for name, kind in types.items() if kind is not None]
    return Columns(StructType(fields), tuple(name for name, kind in found.items() if is_cast_to_text(kind)))


def _described(connection: Connection, table: str) -> dict[str, Any]:
    from sqlalchemy import inspect
    from sqlalchemy.exc import NoSuchTableError

    schema, _, name = table.rpartition(".")
    try:
        columns = inspect(connection).get_columns(name, schema=schema or None)
    except NoSuchTableError:
        raise InvalidConfigurationError(
            f"Expected a table {table}, found none; write its name as the database keeps it, with its schema before a dot."
        ) from None
    return {column["name"]: column["type"] for column in columns}


def _unreadable(shown: str, refused: Sequence[str]) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected columns of types that Spark takes, found {', '.join(refused)} in {shown}; leave them out by columns, give "
        "a schema, or cast them in a query."
    )
