"""Transactions of a SQL sink, with database errors that contain no row values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from airflow_provider_statecheck.exceptions import (
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sources.sql.database import Address, Database, resolved_url

if TYPE_CHECKING:
    from sqlalchemy import Connection

_SQLITE_TIMEOUT_SECONDS = 60.0
# The locks of an attempt that stopped during a transaction must not block the next attempt without a limit.
_POSTGRES_TIMEOUTS = ("SET LOCAL lock_timeout = '10min'", "SET LOCAL idle_in_transaction_session_timeout = '5min'")
# Staged files are deleted after the commit, which must therefore survive a crash of the database.
_POSTGRES_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
_PACKAGES = ("sqlalchemy", "psycopg2", "sqlite3")
"""Packages whose exceptions are database errors."""
_IN_MEMORY = (":///", ":memory:")
_SUPPORTED = ("postgresql+psycopg2://", "sqlite:///", "sqlite+pysqlite:///")


class SinkDatabase(Database):
    """
    Database with the table of a sink.

    :param url: SQLAlchemy URL.
    :raises InvalidConfigurationError: if the URL is invalid, or of an unsupported database.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if not self.shown.startswith(_SUPPORTED) or self.shown.endswith(_IN_MEMORY):
            raise InvalidConfigurationError(
                f"Expected the URL of a PostgreSQL database, postgresql+psycopg2://…, or of an SQLite file, sqlite:///…, found "
                f"{self.shown!r}; write files and load them into the database, or implement a TwoPhaseCommitSink."
            )

    @classmethod
    def open(cls, address: Address) -> Self:
        """
        Return the database of an address.

        :raises InvalidConfigurationError: if the environment variable is missing, or the URL is invalid.
        """
        return cls(resolved_url(address))

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
        from sqlalchemy import NullPool, create_engine

        wait = {"timeout": _SQLITE_TIMEOUT_SECONDS} if self.is_sqlite else {}
        url = str(self._url.reveal()["url"])
        return create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=wait)

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
        if kinds & {"IntegrityError", "DataError"}:
            return UnsupportedStateError(
                f"The database {self.shown} rejected the output: {reason}. No row of the checkpoint was written. Correct the "
                "table or its constraints and run the task again, or convert the output in the stage and start over."
            )
        return StorageError(f"The database {self.shown} failed: {reason}.")

    def _missing_driver(self, error: ImportError) -> EnvironmentNotReadyError:
        return EnvironmentNotReadyError(
            f"Expected the Python driver for {self.shown}, found {error}; "
            "pip install 'airflow-provider-statecheck[postgres]' where the Spark driver runs."
        )
