"""
The statements of transitions and views, each built once.

Parameters are named by ``keys`` of ``record_table``; columns come in the order in which the record's table reads them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, and_, bindparam, case, exists, or_, select, update

from airflow_provider_statecheck.checkpoint.requests import RequestStatus
from airflow_provider_statecheck.metadata.mapping import (
    ACKNOWLEDGEMENTS,
    ATTEMPTS,
    CHECKPOINTS,
    JOBS,
    OPERATORS,
    REQUESTS,
    STATISTICS,
)
from airflow_provider_statecheck.metadata.models import StateHandleLock, StateHandleRow
from airflow_provider_statecheck.metadata.record_table import RecordTable, given, table_of

_job, _operator, _attempt = JOBS.table.c, OPERATORS.table.c, ATTEMPTS.table.c
_checkpoint, _request, _part = CHECKPOINTS.table.c, REQUESTS.table.c, ACKNOWLEDGEMENTS.table.c
_handles, _locks = table_of(StateHandleRow), table_of(StateHandleLock)

_now, _longest = (bindparam(name, type_=_job.seen_at.type) for name in ("now", "longest"))
_has_attempt = exists().where(_attempt.job_id == _job.job_id)
"""A job without any was removed, or its first registration never came to its end."""

_begin = (
    update(JOBS.table)
    .where(given(_job.job_id))
    .values(version=_job.version + 1, seen_at=case((_job.seen_at > _now, _job.seen_at), else_=_now))
)
BEGIN = {False: _begin, True: _begin.where(_has_attempt)}
"""The write that a transition of a job begins with; whether the job has to be a known one."""
BEGIN_AND_READ = {is_known: statement.returning(*JOBS.columns) for is_known, statement in BEGIN.items()}
SET_SEEN_AT = update(JOBS.table).where(given(_job.job_id)).values(seen_at=_now)
DATED_LATER: dict[RecordTable[Any], Select[Any]] = {
    table: table.with_a_time_after(_now) for table in (ATTEMPTS, CHECKPOINTS, ACKNOWLEDGEMENTS, REQUESTS)
}
"""The rows of a job that a clock dated which was ahead."""
SHORTEN_LOCKS = update(_locks).where(given(_locks.c.job_id), _locks.c.expires_at > _longest).values(expires_at=_longest)
SET_NEXT_CHECKPOINT_ID = (
    update(JOBS.table).where(given(_job.job_id)).values(next_checkpoint_id=bindparam("next_checkpoint_id"))
)

VISIBLE_JOBS = select(*JOBS.columns).where(_has_attempt).order_by(_job.seen_at.desc())
VISIBLE_JOB = select(*JOBS.columns).where(given(_job.job_id), _has_attempt)

OPERATOR_AND_ATTEMPT = (
    select(*OPERATORS.columns, *ATTEMPTS.columns)
    .select_from(OPERATORS.table)
    .outerjoin(
        ATTEMPTS.table,
        and_(
            _attempt.job_id == _operator.job_id,
            _attempt.operator_id == _operator.operator_id,
            _attempt.epoch == _operator.epoch,
        ),
    )
    .where(given(_operator.job_id), given(_operator.operator_id))
)
"""An operator and the attempt that holds its epoch."""
ATTEMPT_BY_KEY = select(*ATTEMPTS.columns).where(given(_attempt.job_id), given(_attempt.attempt_key))

CHECKPOINT_BY_REQUEST = select(*CHECKPOINTS.columns).where(given(_checkpoint.job_id), given(_checkpoint.request_key))
OPEN_CHECKPOINTS = select(*CHECKPOINTS.columns).where(
    given(_checkpoint.job_id), given(_checkpoint.operator_id), _checkpoint.discarded_at.is_(None)
)
HAS_COMPLETED = select(
    exists().where(
        given(_checkpoint.job_id),
        given(_checkpoint.operator_id),
        given(_checkpoint.generation),
        _checkpoint.completed_at.is_not(None),
    )
)
UPDATE_CHECKPOINT = update(CHECKPOINTS.table).where(
    given(_checkpoint.job_id), given(_checkpoint.checkpoint_id), given(_checkpoint.epoch), given(_checkpoint.status)
)

PARTS = select(*ACKNOWLEDGEMENTS.columns).where(given(_part.job_id), given(_part.checkpoint_id))
OPEN_REQUESTS = (
    select(*REQUESTS.columns)
    .where(
        given(_request.job_id),
        given(_request.operator_id),
        or_(*(_request.status == status.value for status in RequestStatus if status.is_open)),
    )
    .order_by(_request.requested_at, _request.request_key)
)

ALL_OPERATORS = select(*OPERATORS.columns).where(given(_operator.job_id)).order_by(_operator.uid)
ALL_ATTEMPTS = select(*ATTEMPTS.columns).where(given(_attempt.job_id)).order_by(_attempt.operator_id, _attempt.epoch)
ALL_CHECKPOINTS = select(*CHECKPOINTS.columns).where(given(_checkpoint.job_id)).order_by(_checkpoint.checkpoint_id)
ALL_REQUESTS = (
    select(*REQUESTS.columns).where(given(_request.job_id)).order_by(_request.requested_at, _request.request_key)
)
ALL_STATISTICS = (
    select(*STATISTICS.columns).where(given(STATISTICS.table.c.job_id)).order_by(STATISTICS.table.c.operator_id)
)
ALL_HANDLES = select(_handles.c.handle).where(given(_handles.c.job_id))
