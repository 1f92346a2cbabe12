"""
SQL statements of transitions and views.

Parameters have the names of ``tables.keys``. Columns are in the order of the record table that reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache, reduce
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    FromClause,
    Select,
    Table,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    not_,
    null,
    or_,
    select,
    update,
)

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, RequestStatus
from airflow_provider_statecheck.checkpoint.store import (
    KNOWN_RUNS,
    RECENT,
    CheckpointPage,
    EndedAttempts,
    EndedCheckpoints,
)
from airflow_provider_statecheck.metadata.record_rows import TRUE, RecordTable, given, json_text, parameter
from airflow_provider_statecheck.metadata.tables import (
    ACKNOWLEDGEMENTS,
    ACTIONS,
    ATTEMPTS,
    CHECKPOINTS,
    JOB_DAGS,
    JOB_FIGURES,
    JOBS,
    OPERATORS,
    REQUESTS,
    STATISTICS,
    is_of_job,
)

_job, _operator, _attempt, _checkpoint = JOBS.c, OPERATORS.c, ATTEMPTS.c, CHECKPOINTS.c
_request, _part, _action, _statistics = REQUESTS.c, ACKNOWLEDGEMENTS.c, ACTIONS.c, STATISTICS.c

_now = parameter("now", _job.seen_at.type)
_has_attempt = exists().where(_attempt.job_id == _job.job_id)
"""A job without attempts was removed, or its first registration was not completed."""

_begin = (
    update(JOBS.table)
    .where(given(_job.job_id))
    .values(version=_job.version + 1, seen_at=case((_job.seen_at > _now, _job.seen_at), else_=_now))
)
BEGIN = {False: _begin, True: _begin.where(_has_attempt)}
"""First statement of a transition, by whether the job must have an attempt."""
BEGIN_AND_READ = {
    is_known: statement.returning(*JOBS.columns, *JOB_FIGURES.columns) for is_known, statement in BEGIN.items()
}
JOB_AND_FIGURES = select(*JOBS.columns, *JOB_FIGURES.columns).where(given(_job.job_id))
DATED_LATER: dict[RecordTable[Any], Select[Any]] = {
    table: table.with_a_time_after(_now) for table in (ATTEMPTS, CHECKPOINTS, ACKNOWLEDGEMENTS, REQUESTS, ACTIONS)
}
"""Rows of a job with times in the future, from a clock that was ahead."""

VISIBLE_JOBS = select(*JOBS.columns).where(_has_attempt).order_by(_job.seen_at.desc())
DAG_IDS = select(JOB_DAGS.c.dag_id).distinct()
_of_dag = JOB_DAGS.alias("of_dag").c
DAG_IDS_BESIDE = DAG_IDS.where(
    JOB_DAGS.c.job_id.in_(select(_of_dag.job_id).where(_of_dag.dag_id == parameter("dag_id")))
)
_is_of_run = and_(
    _attempt.job_id == _job.job_id,
    # The coordinates are pairs of a name and a value: the Dag, the run, the task and the map index.
    json_text(_attempt.owner, "airflow", 0, 1) == parameter("dag_id"),
    json_text(_attempt.owner, "airflow", 1, 1) == parameter("run_id"),
)
# Few jobs have attempts of the Dag; only their attempts are read.
_is_of_dag = exists().where(JOB_DAGS.c.job_id == _job.job_id, JOB_DAGS.c.dag_id == parameter("dag_id"))
# The page of a run names the error of a job whose attempt may be one of the run.
_is_unreadable = and_(_attempt.job_id == _job.job_id, json_text(_attempt.owner, "airflow").is_(None))
JOBS_OF_RUN = (
    select(_job.job_id).where(_is_of_dag, exists().where(or_(_is_of_run, _is_unreadable))).order_by(_job.seen_at.desc())
)
VISIBLE_JOB = select(*JOBS.columns).where(given(_job.job_id), _has_attempt)


def _is_of_operator(rows: Any) -> ColumnElement[bool]:
    return and_(rows.job_id == _operator.job_id, rows.operator_id == _operator.operator_id)


_holds_epoch = and_(_is_of_operator(_attempt), _attempt.epoch == _operator.epoch)
_is_undiscarded = and_(_is_of_operator(_checkpoint), _checkpoint.discarded_at.is_(None))
_is_open = or_(*(_request.status == status for status in RequestStatus if status.is_open))
_is_to_all = is_of_job(_request)
_without_figures = [null().label(c.name) if c is _checkpoint.summary else c for c in CHECKPOINTS.columns]
_is_pending = _checkpoint.status == CheckpointStatus.PENDING
ROWS_OF_OPERATOR: tuple[RecordTable[Any], ...] = (OPERATORS, ATTEMPTS, CHECKPOINTS, STATISTICS, REQUESTS)
_CONDITIONS: dict[RecordTable[Any], ColumnElement[bool]] = {
    ATTEMPTS: _holds_epoch,
    CHECKPOINTS: _is_undiscarded,
    STATISTICS: and_(_is_pending, _is_of_operator(_statistics)),
    REQUESTS: and_(
        _is_pending,
        _request.job_id == _operator.job_id,
        or_(_request.operator_id == _operator.operator_id, _is_to_all),
        _is_open,
    ),
}


def _columns_of(tables: Iterable[RecordTable[Any]]) -> list[Any]:
    return [column for table in tables for column in (_without_figures if table is CHECKPOINTS else table.columns)]


def _joined(source: FromClause, tables: Iterable[RecordTable[Any]]) -> FromClause:
    """Return a source that has an operator, joined with rows of the operator."""
    return reduce(lambda joined, table: joined.outerjoin(table.table, _CONDITIONS[table]), tables, source)


_is_given_operator = and_(given(_operator.job_id), given(_operator.operator_id))
OPERATOR = (
    select(*_columns_of(ROWS_OF_OPERATOR))
    .select_from(_joined(OPERATORS.table, ROWS_OF_OPERATOR[1:]))
    .where(_is_given_operator)
)
"""
An operator with the attempt that holds its epoch and its undiscarded checkpoints; only few are retained.

