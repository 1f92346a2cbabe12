"""
SQL databases: connections by URL, transactions of sinks, and types of columns.

The URL may contain a password; messages, logs and ``repr`` never contain it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, quote_plus

from airflow_provider_statecheck.checkpoint.masking import remember_secrets
from airflow_provider_statecheck.exceptions import (
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    SourceError,
    StateCheckError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.tables.column_types import spark_name
from airflow_provider_statecheck.storage.uris import conceal, secrets_in

if TYPE_CHECKING:
    from pyspark.sql.types import DataType
    from sqlalchemy import Connection
    from sqlalchemy.engine import URL
    from sqlalchemy.types import TypeEngine


Address = str | Callable[[], str]
"""
An SQLAlchemy URL, ``env:NAME`` for a URL in an environment variable of the driver, or a function that returns a URL.
"""

_IN_ENVIRONMENT = "env:"
_FILE_URI = "file:"
_SQLITE_TIMEOUT_SECONDS = 60.0
# The locks of an attempt that stopped during a transaction must not block the next attempt without a limit.
_POSTGRES_TIMEOUTS = ("SET LOCAL lock_timeout = '10min'", "SET LOCAL idle_in_transaction_session_timeout = '5min'")
# Staged files are deleted after the commit, which must therefore survive a crash of the database.
_POSTGRES_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
_NEVER_MENDED = ("0A", "21", "22", "23", "42", "44", "54")
"""
Classes of PostgreSQL's errors that a retry meets again: features it lacks, rows it refuses, missing rights and columns,
and its limits.
"""
_MISSING_TABLE = "42P01"
"""A retry creates the table."""
_PACKAGES = ("sqlalchemy", "psycopg2", "sqlite3")
"""Packages whose exceptions are database errors."""
_IN_MEMORY = (":///", ":memory:")
_SUPPORTED = ("postgresql+psycopg2://", "sqlite:///", "sqlite+pysqlite:///")


class Database:
    """
    A database that can be pickled, and whose password is never shown.

    :raises InvalidConfigurationError: if the URL is invalid.
    """

    def __init__(self, url: str) -> None:
        parsed = _parse_url(url)
        self._url = HiddenOptions({"url": url})
        remember_secrets(secrets_in(self._secrets()))
        self.shown = f"{parsed.drivername}://{parsed.host or ''}/{parsed.database or ''}"
        port = "" if parsed.port is None else f":{parsed.port}"
        self.address = f"{parsed.drivername}://{parsed.host or ''}{port}/{parsed.database or ''}"
        """URL without credentials and options."""

    @classmethod
    def open(cls, address: Address) -> Self:
        """
        Return the database of an address.

        :raises InvalidConfigurationError: if the environment variable is missing, or the URL is invalid.
        """
        return cls(resolved_url(address))

    def __repr__(self) -> str:
        return f"Database({self.shown!r})"

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is an SQLite file."""
        return self.shown.startswith("sqlite")

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """
        Open a connection for the duration of a ``with`` block.

        :raises EnvironmentNotReadyError: if SQLAlchemy or the driver of the database is not installed.
        :raises SourceError: if the database does not respond, or rejects a statement.
        """
        try:
            with self._engine().connect() as connection:
                yield connection
        except StateCheckError:
            raise
        except Exception as error:
            # No cause: Spark logs the whole chain, and drivers put credentials into their errors.
            raise self._as_own_error(error) from None

    def _engine(self) -> Any:
        return engine_of(str(self._url.reveal()["url"]))

    def _as_own_error(self, error: Exception) -> StateCheckError:
        # Compares the name of the class, because SQLAlchemy itself may be missing.
        if not isinstance(error, ImportError) and type(error).__name__ != "NoSuchModuleError":
            return SourceError(f"The database {self.shown} cannot be read: {self.message_of(error)}")
        return EnvironmentNotReadyError(
            f"Expected Python packages to read {self.shown}, found {error}; install SQLAlchemy and the driver in the "
            "URL (airflow-provider-statecheck[postgres] for PostgreSQL) for Spark's driver and executors."
        )

    def message_of(self, error: Exception) -> str:
        """Return the message of the database driver, without the statement that SQLAlchemy adds and without secrets."""
        original = getattr(error, "orig", None) or error
        return f"{type(original).__name__} {conceal(str(original).strip(), self._secrets())}"

    def _secrets(self) -> dict[str, Any]:
        url = str(self._url.reveal()["url"])
        parsed = _parse_url(url)
        password = str(parsed.password or "")
        quoted = [password, quote(password, safe=""), quote_plus(password)]
        # Each secret makes all masking slower, and the path of a file is none.
        token = url if parsed.username or password or parsed.query else ""
        return {"password": quoted, "token": token, "query": dict(parsed.query)}


