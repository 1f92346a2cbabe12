"""The columns of a source, which every increment must have alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


def struct_of(schema: Any) -> StructType:
    """
    Return a schema that a user gave as a type or as DDL; a session must be there.

    :raises InvalidConfigurationError: if it is none.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    except (PySparkException, TypeError, ValueError) as error:
        raise _no_schema(schema) from error
    if not isinstance(found, StructType) or not found.fields:
        raise _no_schema(schema)
    return found


def require_schema(schema: Any, kind: str) -> None:
    """
    Refuse a source whose files do not say what is in them, and whose user does not either.

    :param kind: What the files are, for the message.
    :raises InvalidConfigurationError: if there is no schema.
    """
    if schema is None or schema == "":
        raise InvalidConfigurationError(
            f"Expected a schema for {kind} files, because what Spark infers would differ between increments; found none. "
            "Give a StructType, or DDL such as 'id bigint, name string'."
        )


def chosen(schema: StructType, columns: Sequence[str] | None) -> StructType:
    """
    Return the part of a schema that is to be read.

    :raises InvalidConfigurationError: if there is no such column.
    """
    from pyspark.sql.types import StructType

    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise InvalidConfigurationError(f"Expected columns of the source, found {missing}; it has {schema.names}.")
    return StructType([schema[name] for name in columns])


def named(name: str) -> Column:
    """Return a column by its name, whatever characters it has."""
    from pyspark.sql import functions

    return functions.col(f"`{name.replace('`', '``')}`")


def _no_schema(schema: Any) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected schema to be a StructType or DDL such as 'id bigint, name string'; found {schema!r}."
    )
