"""
Creation and upgrade of the tables by an api-server that starts.

Some managed Airflow services run ``airflow db migrate`` before they install packages and offer no shell, so that only a
process of Airflow that has the package can create its tables. The Edge provider of Airflow does the same.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from airflow_provider_statecheck.configuration import migrates_on_start
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError

log = logging.getLogger(__name__)

_LOCK_MILLISECONDS = 60_000
"""Maximum wait for another process that migrates Airflow's database."""


class TableUpgrade:
    """ASGI middleware that brings the tables up to date before the api-server takes requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward all messages; the first one of a server announces its start."""
        if scope["type"] == "lifespan":
            await run_in_threadpool(upgrade_tables)
        await self._app(scope, receive, send)


def upgrade_tables() -> None:
    """
    Create or upgrade the tables unless the configuration forbids it.

    An error is logged and does not stop the api-server: until the tables exist, the calls that need them reply with
    status 503 and the command that creates them.
    """
    try:
        if migrates_on_start():
            _bring_up_to_date()
    except EnvironmentNotReadyError as error:
        log.error("%s", error)  # noqa: TRY400 -- the message says what to do
    except Exception as error:
        log.warning(
            "The tables statecheck_* could not be created or upgraded; run 'airflow db migrate' as a user of the "
            "database who may create tables: %s",
            error,
        )


def _bring_up_to_date() -> None:
    from airflow.utils.session import create_session

    from airflow_provider_statecheck.metadata.db_manager import StatecheckDBManager

    with create_session(scoped=False) as session, _alone(session):
        manager: StatecheckDBManager = StatecheckDBManager(session)  # type: ignore[no-untyped-call]
        if manager.bring_up_to_date():
            log.info("Created or upgraded the tables statecheck_*")


@contextmanager
def _alone(session: Any) -> Iterator[None]:
    """Exclude the other processes that migrate the database, and other api-servers that start."""
    from airflow.utils.db import DBLocks, create_global_lock

    with ExitStack() as held:
        # Airflow has no lock for SQLite.
        held.enter_context(_locked_file(session.get_bind().url))
        held.enter_context(create_global_lock(session, DBLocks.MIGRATIONS, _LOCK_MILLISECONDS))
        yield


@contextmanager
def _locked_file(url: Any) -> Iterator[None]:
    if url.get_backend_name() != "sqlite" or not url.database:
        yield
        return
    with Path(f"{url.database}.statecheck-lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
