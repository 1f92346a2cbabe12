"""
Connections to a database by its URL.

The URL may contain a password; messages, logs and ``repr`` never contain it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from airflow_provider_statecheck.exceptions import (
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    SourceError,
    StateCheckError,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.storage.schemes import conceal

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.engine import URL

Address = str | Callable[[], str]
"""An SQLAlchemy URL, ``env:NAME`` for a URL in an environment variable of the driver, or a function that returns a URL."""

_IN_ENVIRONMENT = "env:"
_FILE_URI = "file:"


class Database:
    """
    A database that can be pickled, and whose password is never shown.

    :param url: An SQLAlchemy URL.
    :raises InvalidConfigurationError: if the URL is invalid.
    """

    def __init__(self, url: str) -> None:
        parsed = _parse_url(url)
        self._url = HiddenOptions({"url": url})
        self.shown = f"{parsed.drivername}://{parsed.host or ''}/{parsed.database or ''}"

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
        from sqlalchemy import NullPool, create_engine

        return create_engine(str(self._url.reveal()["url"]), poolclass=NullPool, hide_parameters=True)

    def _as_own_error(self, error: Exception) -> StateCheckError:
        # Compares the name of the class, because SQLAlchemy itself may be missing.
        if not isinstance(error, ImportError) and type(error).__name__ != "NoSuchModuleError":
            return SourceError(f"The database {self.shown} cannot be read: {self.message_of(error)}")
        return EnvironmentNotReadyError(
            f"Expected Python packages to read {self.shown}, found {error}; install SQLAlchemy and the driver in the URL "
            "(airflow-provider-statecheck[postgres] for PostgreSQL) for Spark's driver and executors."
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
        return {"password": quoted, "token": url, "query": dict(parsed.query)}


def open_database(address: Address) -> Database:
    """
    Return the database at an address.

    :raises InvalidConfigurationError: if the environment variable is not set, or the URL is invalid.
    """
    return Database(resolved_url(address))


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
            f"Expected the URL of a database in the environment variable {name} of the driver, found none; set the variable."
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


def _parse_url(url: object) -> URL:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        # SQLAlchemy's URL objects are rejected too: their string form masks the password.
        return make_url(_require_text(url))
    except (ArgumentError, TypeError, ValueError):
        raise InvalidConfigurationError(
            "Expected the URL of a database such as postgresql+psycopg2://user:password@host/name, found another value; it is "
            "not shown, because it may contain a password."
        ) from None


def _require_text(url: object) -> str:
    if not isinstance(url, str):
        raise TypeError(type(url))
    return url
