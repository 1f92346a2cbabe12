"""A database by its URL, which may hold a password and is shown nowhere."""

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
"""A URL of SQLAlchemy, ``env:NAME`` for one in an environment variable of the driver, or what returns one."""

_IN_ENVIRONMENT = "env:"
_FILE_URI = "file:"


class Database:
    """
    Opens connections; it can be pickled, and is never shown with its password.

    :param url: A URL of SQLAlchemy.
    :raises InvalidConfigurationError: if it is none.
    """

    def __init__(self, url: str) -> None:
        parsed = _parsed(url)
        self._url = HiddenOptions({"url": url})
        self.shown = f"{parsed.drivername}://{parsed.host or ''}/{parsed.database or ''}"

    def __repr__(self) -> str:
        return f"Database({self.shown!r})"

    @property
    def is_sqlite(self) -> bool:
        """Tell whether it is a file of SQLite."""
        return self.shown.startswith("sqlite")

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """
        Give a connection, which is closed at the end.

        :raises EnvironmentNotReadyError: if the package of its driver is missing.
        :raises SourceError: if the database does not answer, or refuses a statement.
        """
        try:
            with self._engine().connect() as connection:
                yield connection
        except StateCheckError:
            raise
        except Exception as error:
            # Without its cause: Spark writes the whole chain to its logs, and drivers name credentials.
            raise self._told(error) from None

    def _engine(self) -> Any:
        from sqlalchemy import NullPool, create_engine

        return create_engine(str(self._url.reveal()["url"]), poolclass=NullPool, hide_parameters=True)

    def _told(self, error: Exception) -> StateCheckError:
        # Without SQLAlchemy's own classes, for it may be what is missing.
        if not isinstance(error, ImportError) and type(error).__name__ != "NoSuchModuleError":
            return SourceError(f"The database {self.shown} cannot be read: {self._said(error)}")
        return EnvironmentNotReadyError(
            f"Expected the packages with which Python reads {self.shown}, found {error}; install SQLAlchemy and the driver that "
            "the URL names, airflow-provider-statecheck[postgres] for PostgreSQL, where the driver of Spark and its executors "
            "run."
        )

    def _said(self, error: Exception) -> str:
        # The driver's own words, without the statement.
        original = getattr(error, "orig", None) or error
        return f"{type(original).__name__} {conceal(str(original).strip(), self._secrets())}"

    def _secrets(self) -> dict[str, Any]:
        url = str(self._url.reveal()["url"])
        parsed = _parsed(url)
        password = str(parsed.password or "")
        quoted = [password, quote(password, safe=""), quote_plus(password)]
        return {"password": quoted, "token": url, "query": dict(parsed.query)}


def open_database(address: Address) -> Database:
    """
    Return the database that a user names.

    :raises InvalidConfigurationError: if there is no such variable, or no URL in it.
    """
    return Database(resolved_url(address))


def shown_address(address: Address) -> str:
    """Return how an address is shown, without asking for it."""
    if callable(address):
        return "a function"
    return address if str(address).startswith(_IN_ENVIRONMENT) else Database(address).shown


def resolved_url(address: Address) -> str:
    """
    Return the URL that an address stands for; a file of SQLite is below the directory of this process.

    :raises InvalidConfigurationError: if there is no such variable, or no URL in it.
    """
    return _with_absolute_file(_named_url(address))


def _named_url(address: Address) -> str:
    if callable(address):
        return address()
    if not str(address).startswith(_IN_ENVIRONMENT):
        return address
    name = address.removeprefix(_IN_ENVIRONMENT)
    found = os.environ.get(name)
    if not found:
        raise InvalidConfigurationError(
            f"Expected the URL of a database in the environment variable {name} of the driver, found nothing; set it."
        )
    return found


def _with_absolute_file(url: str) -> str:
    # Tasks of Spark, which run elsewhere, would take a relative path for one of their own directories.
    parsed = _parsed(url)
    file = parsed.database or ""
    scheme = _FILE_URI if file.startswith(_FILE_URI) and "uri" in parsed.query else ""
    path = file.removeprefix(scheme)
    is_file = parsed.drivername.startswith("sqlite") and path and not path.startswith(("/", ":memory:"))
    if not is_file or parsed.query.get("mode") == "memory":
        return url
    return parsed.set(database=f"{scheme}{Path(path).absolute()}").render_as_string(hide_password=False)


def _parsed(url: object) -> URL:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        # An object of SQLAlchemy's is refused too: as a text it has no password any more.
        return make_url(_required_text(url))
    except (ArgumentError, TypeError, ValueError):
        raise InvalidConfigurationError(
            "Expected the URL of a database such as postgresql+psycopg2://user:password@host/name, found something else; it is "
            "not shown, because it may hold a password."
        ) from None


def _required_text(url: object) -> str:
    if not isinstance(url, str):
        raise TypeError(type(url))
    return url
