"""A database of one's own, for notebooks and scripts without Airflow."""

from __future__ import annotations

from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

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
