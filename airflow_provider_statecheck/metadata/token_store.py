"""The rows behind the API's tokens: who got one, what it means, until when."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime

from sqlalchemy import ColumnElement, Row, Select, and_, delete, exists, func, or_, select, update
from sqlalchemy.engine import CursorResult, Engine
from sqlalchemy.orm import Session

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus
from airflow_provider_statecheck.metadata.database import committing, executing
from airflow_provider_statecheck.metadata.models import Attempt, Operator, Token
from airflow_provider_statecheck.metadata.record_table import attempt_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The task instance that a token was given to."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def coordinates(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs by which an attempt's owner names its task instance."""
        return tuple((name, str(value)) for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """What a token means."""

    token_hash: str
    caller: Caller
    created_at: datetime
    expires_at: datetime
    job_id: JobId | None = None
    """The only job it opens; ``None`` before an attempt is registered with it."""
    attempt: AttemptRef | None = None
    """The attempt it speaks for."""
    attempt_key: str | None = None
    """The key under which that attempt was registered."""
    is_read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenState:
    """A token and how its attempt stands at this moment."""

    token: TokenRecord
    current_epoch: int | None = None
    uid: str = ""
    attempt_status: AttemptStatus | None = None
    attempt_ended_at: datetime | None = None


class SqlTokenStore:
    """
    Tokens in the table ``statecheck_token``.

    :param engine: The database; its tables exist.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, record: TokenRecord, *, drop_expired_before: datetime) -> None:
        """Insert a token, and drop those that expired before a time and are of no open attempt."""
        with Session(self._engine) as session:
            with executing():
                session.execute(
                    delete(Token).where(_has_expired(drop_expired_before)).execution_options(synchronize_session=False)
                )
                session.add(Token(**_columns(record)))
                session.flush()
            with committing():
                session.commit()

    def drop_ended(self, before: datetime, *, dry_run: bool = False) -> int:
        """
        Remove the tokens that expired, or whose attempt ended, before a time, and return how many there were.

        That of an open attempt stays, however late it is by the clock: its driver may live, and the clock may be ahead.

        :param dry_run: Only count them.
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
        """Tell whether an attempt has a token that is still good."""
        its = (Token.job_id == attempt.job_id, Token.operator_id == attempt.operator_id, Token.epoch == attempt.epoch)
        with executing(), Session(self._engine) as session:
            return bool(session.scalar(select(exists().where(*its, Token.expires_at > now))))

    def count_readers(self, caller: Caller, now: datetime) -> int:
        """Return how many tokens for reading a task has that are still good."""
        kept = Token.caller
        its = (
            kept["dag_id"].as_string() == caller.dag_id,
            kept["run_id"].as_string() == caller.run_id,
            kept["task_id"].as_string() == caller.task_id,
            kept["map_index"].as_integer() == caller.map_index,
        )
        query = select(func.count()).select_from(Token).where(Token.expires_at > now, Token.is_read_only, *its)
        with executing(), Session(self._engine) as session:
            return session.scalar(query) or 0

    def find(self, token_hash: str) -> TokenState | None:
        """Return a token with the state of its attempt, ``None`` if there is none of this hash."""
        with executing(), Session(self._engine) as session:
            row = session.execute(_with_attempt(token_hash)).one_or_none()
            return None if row is None else _state(row)

    def owner_of(self, attempt: AttemptRef) -> AttemptOwner | None:
        """Return who holds an attempt, ``None`` if there is no such attempt."""
        with executing(), Session(self._engine) as session:
            row = session.get(Attempt, (attempt.job_id, attempt.operator_id, attempt.epoch))
            return None if row is None else attempt_record(row).owner

    def claim(self, token: TokenRecord, attempt_key: str) -> bool:
        """Reserve a token for one registration; tell whether it was free, or reserved for that one already."""
        is_free = and_(Token.attempt_key.is_(None), Token.operator_id.is_(None))
        return self._update(token, {"attempt_key": attempt_key}, or_(is_free, Token.attempt_key == attempt_key))

    def bind(self, token: TokenRecord, attempt: AttemptRef, attempt_key: str | None, expires_at: datetime) -> bool:
        """Make a token that of one attempt; tell whether it was that of no other."""
        is_its = and_(
            Token.job_id == attempt.job_id, Token.operator_id == attempt.operator_id, Token.epoch == attempt.epoch
        )
        bound = replace(token, job_id=attempt.job_id, attempt=attempt, attempt_key=attempt_key, expires_at=expires_at)
        return self._update(token, _columns(bound), or_(Token.operator_id.is_(None), is_its))

    def extend(self, token: TokenRecord, expires_at: datetime) -> None:
        """Let a token live longer."""
        self._update(token, {"expires_at": expires_at})

    def _update(self, token: TokenRecord, values: dict[str, object], *conditions: ColumnElement[bool]) -> bool:
        statement = update(Token).where(Token.token_hash == token.token_hash, *conditions).values(**values)
        with Session(self._engine) as session:
            with executing():
                result = session.execute(statement.execution_options(synchronize_session=False))
            with committing():
                session.commit()
        return isinstance(result, CursorResult) and result.rowcount == 1


def _has_ended(before: datetime) -> ColumnElement[bool]:
    its = and_(Attempt.job_id == Token.job_id, Attempt.operator_id == Token.operator_id, Attempt.epoch == Token.epoch)
    return or_(_has_expired(before), exists().where(its, Attempt.ended_at < before))


def _has_expired(before: datetime) -> ColumnElement[bool]:
    its = and_(Attempt.job_id == Token.job_id, Attempt.operator_id == Token.operator_id, Attempt.epoch == Token.epoch)
    return and_(Token.expires_at < before, ~exists().where(its, Attempt.ended_at.is_(None)))


def _with_attempt(token_hash: str) -> Select[Token, Operator, Attempt]:
    mine = and_(Operator.job_id == Token.job_id, Operator.operator_id == Token.operator_id)
    its = and_(Attempt.job_id == Token.job_id, Attempt.operator_id == Token.operator_id, Attempt.epoch == Token.epoch)
    query = select(Token, Operator, Attempt).outerjoin(Operator, mine).outerjoin(Attempt, its)
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
        attempt_status=AttemptStatus(attempt.status),
        attempt_ended_at=attempt.ended_at,
    )


def _record(row: Token) -> TokenRecord:
    return TokenRecord(
        token_hash=row.token_hash,
        caller=Caller(**row.caller),
        created_at=row.created_at,
        expires_at=row.expires_at,
        job_id=None if row.job_id is None else JobId(row.job_id),
        attempt=_attempt(row),
        attempt_key=row.attempt_key,
        is_read_only=row.is_read_only,
    )


def _attempt(row: Token) -> AttemptRef | None:
    if row.job_id is None or row.operator_id is None or row.epoch is None:
        return None
    return AttemptRef(job_id=JobId(row.job_id), operator_id=OperatorId(row.operator_id), epoch=row.epoch)


def _columns(record: TokenRecord) -> dict[str, object]:
    attempt = record.attempt
    return {
        "token_hash": record.token_hash,
        "caller": asdict(record.caller),
        "job_id": record.job_id,
        "operator_id": attempt and attempt.operator_id,
        "epoch": attempt and attempt.epoch,
        "attempt_key": record.attempt_key,
        "is_read_only": record.is_read_only,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
    }
