"""Engines for use without Airflow, and the mapping of database errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
    TimeoutError as PoolTimeoutError,
)

from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.metadata.tables import METADATA

_SQLITE_WAIT_SECONDS = 30.0


def open_engine(url: str) -> Engine:
    """
    Open a database and create missing tables.

    Use it for separate databases only. In Airflow's database, ``airflow db migrate`` creates the tables.

    :param url: SQLAlchemy URL such as ``sqlite:///state.db``.
    """
    wait = {"timeout": _SQLITE_WAIT_SECONDS} if url.startswith("sqlite") else {}
    engine = create_engine(url, connect_args=wait)
    METADATA.create_all(engine)
    return engine


@contextmanager
def executing() -> Iterator[None]:
    """
    Map errors of statements before a commit; after such an error, nothing was changed.

    :raises EnvironmentNotReadyError: if tables are missing.
    :raises CoordinatorUnavailableError: if the database did not respond or no connection was free; the caller may retry.
    :raises InvalidConfigurationError: if another job has used a key.
    :raises CoordinatorError: if the database rejected another statement.
    """
    try:
        yield
    except DBAPIError as error:
        raise _mapped(error) from error
    except PoolTimeoutError as error:
        raise CoordinatorUnavailableError(
            "Expected a free connection to the metadata database, found that all of the pool were in use; nothing was changed, "
            "try again, or raise sql_alchemy_pool_size in section [database] of Airflow's configuration."
        ) from error


@contextmanager
def committing() -> Iterator[None]:
    """
    Map errors of a commit; after such an error, the commit may or may not have taken effect.

    :raises CommitStateUnknownError: for any error; the caller may retry but must not delete anything.
    """
    try:
        yield
    except SQLAlchemyError as error:
        raise CommitStateUnknownError(
            "Expected a successful commit, found that the database failed during it, so the change may or may not have "
            "taken effect; nothing was deleted, repeat the call."
        ) from error


def commit(connection: Connection) -> None:
    """Commit the transaction of a connection; if that fails, close the connection."""
    try:
        connection.commit()
    except BaseException:
        # In the pool, its open transaction could be committed by the next user of the connection.
        connection.invalidate()
        raise


def _mapped(error: DBAPIError) -> StateCheckError:
    if _is_missing_table(error):
        return EnvironmentNotReadyError(
            "Expected the tables statecheck_* in the metadata database, found that one is missing; run 'airflow db migrate'."
        )
    if isinstance(error, OperationalError) or error.connection_invalidated:
        return CoordinatorUnavailableError(
            f"Expected the metadata database to execute a statement, found that it did not ({error.orig}); nothing was "
            f"changed, try again."
        )
    if isinstance(error, IntegrityError):
        # Writers of one job take turns, so only the key of another job can be in the way.
        return InvalidConfigurationError(
            f"Expected a new key of an attempt or a request, found one that another job has used ({error.orig}); nothing was "
            f"changed, generate a new key."
        )
    return CoordinatorError(
        f"Expected the metadata database to accept a statement, found an error ({error.orig}); nothing was changed."
    )


def _is_missing_table(error: DBAPIError) -> bool:
    text = str(error.orig)
    is_missing = "no such table" in text or ("does not exist" in text and isinstance(error, ProgrammingError))
    return is_missing and "statecheck_" in text