With each pending checkpoint come the statistics and the open requests of the operator, which its end changes, and the
open requests to the whole job, with which its stages may have to stop.
"""


@cache
def begin_with_operator(tables: tuple[RecordTable[Any], ...], *, is_trigger: bool) -> Select[Any]:
    """
    Return the first statement of a transition on PostgreSQL that also reads the rows of an operator in some tables.

    PostgreSQL reads these as they were at the start of the statement, which may have waited for the lock afterwards.
    The version of the job at the start, the last column but one, tells whether they are current: the version under the
    lock is then its successor. The last column is the checkpoint of a trigger request that is repeated.
    """
    begun = BEGIN_AND_READ[True].cte("begun")
    source = _joined(begun.outerjoin(OPERATORS.table, _is_given_operator), tables[1:])
    version = select(_job.version).where(given(_job.job_id)).scalar_subquery()
    known = select(_checkpoint.checkpoint_id).where(given(_checkpoint.job_id), given(_checkpoint.request_key))
    repeated = known.scalar_subquery() if is_trigger else null()
    return select(*begun.c, *_columns_of(tables), version.label("before"), repeated.label("repeated")).select_from(
        source
    )


LAST_ATTEMPT_OF_RUN = (
    select(*ATTEMPTS.columns)
    .where(
        given(_attempt.job_id),
        given(_attempt.operator_id),
        json_text(_attempt.owner, "run_key") == parameter("run_key"),
    )
    .order_by(_attempt.epoch.desc())
    .limit(1)
)
NEWEST_ATTEMPTS = select(*ATTEMPTS.columns).join(OPERATORS.table, _holds_epoch).where(given(_attempt.job_id))
"""The attempts that hold the epochs of the operators of a job."""
ATTEMPT_BY_KEY = select(*ATTEMPTS.columns).where(given(_attempt.job_id), given(_attempt.attempt_key))

CHECKPOINT_BY_REQUEST = select(*CHECKPOINTS.columns).where(given(_checkpoint.job_id), given(_checkpoint.request_key))
SUMMARY_OF = select(_checkpoint.summary).where(given(_checkpoint.job_id), given(_checkpoint.checkpoint_id))
_completed = exists().where(
    given(_checkpoint.job_id), given(_checkpoint.operator_id), _checkpoint.completed_at.is_not(None)
)
HAS_EVER_COMPLETED = select(_completed)
HAS_COMPLETED = select(_completed.where(given(_checkpoint.generation)))


def is_own(checkpoint: Any) -> ColumnElement[bool]:
    """Return the condition that a checkpoint is not a savepoint of a user; see ``CheckpointRecord.is_restorable``."""
    own_types = [t.value for t in CheckpointType if not t.is_savepoint]
    return or_(
        json_text(checkpoint.properties, "snapshot_type").in_(own_types),
        json_text(checkpoint.properties, "unclaimed").in_(TRUE),
    )


# A savepoint of a user changes no state, and its run may be another one than that of the state.
_is_in_state = and_(
    given(_checkpoint.job_id),
    _checkpoint.completed_at.is_not(None),
    _checkpoint.unusable_reason.is_(None),
    _checkpoint.run_key != "",
    is_own(_checkpoint),
)
_of_generation = and_(_is_in_state, given(_checkpoint.operator_id), given(_checkpoint.generation))
ADVANCED_RUNS = select(_checkpoint.run_key).where(_of_generation).distinct()
COMPLETED_AFTER = select(*CHECKPOINTS.columns).where(
    _of_generation, _checkpoint.checkpoint_id > parameter("checkpoint_id")
)


def last_checkpoints_of_runs(operator_id: OperatorId, generation: int) -> Select[Any]:
    """Return the query for the last checkpoint of each of the newest runs in the state of a generation."""
    last = func.max(_checkpoint.checkpoint_id)
    is_of_generation = and_(_checkpoint.operator_id == operator_id, _checkpoint.generation == generation)
    return (
        select(_checkpoint.run_key, last)
        .where(_is_in_state, is_of_generation)
        .group_by(_checkpoint.run_key)
        .order_by(last.desc())
        .limit(KNOWN_RUNS)
    )


_is_usable = and_(
    _checkpoint.status == CheckpointStatus.COMPLETED, _checkpoint.unusable_reason.is_(None), is_own(_checkpoint)
)
"""The condition ``CheckpointRecord.is_restorable`` on usable checkpoints, in SQL."""
_is_unconfirmed = and_(
    _checkpoint.status.in_([CheckpointStatus.PENDING, CheckpointStatus.ABORTED]),
    json_text(_checkpoint.properties, "unclaimed").in_(TRUE),
)
"""The condition ``CheckpointRecord.is_unconfirmed``, in SQL."""
# An expression, for which SQLite has no index: the one with the generation also contains the discarded checkpoints.
_is_restorable = and_(_is_undiscarded, _checkpoint.generation + 0 == _operator.generation, _is_usable)
LATEST_CHECKPOINT = (
    select(*CHECKPOINTS.columns)
    .join_from(OPERATORS.table, CHECKPOINTS.table, _is_restorable)
    .where(given(_operator.job_id), given(_operator.operator_id))
    .order_by(_checkpoint.checkpoint_id.desc())
    .limit(1)
)
"""The newest restorable checkpoint of an operator."""
# Without a subquery for the newest ones, which PostgreSQL would repeat for each operator while it has no statistics.
LATEST_CHECKPOINTS = (
    select(*JOBS.columns, *OPERATORS.columns, *CHECKPOINTS.columns)
    .select_from(JOBS.table)
    .outerjoin(OPERATORS.table, _operator.job_id == _job.job_id)
    .outerjoin(CHECKPOINTS.table, and_(_is_undiscarded, or_(_is_usable, _is_unconfirmed)))
    .where(given(_job.job_id), _has_attempt)
    .order_by(_operator.uid, _checkpoint.checkpoint_id.desc())
)
"""
A job with its operators and the checkpoints that ``newest_readable`` chooses from, newest first. Retention leaves few
of these.