class SinkDatabase(Database):
    """
    Database with the table of a sink.

    :raises InvalidConfigurationError: if the URL is invalid, or of an unsupported database.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if not self.shown.startswith(_SUPPORTED) or self.shown.endswith(_IN_MEMORY):
            raise InvalidConfigurationError(
                "Expected the URL of a PostgreSQL database, postgresql+psycopg2://…, or of an SQLite file, "
                f"sqlite:///…, found {self.shown!r}; write files and load them into the database, or implement a "
                "TwoPhaseCommitSink."
            )

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """
        Open a transaction that is committed at the end of the block, or rolled back after an error.

        :raises EnvironmentNotReadyError: if the Python driver of the database is missing.
        :raises UnsupportedStateError: if the database rejects the rows.
        :raises StorageError: if the database fails otherwise.
        """
        try:
            with self._engine().begin() as connection:
                self._configure(connection)
                yield connection
        except StateCheckError:
            raise
        except ImportError as error:
            raise self._missing_driver(error) from None
        except Exception as error:
            if not type(error).__module__.startswith(_PACKAGES):
                raise
            # Without the cause: database drivers include credentials and row values in it.
            raise self._failure(error) from None

    @override
    def _engine(self) -> Any:
        return engine_of(str(self._url.reveal()["url"]), _SQLITE_TIMEOUT_SECONDS if self.is_sqlite else None)

    def _configure(self, connection: Connection) -> None:
        from sqlalchemy import text

        for statement in () if self.is_sqlite else (*_POSTGRES_TIMEOUTS, _POSTGRES_DURABLE):
            connection.execute(text(statement))

    def _failure(self, error: Exception) -> StateCheckError:
        original = getattr(error, "orig", None) or error
        kinds = {kind.__name__ for kind in type(original).__mro__}
        # Later lines may contain row values; for a DataError the first line, too.
        message = type(original).__name__ if "DataError" in kinds else self.message_of(error)
        reason = (message.splitlines() or [""])[0].rstrip(".")
        code = str(getattr(original, "pgcode", None) or "")
        if kinds & {"IntegrityError", "DataError"} or (code.startswith(_NEVER_MENDED) and code != _MISSING_TABLE):
            return UnsupportedStateError(
                f"The database {self.shown} rejected the output: {reason}. No row of the checkpoint was written. "
                "Correct the table, its constraints or the rights of the user and run the task again, or convert the "
                "output in the stage and start over."
            )
        return StorageError(f"The database {self.shown} failed: {reason}.")

    def _missing_driver(self, error: ImportError) -> EnvironmentNotReadyError:
        return EnvironmentNotReadyError(
            f"Expected the Python driver for {self.shown}, found {error}; "
            "pip install 'airflow-provider-statecheck[postgres]' where the Spark driver runs."
        )


def is_sqlite_file(address: str) -> bool:
    """Return whether the address of a database is that of an SQLite file, which has no credentials."""
    return address.startswith("sqlite") and _FILE_URI not in address


def shown_address(address: Address) -> str:
    """Return an address for messages, without resolving it."""
    if callable(address):
        return "a function"
    return address if str(address).startswith(_IN_ENVIRONMENT) else Database(address).shown


def resolved_url(address: Address) -> str:
    """
    Resolve the URL of an address; the path of an SQLite file becomes absolute.

    :raises InvalidConfigurationError: if the environment variable is not set, or the URL is invalid.
    """
    return _with_absolute_file(_resolve(address))


def _resolve(address: Address) -> str:
    if callable(address):
        return address()
    if not str(address).startswith(_IN_ENVIRONMENT):
        return address
    name = address.removeprefix(_IN_ENVIRONMENT)
    found = os.environ.get(name)
    if not found:
        raise InvalidConfigurationError(
            f"Expected the URL of a database in the environment variable {name} of the driver, found none; set the "
            "variable."
        )
    return found


def _with_absolute_file(url: str) -> str:
    # Spark tasks run in other directories, where a relative path would refer to another file.
    parsed = _parse_url(url)
    file = parsed.database or ""
    scheme = _FILE_URI if file.startswith(_FILE_URI) and "uri" in parsed.query else ""
    path = file.removeprefix(scheme)
    is_file = parsed.drivername.startswith("sqlite") and path and not path.startswith(("/", ":memory:"))
    if not is_file or parsed.query.get("mode") == "memory":
        return url
    return parsed.set(database=f"{scheme}{Path(path).absolute()}").render_as_string(hide_password=False)


@lru_cache(maxsize=16)
def engine_of(url: str, timeout_seconds: float | None = None) -> Any:
    """
    Return the engine of a database, which asks the database for its version and its types once.

    It keeps no connection, so it may be shared and forked.
    """
    from sqlalchemy import NullPool, create_engine

    wait = {} if timeout_seconds is None else {"timeout": timeout_seconds}
    return create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=wait)


def _parse_url(url: object) -> URL:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        # SQLAlchemy's URL objects are rejected too: their string form masks the password.
        return make_url(_require_text(url))
    except (ArgumentError, TypeError, ValueError):
        raise InvalidConfigurationError(
            "Expected the URL of a database such as postgresql+psycopg2://user:password@host/name, found another "
            "value; it is not shown, because it may contain a password."
        ) from None


def _require_text(url: object) -> str:
    if not isinstance(url, str):
        raise TypeError(type(url))
    return url


_LARGEST_PRECISION = 38
_DEFAULT_SCALE = 18
_DIGITS_OF_UINT64 = 20
_DIGITS_OF_MICROSECONDS = 6
_DIGITS_OF_BYTES = {2: 5, 4: 10, 8: 19}


def spark_type(found: TypeEngine[Any]) -> DataType | None:
    """Return the Spark type of a database column; ``None`` if no Spark type preserves its values."""
    import sqlalchemy.types as sql
    from pyspark.sql import types

    if isinstance(found, sql.Numeric) and not isinstance(found, sql.Float):
        return _decimal(found)
    if isinstance(found, sql.DateTime):
        return types.TimestampType() if found.timezone else types.TimestampNTZType()
    pairs: list[tuple[Any, type[DataType]]] = [
        (sql.Boolean, types.BooleanType),
        (sql.Integer, types.LongType),
        (sql.Float, types.DoubleType),
        (sql.Date, types.DateType),
        ((sql.LargeBinary, sql.BINARY, sql.VARBINARY), types.BinaryType),
        ((sql.String, sql.Uuid, sql.JSON), types.StringType),
    ]
    return next((kind() for known, kind in pairs if isinstance(found, known)), None)


def is_cast_to_text(found: TypeEngine[Any]) -> bool:
    """Return whether the database must cast values of a type to text for Spark."""
    import sqlalchemy.types as sql

    return isinstance(found, sql.Uuid | sql.JSON | sql.Enum)


def sql_type(arrow: Any) -> TypeEngine[Any] | None:
    """Return the SQLAlchemy type that stores values of an Arrow type; ``None`` if there is none."""
    import sqlalchemy.types as sql

    if pa.types.is_decimal(arrow):
        return sql.Numeric(arrow.precision, arrow.scale)
    if pa.types.is_uint64(arrow):
        return sql.Numeric(_DIGITS_OF_UINT64, 0)
    if pa.types.is_timestamp(arrow):
        return sql.DateTime(timezone=arrow.tz is not None)
    pairs: list[tuple[Any, type[TypeEngine[Any]]]] = [
        (pa.types.is_boolean, sql.Boolean),
        (lambda each: pa.types.is_int64(each) or pa.types.is_uint32(each), sql.BigInteger),
        (lambda each: pa.types.is_int32(each) or pa.types.is_uint16(each), sql.Integer),
        (pa.types.is_integer, sql.SmallInteger),
        (pa.types.is_float64, sql.Double),
        (pa.types.is_floating, sql.REAL),
        (lambda each: pa.types.is_string(each) or pa.types.is_large_string(each), sql.Text),
        (lambda each: pa.types.is_binary(each) or pa.types.is_large_binary(each), sql.LargeBinary),
        (pa.types.is_date, sql.Date),
    ]
    return next((kind() for is_such, kind in pairs if is_such(arrow)), None)


def column_type(name: str, arrow: Any, *, is_sqlite: bool) -> TypeEngine[Any]:
    """
    Return the SQL type of the column for an Arrow type.

    :raises UnsupportedStateError: if there is no SQL type for it.
    """
    import sqlalchemy.types as sql

    if is_sqlite and (pa.types.is_decimal(arrow) or pa.types.is_uint64(arrow)):
        return sql.Text()  # SQLite has no exact numbers except signed 64-bit integers
    found = sql_type(arrow)
    if found is None:
        raise UnsupportedStateError(
            f"Expected columns that a table of a database can store, found {name!r} of type {spark_name(arrow)}; "
            "convert it in the stage, for example a nested value to JSON."
        )
    return found


def is_incompatible(wanted: TypeEngine[Any], found: TypeEngine[Any], *, is_sqlite: bool) -> bool:
    """
    Return whether an existing column cannot store the values of the column that the sink would create.

    :param wanted: Result of :func:`column_type`.
    :param found: Type that the database reports.
    """
    import sqlalchemy.types as sql

    if not is_sqlite and _is_narrower(wanted, found):
        return True  # SQLite does not enforce lengths
    if isinstance(wanted, sql.Integer):
        return not isinstance(found, sql.Integer) and not _is_exact(found)
    if isinstance(wanted, sql.Float):
        return not isinstance(found, sql.Float)
    if isinstance(wanted, sql.Numeric):
        return not _is_exact(found)
    if isinstance(wanted, sql.String):
        text_types = (sql.String,) if is_sqlite else (sql.String, sql.JSON, sql.Uuid)
        return not isinstance(found, text_types)
    if isinstance(wanted, sql.DateTime):
        return not isinstance(found, sql.DateTime)
    kind = next(each for each in (sql.Boolean, sql.LargeBinary, sql.Date) if isinstance(wanted, each))
    return not isinstance(found, kind) or isinstance(found, sql.DateTime)


def _decimal(found: Any) -> DataType | None:
    from pyspark.sql.types import DecimalType

    if found.precision is None:
        return DecimalType(_LARGEST_PRECISION, _DEFAULT_SCALE)
    return DecimalType(found.precision, found.scale or 0) if found.precision <= _LARGEST_PRECISION else None


def _is_narrower(wanted: TypeEngine[Any], found: TypeEngine[Any]) -> bool:
    import sqlalchemy.types as sql

    if isinstance(found, sql.Integer) and isinstance(wanted, sql.Integer):
        return _bytes_of(found) < _bytes_of(wanted)
    if _is_exact(found):
        return _has_fewer_digits(wanted, found)
    if isinstance(found, sql.REAL):
        return isinstance(wanted, sql.Double)
    if isinstance(found, sql.CHAR):
        # CHAR pads values. VARCHAR is accepted; the database rejects longer strings at commit.
        return True
    if isinstance(found, sql.DateTime) and isinstance(wanted, sql.DateTime):
        digits = getattr(found, "precision", None)
        return found.timezone != wanted.timezone or digits not in (None, _DIGITS_OF_MICROSECONDS)
    return False


def _has_fewer_digits(wanted: Any, found: Any) -> bool:
    if found.precision is None:
        return False
    whole, fraction = _digits_of(wanted)
    scale = found.scale or 0
    return bool(scale < fraction or found.precision - scale < whole)


def _digits_of(wanted: Any) -> tuple[int, int]:
    import sqlalchemy.types as sql

    if isinstance(wanted, sql.Integer):
        return _DIGITS_OF_BYTES[_bytes_of(wanted)], 0
    if not _is_exact(wanted):
        return 0, 0  # of another kind, which the caller reports
    return wanted.precision - wanted.scale, wanted.scale


def _bytes_of(found: TypeEngine[Any]) -> int:
    import sqlalchemy.types as sql

    if isinstance(found, sql.SmallInteger):
        return 2
    return 8 if isinstance(found, sql.BigInteger) else 4


def _is_exact(found: TypeEngine[Any]) -> bool:
    import sqlalchemy.types as sql

    return isinstance(found, sql.Numeric) and not isinstance(found, sql.Float)
