"""
Tokens: issue, checks and life cycle.

A new token belongs to a task, which can read jobs and register one attempt with it while it runs. The registration
binds the token to this attempt. From then on it is valid for this job, operator and epoch only; each call extends it
while the attempt is open, even after the end of the Airflow task. It becomes invalid when a newer attempt registers, or
ten minutes after the end of the attempt, which leaves time to confirm deletions.

A read token of a task is for a trigger, which cannot request tokens. It expires 15 minutes after it was issued or
renewed, and is valid only while its task runs or is deferred. A read token of a user is for clients outside of Airflow.
It expires after the requested time, at most a day, and cannot be renewed. What a holder may do is decided at each call,
see ``holders``.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.fencing import replaced
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import LONGEST_LEAD, Clock, is_too_far_ahead
from airflow_provider_statecheck.exceptions import AccessDeniedError, TokenExpiredError
from airflow_provider_statecheck.metadata.tables import Caller, TokenRecord, UserCaller
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore, TokenState

TASK_LIFETIME = timedelta(minutes=15)
"""Validity of a token before the registration."""
ATTEMPT_LIFETIME = timedelta(days=3)
"""Maximum time between two calls of an attempt, and thus between two checkpoints."""
DRAIN_LIFETIME = timedelta(minutes=10)
"""Validity of a token after the end of its attempt."""
READ_LIFETIME = timedelta(minutes=15)
"""Validity of a read token after it was issued or renewed."""
MAX_READERS = 20
"""Maximum number of valid read tokens of a task instance."""
USER_LIFETIME = timedelta(hours=24)
"""Maximum validity of a read token of a user."""
MAX_USER_READERS = 100
"""Maximum number of valid read tokens of a user."""
_KEEP_EXPIRED = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token; only its hash is stored."""

    token: str
    expires_at: datetime

    def __repr__(self) -> str:
        return f"IssuedToken(***, expires_at={self.expires_at.isoformat()})"