One statement reads one moment.
"""
NEWEST_CHECKPOINT_OF_JOB = (
    select(*CHECKPOINTS.columns)
    .join_from(OPERATORS.table, CHECKPOINTS.table, _is_restorable)
    .where(given(_operator.job_id))
    .order_by(_checkpoint.completed_at.desc(), _checkpoint.checkpoint_id.desc())
    .limit(1)
)
"""The checkpoint of any operator that was completed last, of the restorable ones."""
_of_stage = ATTEMPTS.table.alias("of_stage").c
_has_stages = exists().where(given(_of_stage.job_id), not_(is_of_job(_of_stage)))
_is_failed_attempt = and_(
    given(_attempt.job_id),
    _attempt.status.in_([AttemptStatus.FAILED, AttemptStatus.FENCED]),
    # As ``JobView.attempts_of_stages``.
    or_(not_(is_of_job(_attempt)), not_(_has_stages)),
)
_is_failed_checkpoint = and_(
    given(_checkpoint.job_id),
    _checkpoint.status == CheckpointStatus.ABORTED,
    _checkpoint.failure_reason != CheckpointFailureReason.ATTEMPT_ENDED.value,
)
LAST_FAILED_ATTEMPTS = select(*ATTEMPTS.columns).where(
    _is_failed_attempt,
    _attempt.ended_at
    == select(func.max(_attempt.ended_at)).where(_is_failed_attempt).correlate(None).scalar_subquery(),
)
LAST_FAILED_CHECKPOINTS = select(*CHECKPOINTS.columns).where(
    _is_failed_checkpoint,
    _checkpoint.ended_at
    == select(func.max(_checkpoint.ended_at)).where(_is_failed_checkpoint).correlate(None).scalar_subquery(),
)
"""The failures of a job at the time of its last one."""
HAS_ATTEMPTS = select(exists().where(given(_attempt.job_id)))
ADD_DAG = insert(JOB_DAGS).from_select(
    [column.name for column in JOB_DAGS.c],
    select(*(parameter(column.name, column.type) for column in JOB_DAGS.c)).where(
        ~exists().where(*map(given, JOB_DAGS.c))
    ),
)
"""Adds a Dag of an operator unless it is known; the lock on the job's row keeps others from adding it at once."""
OWNERS_OF_OPERATOR = select(_attempt.owner).where(given(_attempt.job_id), given(_attempt.operator_id))


