"""Transactions of a SQL sink, and database errors without row values."""

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


_SQLITE_WAIT_SECONDS = 60.0
# An attempt that was stopped in the midst of a transaction must not keep the next one away for ever.
_POSTGRES_LIMITS = ("SET LOCAL lock_timeout = '10min'", "SET LOCAL idle_in_transaction_session_timeout = '5min'")
# Staged files are deleted behind the commit, which has to outlive the database's own end then.
_POSTGRES_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
_PACKAGES = ("sqlalchemy", "psycopg2", "sqlite3")
"""Whose errors are the database's."""
_IN_MEMORY = (":///", ":memory:")
_SUPPORTED = ("postgresql+psycopg2://", "sqlite:///", "sqlite+pysqlite:///")


class SinkDatabase(Database):
    """
    A database that is written to.

    :param url: A URL of SQLAlchemy.
    :raises InvalidConfigurationError: if it is none, or of a database that no sink writes to.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if not self.shown.startswith(_SUPPORTED) or self.shown.endswith(_IN_MEMORY):
            raise InvalidConfigurationError(
                f"Expected the URL of a PostgreSQL, postgresql+psycopg2://…, or of an SQLite file, sqlite:///…, found "
                f"{self.shown!r}; write to files and load them there, or write a TwoPhaseCommitSink."
            )

    @classmethod
    def open(cls, address: Address) -> Self:
        """
        Return the database that a user names.

        :raises InvalidConfigurationError: if there is no such variable, or no URL of such a database in it.
        """
        return cls(resolved_url(address))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """
        Give a connection within a transaction, which is committed at the end, or rolled back by an error.

        :raises EnvironmentNotReadyError: if the package of the driver is missing.
        :raises UnsupportedStateError: if the database refuses values or rows.
        :raises StorageError: for everything else that the database says.
        """
        try:
            with self._engine().begin() as connection:
                self._limit(connection)
                yield connection
        except StateCheckError:
            raise
        except ImportError as error:
            raise self._missing(error) from None
        except Exception as error:
            if not type(error).__module__.startswith(_PACKAGES):
                raise
            # Without its cause: drivers name credentials and rows.
            raise self._failure(error) from None

    @override
    def _engine(self) -> Any:
        from sqlalchemy import NullPool, create_engine

        wait = {"timeout": _SQLITE_WAIT_SECONDS} if self.is_sqlite else {}
        url = str(self._url.reveal()["url"])
        return create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=wait)

    def _limit(self, connection: Connection) -> None:
        from sqlalchemy import text

        for statement in () if self.is_sqlite else (*_POSTGRES_LIMITS, _POSTGRES_DURABLE):
            connection.execute(text(statement))

    def _failure(self, error: Exception) -> StateCheckError:
        original = getattr(error, "orig", None) or error
        kinds = {kind.__name__ for kind in type(original).__mro__}
        # The first line says what is wrong; those behind it may show rows, and of values that do not convert the first one too.
        told = type(original).__name__ if "DataError" in kinds else self.message_of(error)
        said = (told.splitlines() or [""])[0].rstrip(".")
        if kinds & {"IntegrityError", "DataError"}:
            return UnsupportedStateError(
                f"The database {self.shown} does not take the output: {said}. Nothing of the checkpoint was written. Correct the "
                "table or its constraints and run the task again, or convert the output in the stage and start over."
            )
        return StorageError(f"The database {self.shown} failed: {said}.")

    def _missing(self, error: ImportError) -> EnvironmentNotReadyError:
        return EnvironmentNotReadyError(
            f"Expected the package with which Python reaches {self.shown}, found {error}; "
            "pip install 'airflow-provider-statecheck[postgres]' where the driver of Spark runs."
        )