class TokenKeeper:
    """
    Issues, checks and binds tokens.

    :param clock: Clock of the server; times of clients are not used.
    """

    def __init__(self, store: SqlTokenStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def issue(self, caller: Caller) -> IssuedToken:
        """Issue a token with which a task can register one attempt."""
        return self._issue(caller, TASK_LIFETIME)

    def issue_reader(self, caller: Caller, job_id: JobId) -> IssuedToken:
        """
        Issue a token that can only read one job.

        :raises AccessDeniedError: if the task already has the maximum number of read tokens.
        """
        self._require_fewer_readers(caller, MAX_READERS, "of the task", "renew one instead, or ")
        return self._issue(caller, READ_LIFETIME, job_id=job_id, is_read_only=True)

    def issue_user_reader(self, user: UserCaller, job_id: JobId, lifetime_seconds: float) -> IssuedToken:
        """
        Issue a token with which a user can only read one job; the caller has checked the user's permission.

        :param lifetime_seconds: Validity of the token, up to a day.
        :raises AccessDeniedError: if the user already has the maximum number of read tokens.
        :raises InvalidConfigurationError: for a lifetime out of range.
        """
        require(
            "lifetime_seconds",
            lifetime_seconds,
            lambda seconds: 1 <= seconds <= USER_LIFETIME.total_seconds(),
            f"from 1 to {USER_LIFETIME.total_seconds():.0f}",
        )
        self._require_fewer_readers(user, MAX_USER_READERS, "of the user", "")
        return self._issue(user, timedelta(seconds=lifetime_seconds), job_id=job_id, is_read_only=True)

    def renew_reader(self, token: TokenRecord) -> datetime:
        """
        Extend a read token and return its new expiry.

        :raises AccessDeniedError: if the token is not a read token of a task.
        """
        if not token.is_read_only or isinstance(token.caller, UserCaller):
            raise AccessDeniedError(
                "Expected a read token of a task, found a token of a user, of a task or of an attempt, which cannot "
                "be renewed; request a new one."
            )
        expires_at = self._clock.now() + READ_LIFETIME
        self._store.extend(token, expires_at)
        return expires_at

    def check(self, token: str) -> TokenRecord:
        """
        Return the record of a token, and extend the token of an open attempt.

        :raises AccessDeniedError: if the token is unknown, or if its attempt ended more than ten minutes ago.
        :raises TokenExpiredError: if the token has expired.
        :raises StaleAttemptError: if a newer attempt replaced its attempt.
        """
        state = self._store.find(_hash(token))
        if state is None:
            raise AccessDeniedError(
                "Expected a token issued by this coordinator, found an unknown one; request a new token."
            )
        now = self._clock.now()
        _require_open(state, now)
        if state.attempt_ended_at is None:
            self._extend(state.token, now)
        return state.token

    def claim(self, token: TokenRecord, attempt_key: str) -> None:
        """
        Reserve a task's token for the registration with one key, also among concurrent registrations.

        :raises AccessDeniedError: if the token was used with another key.
        """
        if not self._store.claim(token, attempt_key):
            raise AccessDeniedError(
                "Expected an unused token, found one that was used for another registration; request a new token."
            )

    def bind(self, token: TokenRecord, attempt: AttemptRef, attempt_key: str | None) -> None:
        """
        Bind a task's token to the attempt that the task registered or adopted.

        :raises AccessDeniedError: if another task owns the attempt, or if the token is bound to another attempt.
        """
        if token.attempt == attempt:
            return
        owner = self._store.owner_of(attempt)
        is_own = owner is not None and owner.task == token.task.coordinates
        if not is_own or not self._store.bind(token, attempt, attempt_key, self._clock.now() + ATTEMPT_LIFETIME):
            raise AccessDeniedError(
                f"Expected attempt {attempt.epoch} of job {attempt.job_id} to belong to the caller, found that it "
                "belongs to another task or token; register an attempt with a new key and a new token."
            )

    def require_tables(self) -> None:
        """
        Check that the database has the tables of this package.

        :raises EnvironmentNotReadyError: if a table is missing.
        :raises CoordinatorUnavailableError: if the database does not respond.
        """
        self._store.find("")

    def _require_fewer_readers(self, caller: Caller | UserCaller, limit: int, whose: str, instead: str) -> None:
        # Concurrent requests may exceed the limit slightly, which is harmless.
        if self._store.count_readers(caller, self._clock.now()) >= limit:
            raise AccessDeniedError(
                f"Expected fewer than {limit} valid read tokens {whose}, found {limit} or more; {instead}wait until "
                "one has expired."
            )

    def _issue(
        self,
        caller: Caller | UserCaller,
        lifetime: timedelta,
        job_id: JobId | None = None,
        *,
        is_read_only: bool = False,
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

    def _extend(self, token: TokenRecord, now: datetime) -> None:
        # Calls in quick succession need no write. An expiry too far ahead, from a clock that was ahead, is corrected.
        is_fresh = ATTEMPT_LIFETIME * 0.9 <= token.expires_at - now <= ATTEMPT_LIFETIME + LONGEST_LEAD
        if token.attempt is not None and not is_fresh:
            self._store.extend(token, now + ATTEMPT_LIFETIME)


def _hash(token: str) -> str:
    # A fast hash suffices for 256 random bits.
    return hashlib.sha256(token.encode()).hexdigest()


def _require_open(state: TokenState, now: datetime) -> None:
    token = state.token
    # A token issued while the clock was ahead would be valid too long. The expiry of an attempt's token is corrected
    # instead.
    is_from_future = token.attempt is None and is_too_far_ahead(token.created_at, now)
    if token.expires_at <= now or is_from_future:
        raise TokenExpiredError(
            f"Expected a token that is valid at {now.isoformat()}, found one issued at {token.created_at.isoformat()} "
            f"that expires at {token.expires_at.isoformat()}; request a new token."
        )
    if token.attempt is not None and state.current_epoch not in (None, token.attempt.epoch):
        raise replaced(token.attempt.epoch, state.current_epoch or 0, f"{state.uid!r} in job {token.job_id}")
    if state.attempt_ended_at is not None and state.attempt_ended_at + DRAIN_LIFETIME <= now:
        raise AccessDeniedError(
            f"Expected a token of an open attempt, found one whose attempt ended at "
            f"{state.attempt_ended_at.isoformat()}; register a new attempt."
        )
