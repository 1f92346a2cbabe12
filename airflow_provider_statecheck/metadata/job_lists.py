"""
Lists of all jobs, which go on without the values that cannot be read, and their queries.

A page of the list takes two statements: the jobs with their figures and the numbers of jobs by status, and the Dags of
these jobs. The first one finds the jobs that match the filter once, for the page and for the numbers. It looks at the
checkpoints of the jobs on the page only, and at the operators of all jobs only if the reader may not read all Dags.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, Row, Select, and_, case, exists, false, func, not_, or_, select
from sqlalchemy.engine import Connection

from airflow_provider_statecheck.checkpoint.ids import TEST_NAMESPACE
from airflow_provider_statecheck.checkpoint.job_list import (
    JobList,
    JobOverview,
    JobSort,
    JobsPage,
    ListedStatus,
    ascii_lower,
    rank_of,
)
from airflow_provider_statecheck.checkpoint.records import JobRecord
from airflow_provider_statecheck.exceptions import CorruptRowError, InvalidConfigurationError
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.statements import is_own
from airflow_provider_statecheck.metadata.tables import (
    ATTEMPTS,
    CHECKPOINTS,
    JOB_DAGS,
    JOB_FIGURES,
    JOBS,
    OPERATORS,
    is_of_job,
)

log = logging.getLogger(__name__)

_job, _dag, _operator, _attempt = JOBS.c, JOB_DAGS.c, OPERATORS.c, ATTEMPTS.c

_VALUES: dict[JobSort, ColumnElement[Any]] = {
    JobSort.NAME: _job.name,
    JobSort.COMPLETED_AT: _job.completed_at,
    JobSort.SIZE: _job.full_size_bytes,
    JobSort.STATUS: case({status.value: rank_of(status) for status in ListedStatus}, value=_job.status),
    JobSort.FAILED_AT: _job.failed_at,
}
_SHOWN = (_job.job_id, _job.name, _job.seen_at, *JOB_FIGURES.columns)
_NOT_SHOWN = ("sort_value", "counted_status", "counted_jobs")


_UNKNOWN = datetime.fromtimestamp(0, UTC)
_STAND_INS: dict[str, Any] = {
    "job_id": "?",
    "version": 0,
    "next_checkpoint_id": 1,
    "seen_at": _UNKNOWN,
    "created_at": _UNKNOWN,
    "status": ListedStatus.FAILED,
}
"""What lists show for values that cannot be read: the id of a job for its name, and nothing for other figures."""


def listed_jobs(connection: Connection) -> tuple[JobRecord, ...]:
    """Return all jobs, also those whose rows cannot be read; the calls of these name the error."""
    found = []
    for row in connection.execute(statements.VISIBLE_JOBS):
        values, problem = _readable(dict(row._mapping))
        if problem is not None:
            log.warning("Listing a job by what can be read of its database row: %s", problem)
        found.append(JOBS.read([values[name] for name in JOBS.names]))
    return tuple(found)


def job_list(connection: Connection, page: JobsPage) -> JobList:
    """Return a page of the list of jobs."""
    shown, following, counts = _page_of(connection, page)
    dags = _dags_of(connection, [row.job_id for row in shown if isinstance(row.job_id, str)])
    jobs = tuple(_overview(row, dags[row.job_id]) for row in shown)
    return JobList(jobs=jobs, counts=counts, following=following)


def _page_of(connection: Connection, page: JobsPage) -> tuple[Sequence[Row[Any]], str | None, dict[ListedStatus, int]]:
    """
    Return the rows of a page, the position after it, and the numbers of jobs by status.

    The page ends with a row that is a position, and is longer if need be.
    """
    limit = page.limit
    while True:
        # One more row shows whether there is another page.
        found = connection.execute(_page_query(page, limit + 1)).all()
        rows, counts = [row for row in found if row.job_id is not None], _counts(found)
        if len(rows) <= limit:
            return rows, None, counts
        for end in range(page.limit, len(rows)):
            following = _position_after(page, rows[end - 1])
            if following is not None:
                return rows[:end], following, counts
        limit += page.limit


def _position_after(page: JobsPage, row: Row[Any]) -> str | None:
    try:
        return replace(page, after=page.following(row.sort_value, row.name)).after
    except (InvalidConfigurationError, TypeError):
        return None  # a value that cannot be read


def _page_query(page: JobsPage, limit: int) -> Select[Any]:
    """Return the query for the first jobs of a page, with the number of jobs of each status in the rows of its jobs."""
    # Databases compute a table of this kind once if a statement uses it twice.
    matching = select(*_SHOWN, _VALUES[page.sort].label("sort_value")).where(*_conditions(page)).cte("matching").c
    counted = select(matching.status, func.count().label("jobs")).group_by(matching.status).subquery("counted").c
    is_on_page = (
        _after(page, matching) if page.status is None else [*_after(page, matching), _is_listed(matching, page.status)]
    )
    job = select(*matching).where(*is_on_page).order_by(*_order(page, matching)).limit(limit).subquery("shown")
    # A status of no job on the page is in a row of its own.
    joined = counted.status.table.outerjoin(job, job.c.status == counted.status)
    columns = (
        counted.status.label("counted_status"),
        counted.jobs.label("counted_jobs"),
        *job.c,
        *_details(page, job.c),
    )
    return select(*columns).select_from(joined).order_by(job.c.job_id.is_(None), *_order(page, job.c))


def _order(page: JobsPage, job: Any) -> tuple[ColumnElement[Any], ...]:
    return job.sort_value.is_(None), job.sort_value.desc() if page.descending else job.sort_value, job.name


def _is_listed(job: Any, status: ListedStatus) -> ColumnElement[bool]:
    if status is not ListedStatus.FAILED:
        return cast("ColumnElement[bool]", job.status == status)
    # A status that cannot be read is listed and counted as a failure.
    return cast("ColumnElement[bool]", job.status.not_in([each for each in ListedStatus if each is not status]))


def _details(page: JobsPage, job: Any) -> tuple[ColumnElement[Any], ...]:
    is_shown = and_(_operator.job_id == job.job_id, _is_stage(), _has_attempts())
    stages = select(func.count()).where(is_shown).scalar_subquery()
    # A listed job without stages has the coordinator of a program.
    count = func.coalesce(func.nullif(stages, 0), 1)
    # Readers of some Dags do not see such jobs.
    is_of_unknown_dag = _is_of_unknown_dag(job) if page.readable_dag_ids is None else false()
    return (
        count.label("operators"),
        is_of_unknown_dag.label("is_of_unknown_dag"),
        _earlier_size(job).label("earlier_size_bytes"),
    )


def _earlier_size(job: Any) -> ColumnElement[Any]:
    newest, earlier = CHECKPOINTS.table.alias("newest"), CHECKPOINTS.table.alias("earlier")
    is_earlier = or_(
        earlier.c.completed_at < newest.c.completed_at,
        and_(earlier.c.completed_at == newest.c.completed_at, earlier.c.checkpoint_id < newest.c.checkpoint_id),
    )
    is_of_operator = and_(
        earlier.c.job_id == newest.c.job_id,
        earlier.c.operator_id == newest.c.operator_id,
        earlier.c.generation == newest.c.generation,
        # Implied by the next condition, but a range of the index.
        earlier.c.completed_at <= newest.c.completed_at,
    )
    query = select(earlier.c.full_size_bytes).join_from(newest, earlier, and_(is_of_operator, is_earlier))
    query = query.where(newest.c.job_id == job.job_id, newest.c.checkpoint_id == job.checkpoint_id, is_own(earlier.c))
    order = (earlier.c.completed_at.desc(), earlier.c.checkpoint_id.desc())
    return query.order_by(*order).limit(1).scalar_subquery()


def _conditions(page: JobsPage) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [_job.status.is_not(None)]
    if not page.with_test_jobs:
        # LIKE ignores the case of letters on SQLite.
        conditions.append(func.substr(_job.name, 1, len(TEST_NAMESPACE)) != TEST_NAMESPACE)
    if page.name is not None:
        # A database lowers either the ASCII letters only or all, according to its locale.
        forms = (ascii_lower(page.name), page.name.lower())
        found = (func.lower(_job.name).contains(text, autoescape=True) for text in forms)
        conditions.append(or_(*found))
    if page.dag_id is not None:
        conditions.append(exists().where(_dag.job_id == _job.job_id, _dag.dag_id == page.dag_id))
    if page.readable_dag_ids is not None:
        is_hidden = exists().where(_dag.job_id == _job.job_id, _dag.dag_id.not_in(page.readable_dag_ids))
        conditions += (not_(is_hidden), not_(_is_of_unknown_dag(_job)))
    return conditions


def _is_of_unknown_dag(job: Any) -> ColumnElement[bool]:
    """Return the condition of ``job_list.is_of_unknown_dag`` in SQL."""
    other = JOB_DAGS.alias("of_operator").c
    is_owned = exists().where(other.job_id == _operator.job_id, other.operator_id == _operator.operator_id)
    # In this order: nearly all operators have a Dag, and need no look at their attempts.
    has_unowned_operator = exists().where(_operator.job_id == job.job_id, _is_stage(), not_(is_owned), _has_attempts())
    has_dag = exists().where(_dag.job_id == job.job_id)
    # Most jobs are named after their Dag, and need no look at their operators.
    return or_(not_(has_dag), not_(or_(_is_named_after_a_dag(job), not_(has_unowned_operator))))


def _is_named_after_a_dag(job: Any) -> ColumnElement[bool]:
    prefix = func.substr(job.name, 1, func.length(_dag.dag_id) + 1)
    return exists().where(_dag.job_id == job.job_id, prefix == _dag.dag_id + "/")


def _is_stage() -> ColumnElement[bool]:
    return not_(is_of_job(_operator))


def _has_attempts() -> ColumnElement[bool]:
    # A removed job leaves the counters of its operators.
    return exists().where(_attempt.job_id == _operator.job_id, _attempt.operator_id == _operator.operator_id)


def _after(page: JobsPage, job: Any) -> list[ColumnElement[bool]]:
    if page.position is None:
        return []
    (last, name), value = page.position, job.sort_value
    if last is None:
        return [value.is_(None), job.name > name]
    is_beyond = value < last if page.descending else value > last
    return [or_(is_beyond, and_(value == last, job.name > name), value.is_(None))]


def _dags_of(connection: Connection, job_ids: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for job_id, dag_id in connection.execute(
        select(_dag.job_id, _dag.dag_id).where(_dag.job_id.in_(job_ids)).distinct()
    ):
        if isinstance(dag_id, str):
            found[job_id].append(dag_id)
    return found


def _counts(rows: Iterable[Row[Any]]) -> dict[ListedStatus, int]:
    counts: dict[ListedStatus, int] = defaultdict(int)
    for status, count in {(row.counted_status, row.counted_jobs) for row in rows}:
        counts[status if isinstance(status, ListedStatus) else ListedStatus.FAILED] += count
    return dict(counts)


def _overview(row: Row[Any], dag_ids: list[str]) -> JobOverview:
    values, problem = _readable({name: value for name, value in row._mapping.items() if name not in _NOT_SHOWN})
    if not isinstance(values["earlier_size_bytes"], int):
        values["earlier_size_bytes"] = None
    return JobOverview(**values, dag_ids=tuple(sorted(dag_ids)), problem=None if problem is None else str(problem))


def _readable(values: Mapping[str, Any]) -> tuple[dict[str, Any], CorruptRowError | None]:
    """
    Return values of the row of a job with stand-ins for those that cannot be read, and the error of the first one.
    """
    bad = [*JOBS.bad_columns(values), *JOB_FIGURES.bad_columns(values)]
    shown = {name: _STAND_INS.get(name) for name in bad}
    if "name" in bad:
        shown["name"] = str(shown.get("job_id", values["job_id"]))
    return {**values, **shown}, JOBS.problem(values) or JOB_FIGURES.problem(values)
