"""
Services behind the routes: stores, tokens, and the system that runs the tasks.

A token is first that of a task, which may register one attempt and read. With the registration it becomes that of the
attempt: it then opens this job, operator and epoch alone, slides while the attempt is open, outlives the Airflow task,
and ends when a newer attempt registers. After the attempt's end it lives on for a while, so that what is left to be
deleted can be confirmed. A token for reading is for a trigger, which cannot ask for tokens; it ends a quarter of an hour
after it was given or renewed, and is renewed only while its task waits.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Protocol

from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.clock import LONGEST_LEAD, Clock, SystemClock, is_too_far_ahead
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.fencing import TaskLiveness, UnknownLiveness, replaced
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.observer import CoordinatorObserver, ObservedJobStore
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import AccessDeniedError, TokenExpiredError
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, RunDirectory, UnknownRuns
from airflow_provider_statecheck.maintenance.recover import JobRecovery
from airflow_provider_statecheck.maintenance.rewind import JobRewinding
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.token_store import Caller, SqlTokenStore, TokenRecord, TokenState


class TaskDirectory(Protocol):
    """Answers for Airflow."""

    def prove(self, ti_id: str, secret: str) -> Caller:
        """
        Return the running task instance that holds a secret, which is of no use any more afterwards.

        :raises AccessDeniedError: if there is none, it does not run, or the secret is not its own.
        """
        ...

    def is_waiting(self, caller: Caller) -> bool:
        """Tell whether a task instance runs or is deferred."""
        ...

    def is_dag(self, dag_id: str) -> bool:
        """Tell whether there is a Dag of this id."""
        ...


TASK_LIFETIME = timedelta(minutes=15)
ATTEMPT_LIFETIME = timedelta(days=3)
"""How long an attempt may say nothing: the longest time between two checkpoints."""
DRAIN_LIFETIME = timedelta(minutes=10)
READ_LIFETIME = timedelta(minutes=15)
"""Who waits longer renews the token, as long as the task waits that it was given to."""
MAX_READERS = 20
"""How many tokens for reading a task instance may have at a time."""
_KEEP_EXPIRED = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token; it is shown once and kept nowhere."""

    token: str
    expires_at: datetime

    def __repr__(self) -> str:
        return f"IssuedToken(***, expires_at={self.expires_at.isoformat()})"


