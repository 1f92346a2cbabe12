"""Store of the tokens of the API."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, delete, exists, func, or_, select, update
from sqlalchemy.engine import CursorResult, Engine
from sqlalchemy.orm import Session

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.metadata.database import committing, executing
from airflow_provider_statecheck.metadata.models import Attempt, Operator, Token


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenState:
    """A token and the current state of its attempt."""

    token: TokenRecord
    current_epoch: int | None = None
    uid: str = ""
    attempt_status: AttemptStatus | None = None
    attempt_ended_at: datetime | None = None


class SqlTokenStore:
    """
    Tokens in the table ``statecheck_token``.

    :param engine: Database that has the tables.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, record: TokenRecord, *, drop_expired_before: datetime) -> None:
        """Insert a token, and remove tokens that expired before a time, except those of open attempts."""
        with Session(self._engine) as session:
            with executing():
                session.execute(
                    delete(Token).where(_has_expired(drop_expired_before)).execution_options(synchronize_session=False)
                )
                session.add(Token(**_values(record) | {"caller": asdict(record.caller)}))
                session.flush()
            with committing():
                session.commit()

    def drop_ended(self, before: datetime, *, dry_run: bool = False) -> int:
        """
        Remove the tokens that expired, or whose attempt ended, before a time, and return their number.

        Tokens of open attempts are retained: the driver may still run, and the clock may be ahead.

        :param dry_run: Only count the tokens.
        """
        with Session(self._engine) as session:
            with executing():
                found = session.scalar(select(func.count()).select_from(Token).where(_has_ended(before))) or 0
                if found and not dry_run:
                    session.execute(
                        delete(Token).where(_has_ended(before)).execution_options(synchronize_session=False)
                    )
            with committing():
                session.commit()
        return found

    def is_open(self, attempt: AttemptRef, now: datetime) -> bool:
        """Return ``True`` if an attempt has a token that has not expired."""
        with executing(), Session(self._engine) as session:
            return bool(session.scalar(select(exists().where(_is_token_of(attempt), Token.expires_at > now))))

    def count_readers(self, caller: Caller | UserCaller, now: datetime) -> int:
        """Return the number of read tokens of a caller that have not expired."""
        is_callers = [_is_field(name, value) for name, value in asdict(caller).items()]
        query = select(func.count()).select_from(Token).where(Token.expires_at > now, Token.is_read_only, *is_callers)
        with executing(), Session(self._engine) as session:
            return session.scalar(query) or 0

    def find(self, token_hash: str) -> TokenState | None:
        """Return a token with the state of its attempt, or ``None`` if the hash is unknown."""
        with executing(), Session(self._engine) as session:
            row = session.execute(_with_attempt(token_hash)).one_or_none()
            return None if row is None else _state(row)

    def owner_of(self, attempt: AttemptRef) -> AttemptOwner | None:
        """Return the owner of an attempt, or ``None`` if there is no such attempt."""
        with executing(), Session(self._engine) as session:
            row = session.get(Attempt, (attempt.job_id, attempt.operator_id, attempt.epoch))
            return None if row is None else row.owner

    def claim(self, token: TokenRecord, attempt_key: str) -> bool:
        """Reserve a token for one registration; return ``False`` if it is reserved for another one."""
        is_free = and_(Token.attempt_key.is_(None), Token.operator_id.is_(None))
        return self._update(token, {"attempt_key": attempt_key}, or_(is_free, Token.attempt_key == attempt_key))

    def bind(self, token: TokenRecord, attempt: AttemptRef, attempt_key: str | None, expires_at: datetime) -> bool:
        """Bind a token to an attempt; return ``False`` if it is bound to another one."""
        bound = _values(attempt) | {"attempt_key": attempt_key, "expires_at": expires_at}
        return self._update(token, bound, or_(Token.operator_id.is_(None), _is_token_of(attempt)))

    def extend(self, token: TokenRecord, expires_at: datetime) -> None:
        """Change the expiry of a token."""
        self._update(token, {"expires_at": expires_at})

    def _update(self, token: TokenRecord, values: dict[str, object], *conditions: ColumnElement[bool]) -> bool:
        statement = update(Token).where(Token.token_hash == token.token_hash, *conditions).values(**values)
        with Session(self._engine) as session:
            with executing():
                result = session.execute(statement.execution_options(synchronize_session=False))
            with committing():
                session.commit()
        return isinstance(result, CursorResult) and result.rowcount == 1


def _is_field(name: str, value: str | int) -> ColumnElement[bool]:
    stored = Token.caller[name]
    is_equal: ColumnElement[bool] = (stored.as_integer() if isinstance(value, int) else stored.as_string()) == value
    return is_equal


_IS_ATTEMPT_OF_TOKEN = and_(
    Attempt.job_id == Token.job_id, Attempt.operator_id == Token.operator_id, Attempt.epoch == Token.epoch
)


def _is_token_of(attempt: AttemptRef) -> ColumnElement[bool]:
    return and_(Token.job_id == attempt.job_id, Token.operator_id == attempt.operator_id, Token.epoch == attempt.epoch)


def _has_ended(before: datetime) -> ColumnElement[bool]:
    return or_(_has_expired(before), exists().where(_IS_ATTEMPT_OF_TOKEN, Attempt.ended_at < before))


def _has_expired(before: datetime) -> ColumnElement[bool]:
    return and_(Token.expires_at < before, ~exists().where(_IS_ATTEMPT_OF_TOKEN, Attempt.ended_at.is_(None)))


def _with_attempt(token_hash: str) -> Select[Token, Operator, Attempt]:
    is_operator = and_(Operator.job_id == Token.job_id, Operator.operator_id == Token.operator_id)
    query = select(Token, Operator, Attempt).outerjoin(Operator, is_operator).outerjoin(Attempt, _IS_ATTEMPT_OF_TOKEN)
    return query.where(Token.token_hash == token_hash)


def _state(row: Row[Token, Operator, Attempt]) -> TokenState:
    token: Token = row[0]
    operator: Operator | None = row[1]
    attempt: Attempt | None = row[2]
    if operator is None or attempt is None:
        return TokenState(token=_record(token))
    return TokenState(
        token=_record(token),
        current_epoch=operator.epoch,
        uid=operator.uid,
        attempt_status=attempt.status,
        attempt_ended_at=attempt.ended_at,
    )


def _record(row: Token) -> TokenRecord:
    values = {field.name: getattr(row, field.name) for field in fields(TokenRecord)}
    caller = UserCaller(**row.caller) if "user" in row.caller else Caller(**row.caller)
    return TokenRecord(**values | {"caller": caller})


def _values(record: TokenRecord | AttemptRef) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
