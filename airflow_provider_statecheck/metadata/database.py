"""Engines for use without Airflow, and the classification of database errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, SQLAlchemyError

from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    EnvironmentNotReadyError,
)
from airflow_provider_statecheck.metadata.models import Base

_SQLITE_WAIT_SECONDS = 30.0


def open_engine(url: str) -> Engine:
    """
    Open a database and make its tables where they are missing.

    Only for databases that this package owns: in Airflow's own one the tables come from ``airflow db migrate``.

    :param url: A SQLAlchemy URL such as ``sqlite:///state.db``.
    """
    wait = {"timeout": _SQLITE_WAIT_SECONDS} if url.startswith("sqlite") else {}
    engine = create_engine(url, connect_args=wait)
    Base.metadata.create_all(engine)
    return engine


@contextmanager
def executing() -> Iterator[None]:
    """
    Run statements before a commit: whatever fails here changed nothing.

    :raises EnvironmentNotReadyError: if the tables are missing.
    :raises CoordinatorUnavailableError: if the database did not answer; the call may be repeated.
    """
    try:
        yield
    except DBAPIError as error:
        raise _definite(error) from error


@contextmanager
def committing() -> Iterator[None]:
    """
    Commit: an error here says nothing about whether the commit took effect.

    :raises CommitStateUnknownError: for any error; the call may be repeated, nothing may be deleted.
    """
    try:
        yield
    except SQLAlchemyError as error:
        raise CommitStateUnknownError(
            "The database failed while a transition of the job was committed, so it may or may not have taken effect; "
            "nothing was deleted. Repeat the call."
        ) from error


def _definite(error: DBAPIError) -> CoordinatorError | EnvironmentNotReadyError:
    if _is_missing_table(error):
        return EnvironmentNotReadyError(
            "Expected the tables statecheck_* in the metadata database and found none; run 'airflow db migrate'."
        )
    if isinstance(error, OperationalError) or error.connection_invalidated:
        return CoordinatorUnavailableError(
            f"The metadata database did not carry out a statement ({error.orig}); nothing was changed. Try again."
        )
    return CoordinatorError(f"The metadata database refused a statement: {error.orig}; nothing was changed.")


def _is_missing_table(error: DBAPIError) -> bool:
    text = str(error.orig)
    is_missing = "no such table" in text or ("does not exist" in text and isinstance(error, ProgrammingError))
    return is_missing and "statecheck_" in text