def remove_other_dags(operator_id: OperatorId, kept: Iterable[str]) -> Delete:
    """Return the statement that removes the Dags of an operator except the given ones."""
    return remove(JOB_DAGS, JOB_DAGS.c.operator_id == operator_id, JOB_DAGS.c.dag_id.not_in(kept))


JOB_VERSION = select(_job.version, _job.seen_at).where(given(_job.job_id))
ACKNOWLEDGEMENTS_OF = select(*ACKNOWLEDGEMENTS.columns).where(given(_part.job_id), given(_part.checkpoint_id))
OPEN_REQUESTS = (
    select(*REQUESTS.columns)
    .where(given(_request.job_id), or_(given(_request.operator_id), _is_to_all), _is_open)
    .order_by(_request.requested_at, _request.request_key)
)

OPEN_ACTIONS = (
    select(*ACTIONS.columns)
    .where(given(_action.job_id), given(_action.operator_id), _action.ended_at.is_(None))
    .order_by(_action.requested_at, _action.request_key)
)
RECENT_ACTIONS = (
    select(*ACTIONS.columns)
    .where(given(_action.job_id))
    .order_by(_action.ended_at.is_not(None), _action.requested_at.desc(), _action.request_key.desc())
    .limit(RECENT)
)
"""The open actions on a job, which are few, and the newest ended ones."""

ALL_OPERATORS = select(*OPERATORS.columns).where(given(_operator.job_id)).order_by(_operator.uid)
ALL_ATTEMPTS = select(*ATTEMPTS.columns).where(given(_attempt.job_id)).order_by(_attempt.operator_id, _attempt.epoch)
# The join lets the database use the partial index of undiscarded rows, which begins with the job and the operator.
UNDISCARDED_CHECKPOINTS = (
    select(*CHECKPOINTS.columns)
    .join_from(OPERATORS.table, CHECKPOINTS.table, _is_undiscarded)
    .where(given(_operator.job_id))
)
ALL_OPEN_REQUESTS = (
    select(*REQUESTS.columns)
    .join_from(OPERATORS.table, REQUESTS.table, _is_of_operator(_request))
    .where(given(_operator.job_id), _is_open)
)
RECENT_REQUESTS = (
    select(*REQUESTS.columns)
    .where(given(_request.job_id))
    .order_by(_request.requested_at.desc(), _request.request_key.desc())
    .limit(RECENT)
)
ALL_STATISTICS = select(*STATISTICS.columns).where(given(_statistics.job_id)).order_by(_statistics.operator_id)


