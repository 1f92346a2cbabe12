"""Store of the tokens of the API."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.engine import CursorResult, Engine
from sqlalchemy.orm import Session

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.metadata.record_rows import given, json_text, keeping_bad_values, keys
from airflow_provider_statecheck.metadata.tables import ATTEMPTS, OPERATORS, TOKENS, Caller, TokenRecord, UserCaller
from airflow_provider_statecheck.metadata.unit_of_work import committing, executing

_token, _operator, _attempt = TOKENS.c, OPERATORS.c, ATTEMPTS.c
_is_attempt_of_token = and_(*(_attempt[name] == _token[name] for name in ATTEMPTS.key_names))
_with_attempt = (
    select(*TOKENS.columns, _operator.epoch, _operator.uid, _attempt.ended_at)
    .outerjoin(ATTEMPTS.table, _is_attempt_of_token)
    .outerjoin(OPERATORS.table, and_(*(_operator[name] == _attempt[name] for name in OPERATORS.key_names)))
    .where(given(_token.token_hash))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenState:
    """A token and the current state of its attempt."""

    token: TokenRecord
    current_epoch: int | None
    """Epoch of the operator of the attempt; ``None`` without an attempt."""
    uid: str | None
    attempt_ended_at: datetime | None


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
                session.execute(delete(TOKENS.table).where(_has_expired(drop_expired_before)))
                session.execute(insert(TOKENS.table), TOKENS.storable(TOKENS.values_of(record)))
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
                found = session.scalar(select(func.count()).select_from(TOKENS.table).where(_has_ended(before))) or 0
                if found and not dry_run:
                    session.execute(delete(TOKENS.table).where(_has_ended(before)))
            with committing():
                session.commit()
        return found

    def is_open(self, attempt: AttemptRef, now: datetime) -> bool:
        """Return ``True`` if an attempt has a token that has not expired."""
        with executing(), Session(self._engine) as session:
            return bool(session.scalar(select(exists().where(_is_token_of(attempt), _token.expires_at > now))))

    def count_readers(self, caller: Caller | UserCaller, now: datetime) -> int:
        """Return the number of read tokens of a caller that have not expired."""
        is_callers = [_is_field(name, value) for name, value in caller.pairs]
        query = select(func.count()).where(_token.expires_at > now, _token.is_read_only, *is_callers)
        with executing(), Session(self._engine) as session:
            return session.scalar(query) or 0

    def find(self, token_hash: str) -> TokenState | None:
        """Return a token with the state of its attempt, or ``None`` if the hash is unknown."""
        row = self._row(_with_attempt, token_hash=token_hash)
        if row is None:
            return None
        *values, current_epoch, uid, ended_at = tuple(row)
        token = TOKENS.read(values)
        if current_epoch is not None:
            key = {"job_id": token.job_id, "operator_id": token.operator_id}
            OPERATORS.value("epoch", current_epoch, **key)
            OPERATORS.value("uid", uid, **key)
            ATTEMPTS.value("ended_at", ended_at, **key, epoch=token.epoch)
        return TokenState(token=token, current_epoch=current_epoch, uid=uid, attempt_ended_at=ended_at)

    def owner_of(self, attempt: AttemptRef) -> AttemptOwner | None:
        """Return the owner of an attempt, or ``None`` if there is no such attempt."""
        row = self._row(ATTEMPTS.by_key, **asdict(attempt))
        return None if row is None else ATTEMPTS.read(row).owner

    def _row(self, query: Select[Any], **values: object) -> Row[Any] | None:
        with (
            executing(),
            Session(self._engine) as session,
            keeping_bad_values(nullcontext(session.connection())) as rows,
        ):
            return rows.execute(query, keys(**values)).one_or_none()

    def claim(self, token: TokenRecord, attempt_key: str) -> bool:
        """Reserve a token for one registration; return ``False`` if it is reserved for another one."""
        is_free = and_(_token.attempt_key.is_(None), _token.operator_id.is_(None))
        return self._update(token, {"attempt_key": attempt_key}, or_(is_free, _token.attempt_key == attempt_key))

    def bind(self, token: TokenRecord, attempt: AttemptRef, attempt_key: str | None, expires_at: datetime) -> bool:
        """Bind a token to an attempt; return ``False`` if it is bound to another one."""
        bound = asdict(attempt) | {"attempt_key": attempt_key, "expires_at": expires_at}
        return self._update(token, bound, or_(_token.operator_id.is_(None), _is_token_of(attempt)))

    def extend(self, token: TokenRecord, expires_at: datetime) -> None:
        """Change the expiry of a token."""
        self._update(token, {"expires_at": expires_at})

    def _update(self, token: TokenRecord, values: dict[str, object], *conditions: ColumnElement[bool]) -> bool:
        statement = (
            update(TOKENS.table)
            .where(_token.token_hash == token.token_hash, *conditions)
            .values(**TOKENS.storable(values))
        )
        with Session(self._engine) as session:
            with executing():
                result = session.execute(statement)
            with committing():
                session.commit()
        return isinstance(result, CursorResult) and result.rowcount == 1


def _is_field(name: str, value: str) -> ColumnElement[bool]:
    return json_text(_token.caller, name) == value


def _is_token_of(attempt: AttemptRef) -> ColumnElement[bool]:
    return and_(*(_token[name] == value for name, value in asdict(attempt).items()))


def _has_ended(before: datetime) -> ColumnElement[bool]:
    return or_(_has_expired(before), exists().where(_is_attempt_of_token, _attempt.ended_at < before))


def _has_expired(before: datetime) -> ColumnElement[bool]:
    return and_(_token.expires_at < before, ~exists().where(_is_attempt_of_token, _attempt.ended_at.is_(None)))
