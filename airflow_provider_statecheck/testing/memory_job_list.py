"""List of jobs computed from the views of all jobs, for the in-memory store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from operator import attrgetter

from airflow_provider_statecheck.checkpoint.ids import is_test_job
from airflow_provider_statecheck.checkpoint.job_list import (
    JobList,
    JobOverview,
    JobSort,
    JobsPage,
    SortValue,
    ascii_lower,
    counts_as_newest,
    failure_of_attempt,
    failure_of_checkpoint,
    rank_of,
    status_of,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobView

_VALUES: dict[JobSort, Callable[[JobOverview], SortValue]] = {
    JobSort.NAME: attrgetter("name"),
    JobSort.COMPLETED_AT: attrgetter("completed_at"),
    JobSort.SIZE: attrgetter("full_size_bytes"),
    JobSort.STATUS: lambda overview: rank_of(overview.status),
    JobSort.FAILED_AT: attrgetter("failed_at"),
}


def job_list(views: Iterable[JobView], page: JobsPage) -> JobList:
    """Return a page of the list of jobs."""
    matching = [overview for overview in map(overview_of, views) if _matches(overview, page)]
    shown = [overview for overview in matching if page.status in (None, overview.status)]
    remaining = _after_position(_sorted(shown, page), page)
    jobs = tuple(remaining[: page.limit])
    following = page.following(_VALUES[page.sort](jobs[-1]), jobs[-1].name) if len(remaining) > page.limit else None
    return JobList(jobs=jobs, counts=dict(Counter(o.status for o in matching)), following=following)


def overview_of(view: JobView) -> JobOverview:
    """Return the overview of a job."""
    epochs = {operator.operator_id: operator.epoch for operator in view.operators}
    attempts = view.attempts_of_stages
    newest = _newest_checkpoint(view)
    failures = (*map(failure_of_attempt, attempts), *map(failure_of_checkpoint, view.checkpoints))
    last = max(filter(None, failures), default=None)
    return JobOverview(
        job_id=view.job.job_id,
        name=view.job.name,
        status=status_of(a.status for a in attempts if a.epoch == epochs[a.operator_id]),
        seen_at=view.job.seen_at,
        operators=len({a.operator_id for a in view.attempts}),
        dag_ids=view.dag_ids,
        is_of_unknown_dag=view.is_of_unknown_dag,
        checkpoint_id=None if newest is None else newest.checkpoint_id,
        completed_at=None if newest is None else newest.completed_at,
        full_size_bytes=None if newest is None else newest.full_size_bytes,
        earlier_size_bytes=None if newest is None else _earlier_size(view, newest),
        failed_at=None if last is None else last[0],
        failure=None if last is None else last[1],
    )


def _newest_checkpoint(view: JobView) -> CheckpointRecord | None:
    generations = {operator.operator_id: operator.generation for operator in view.operators}
    current = (c for c in view.checkpoints if counts_as_newest(c) and c.generation == generations[c.operator_id])
    return max(current, key=_completion_order, default=None)


def _earlier_size(view: JobView, newest: CheckpointRecord) -> int | None:
    earlier = (
        c
        for c in view.of_operator(newest.operator_id)
        if c.completed_at is not None
        and c.generation == newest.generation
        and (not c.properties.is_savepoint or c.properties.unclaimed)
        and _completion_order(c) < _completion_order(newest)
    )
    last = max(earlier, key=_completion_order, default=None)
    return None if last is None else last.full_size_bytes


def _completion_order(checkpoint: CheckpointRecord) -> tuple[datetime, int]:
    assert checkpoint.completed_at is not None
    return checkpoint.completed_at, checkpoint.checkpoint_id


def _matches(overview: JobOverview, page: JobsPage) -> bool:
    readable = page.readable_dag_ids
    return (
        (page.with_test_jobs or not is_test_job(overview.name))
        and (page.name is None or ascii_lower(page.name) in ascii_lower(overview.name))
        and (page.dag_id is None or page.dag_id in overview.dag_ids)
        and (readable is None or (not overview.is_of_unknown_dag and readable.issuperset(overview.dag_ids)))
    )


def _sorted(overviews: Iterable[JobOverview], page: JobsPage) -> list[JobOverview]:
    value = _VALUES[page.sort]
    by_name = sorted(overviews, key=lambda overview: overview.name)
    with_value = [overview for overview in by_name if value(overview) is not None]
    # Sorting is stable in both directions.
    ordered = sorted(with_value, key=value, reverse=page.descending)  # type: ignore[arg-type]
    return ordered + [overview for overview in by_name if value(overview) is None]


def _after_position(overviews: list[JobOverview], page: JobsPage) -> list[JobOverview]:
    if page.position is None:
        return overviews
    value, name = page.position

    def is_after(overview: JobOverview) -> bool:
        found = _VALUES[page.sort](overview)
        if found is None or value is None or found == value:
            return (found is None, overview.name) > (value is None, name)
        return (found < value) if page.descending else (found > value)  # type: ignore[operator]

    return [overview for overview in overviews if is_after(overview)]