def page_of(page: CheckpointPage) -> Select[Any]:
    """Return the query for a page of the checkpoints of a job, newest first."""
    conditions = [given(_checkpoint.job_id)]
    if page.before is not None:
        conditions.append(_checkpoint.checkpoint_id < page.before)
    if page.operator_id is not None:
        conditions.append(_checkpoint.operator_id == page.operator_id)
    if page.status is not None:
        conditions.append(_checkpoint.status == page.status)
    query = select(*CHECKPOINTS.columns).where(*conditions)
    return query.order_by(_checkpoint.checkpoint_id.desc()).limit(page.limit)


NEWEST_CHECKPOINTS = page_of(CheckpointPage())


def runs_of(checkpoint_ids: Sequence[int]) -> Select[Any]:
    """Return the query for the runs of checkpoints of a job."""
    is_given = and_(given(_checkpoint.job_id), _checkpoint.checkpoint_id.in_(checkpoint_ids))
    return select(_checkpoint.run_key).where(is_given).distinct()


def count_in_state(generation: int, checkpoint_ids: Sequence[int]) -> Select[Any]:
    """Return the query for the number of those checkpoints that are in the state of a generation."""
    # Without the operator, for whose completed checkpoints SQLite would prefer an index with all of them.
    is_one = and_(_checkpoint.generation == generation, _checkpoint.checkpoint_id.in_(checkpoint_ids))
    return select(func.count()).where(_is_in_state, is_one)


def fails_after(checkpoint_ids: Sequence[int], time: datetime) -> Select[Any]:
    """Return the query for whether one of these checkpoints failed at a time or later."""
    is_later = and_(_is_failed_checkpoint, _checkpoint.ended_at >= time)
    return select(exists().where(is_later, _checkpoint.checkpoint_id.in_(checkpoint_ids)))


def discarded_checkpoints(wanted: EndedCheckpoints, limit: int | None, skipped: int) -> Select[Any]:
    """Return the query for the checkpoints of ``EndedCheckpoints.includes`` whose files were deleted, in this order."""
    conditions = [
        given(_checkpoint.job_id),
        _checkpoint.operator_id == wanted.operator_id,
        _checkpoint.discarded_at < wanted.before,
    ]
    if wanted.running_epoch is not None:
        conditions.append(_checkpoint.epoch != wanted.running_epoch)
    if wanted.witness_generation is not None:
        is_other = _checkpoint.generation != wanted.witness_generation
        conditions.append(or_(_checkpoint.completed_at.is_(None), is_other))
    # The order of the index, so that a batch reads no more rows than it has.
    query = select(_checkpoint.checkpoint_id).where(*conditions).order_by(_checkpoint.discarded_at)
    return query.limit(limit).offset(skipped or None)


def storage_bases(operator_id: OperatorId) -> Select[Any]:
    """Return the query for the checkpoint directories of the attempts of an operator."""
    return select(_attempt.storage_base).where(given(_attempt.job_id), _attempt.operator_id == operator_id).distinct()


def ended_attempts(wanted: EndedAttempts, limit: int | None) -> Select[Any]:
    """Return the query for the epochs of ended attempts, oldest first."""
    conditions = [
        given(_attempt.job_id),
        _attempt.operator_id == wanted.operator_id,
        _attempt.ended_at < wanted.before,
        _attempt.epoch.not_in(wanted.kept_epochs),
    ]
    if wanted.storage_base is not None:
        conditions.append(_attempt.storage_base == wanted.storage_base)
    return select(_attempt.epoch).where(*conditions).order_by(_attempt.epoch).limit(limit)


def ended_requests(operator_id: OperatorId, before: datetime, limit: int | None) -> Select[Any]:
    """Return the query for the keys of ended requests."""
    # The condition on requested_at is implied by the one on ended_at, but only requested_at has an index.
    conditions = (_request.requested_at < before, _request.ended_at < before, _request.operator_id == operator_id)
    return select(_request.request_key).where(given(_request.job_id), *conditions).limit(limit)


def remove(table: Table, *conditions: ColumnElement[bool]) -> Delete:
    """Return the statement that deletes rows of a job."""
    return delete(table).where(given(table.c.job_id), *conditions)
