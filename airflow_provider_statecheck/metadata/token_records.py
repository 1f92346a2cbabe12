"""Records of the tokens of the API, and their callers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import AccessDeniedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The task instance that a token was issued to."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def coordinates(self) -> tuple[tuple[str, str], ...]:
        """Return the task instance as pairs, as in the owner of an attempt."""
        return tuple((name, str(value)) for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCaller:
    """The user that a read token was issued to."""

    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token."""

    token_hash: str
    caller: Caller | UserCaller
    created_at: datetime
    expires_at: datetime
    job_id: JobId | None = None
    """The only job that the token can access, or ``None`` before the registration."""
    operator_id: OperatorId | None = None
    epoch: int | None = None
    attempt_key: str | None = None
    """The key of the registration that the token is reserved for."""
    is_read_only: bool = False

    @property
    def attempt(self) -> AttemptRef | None:
        """Return the attempt that the token is bound to."""
        if self.job_id is None or self.operator_id is None or self.epoch is None:
            return None
        return AttemptRef(job_id=self.job_id, operator_id=self.operator_id, epoch=self.epoch)

    @property
    def task(self) -> Caller:
        """
        Return the task instance that the token was issued to.

        :raises AccessDeniedError: if it was issued to a user.
        """
        if isinstance(self.caller, Caller):
            return self.caller
        raise AccessDeniedError(
            "Expected the token of a task, found one of a user, which only reads one job; call this from a task."
        )