class TokenKeeper:
    """
    Gives, checks and binds tokens.

    :param store: The rows.
    :param clock: The server's clock; a client's time is never looked at.
    """

    def __init__(self, store: SqlTokenStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def issue(self, caller: Caller) -> IssuedToken:
        """Give a task a token that may register one attempt."""
        return self._issue(caller, TASK_LIFETIME)

    def issue_reader(self, caller: Caller, job_id: JobId) -> IssuedToken:
        """
        Give a token that can read one job and nothing else.

        :raises AccessDeniedError: if the task has too many of them already.
        """
        # Two requests at once may both find room; a quota need not be exact.
        if self._store.count_readers(caller, self._clock.now()) >= MAX_READERS:
            raise AccessDeniedError(
                f"Expected a task to have at most {MAX_READERS} tokens for reading at a time, found as many already; "
                f"renew one instead, or wait until one has expired."
            )
        return self._issue(caller, READ_LIFETIME, job_id=job_id, is_read_only=True)

    def renew_reader(self, token: TokenRecord) -> datetime:
        """
        Let a token for reading live on, from now, and return until when.

        :raises AccessDeniedError: for any other token.
        """
        if not token.is_read_only:
            raise AccessDeniedError("Expected a token for reading, found another one; it cannot be renewed.")
        expires_at = self._clock.now() + READ_LIFETIME
        self._store.extend(token, expires_at)
        return expires_at

    def check(self, token: str) -> TokenRecord:
        """
        Return what a token means, and let that of an open attempt live longer.

        :raises AccessDeniedError: for a token that was never given, or whose attempt has ended.
        :raises TokenExpiredError: for one that is too old.
        :raises StaleAttemptError: for one whose attempt was replaced.
        """
        state = self._store.find(_hash(token))
        if state is None:
            raise AccessDeniedError(
                "Expected a token that this coordinator gave, found an unknown one; ask for another."
            )
        now = self._clock.now()
        _require_open(state, now)
        if state.attempt_ended_at is None:
            self._slide(state.token, now)
        return state.token

    def claim(self, token: TokenRecord, attempt_key: str) -> None:
        """
        Let a task's token register under one key and no other, be it that two registrations come at once.

        :raises AccessDeniedError: if it was used under another key.
        """
        if not self._store.claim(token, attempt_key):
            raise AccessDeniedError(
                "Expected a token that has registered nothing else, found one that was used; ask for another."
            )

    def bind(self, token: TokenRecord, attempt: AttemptRef, attempt_key: str | None) -> None:
        """
        Make a task's token that of the attempt which it registered or adopted.

        :raises AccessDeniedError: if another task registered it, or if the token became that of another attempt.
        """
        if token.attempt == attempt:
            return
        owner = self._store.owner_of(attempt)
        is_own = owner is not None and dict(owner.airflow) == dict(token.caller.coordinates)
        if not is_own or not self._store.bind(token, attempt, attempt_key, self._clock.now() + ATTEMPT_LIFETIME):
            raise AccessDeniedError(
                f"Expected attempt {attempt.epoch} of job {attempt.job_id} to be the caller's own, found another's; "
                f"register an attempt under a new key with a new token."
            )

    def require_tables(self) -> None:
        """
        Look whether the database has what this keeper needs.

        :raises EnvironmentNotReadyError: if a table is missing.
        :raises CoordinatorUnavailableError: if the database does not answer.
        """
        self._store.find("")

    def _issue(
        self, caller: Caller, lifetime: timedelta, job_id: JobId | None = None, *, is_read_only: bool = False
    ) -> IssuedToken:
        token, now = secrets.token_urlsafe(32), self._clock.now()
        record = TokenRecord(
            token_hash=_hash(token),
            caller=caller,
            created_at=now,
            expires_at=now + lifetime,
            job_id=job_id,
            is_read_only=is_read_only,
        )
        self._store.add(record, drop_expired_before=now - _KEEP_EXPIRED)
        return IssuedToken(token=token, expires_at=record.expires_at)

    def _slide(self, token: TokenRecord, now: datetime) -> None:
        # Most calls come soon after the one before; those need no write. A clock that was ahead lets a token live too long.
        is_fresh = ATTEMPT_LIFETIME * 0.9 <= token.expires_at - now <= ATTEMPT_LIFETIME + LONGEST_LEAD
        if token.attempt is not None and not is_fresh:
            self._store.extend(token, now + ATTEMPT_LIFETIME)


def _hash(token: str) -> str:
    # A fast hash is enough: 256 random bits cannot be guessed.
    return hashlib.sha256(token.encode()).hexdigest()


def _require_open(state: TokenState, now: datetime) -> None:
    token = state.token
    # A clock that was ahead gave it; by the right one it would live until then. That of an attempt is cut short instead.
    is_of_the_future = token.attempt is None and is_too_far_ahead(token.created_at, now)
    if token.expires_at <= now or is_of_the_future:
        raise TokenExpiredError(
            f"Expected a token that is valid at {now.isoformat()}, found one that was given at {token.created_at.isoformat()} "
            f"and expires at {token.expires_at.isoformat()}; ask for another."
        )
    if token.attempt is not None and state.current_epoch not in (None, token.attempt.epoch):
        raise replaced(token.attempt.epoch, state.current_epoch or 0, f"{state.uid!r} in job {token.job_id}")
    if state.attempt_ended_at is not None and state.attempt_ended_at + DRAIN_LIFETIME <= now:
        raise AccessDeniedError(
            f"Expected the token of an open attempt, found one whose attempt ended at "
            f"{state.attempt_ended_at.isoformat()}; register a new attempt."
        )


class Services:
    """
    The coordinator and its tokens on one database, opened at the first use.

    :param engine: Gives the database.
    :param tasks: Who knows which task asks.
    :param liveness: Who knows whether another task still runs.
    :param observer: Who is told of every change.
    :param clock: Where time comes from.
    :param runs: Who knows whether a Dag run is over.
    :param maintenance_dags: Gives the ids of the Dags whose tasks may remove rows.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        tasks: TaskDirectory,
        *,
        liveness: TaskLiveness | None = None,
        observer: CoordinatorObserver | None = None,
        clock: Clock | None = None,
        runs: RunDirectory | None = None,
        maintenance_dags: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._engine = engine
        self.tasks = tasks
        self.maintenance_dags = maintenance_dags
        self._liveness = liveness or UnknownLiveness()
        self._observer = observer
        self._clock = clock or SystemClock()
        self._runs = runs or UnknownRuns()

    @cached_property
    def coordinator(self) -> AttemptCoordinator:
        """Return the coordinator."""
        return AttemptCoordinator(self._store, self._liveness)

    @cached_property
    def maintenance(self) -> JobMaintenance:
        """Return what may be done to jobs that no attempt works on."""
        return JobMaintenance(self._store, self._runs, SqlTokenStore(self._engine()), self._clock)

    @cached_property
    def savepoints(self) -> JobSavepoints:
        """Return what takes savepoints of operators from outside."""
        return JobSavepoints(self._store)

    @cached_property
    def recovery(self) -> JobRecovery:
        """Return what makes rows anew after the database was lost."""
        return JobRecovery(self._store)

    @cached_property
    def rewinding(self) -> JobRewinding:
        """Return what takes the state of jobs back to where it stood before a run."""
        return JobRewinding(self._store, self._liveness)

    @cached_property
    def tokens(self) -> TokenKeeper:
        """Return the keeper of the tokens."""
        return TokenKeeper(SqlTokenStore(self._engine()), self._clock)

    @cached_property
    def _store(self) -> JobStore:
        store: JobStore = SqlJobStore(self._engine(), self._clock)
        return store if self._observer is None else ObservedJobStore(store, self._observer)
