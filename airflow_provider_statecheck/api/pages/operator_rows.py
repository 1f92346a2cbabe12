"""Operators of jobs in a table: status, newest checkpoint and last failure, filtered and sorted."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query

from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, OperatorId
from airflow_provider_statecheck.checkpoint.in_place_restore import waiting_in
from airflow_provider_statecheck.checkpoint.job_list import (
    Failure,
    ListedStatus,
    failure_of_attempt,
    failure_of_checkpoint,
    rank_of,
    status_of,
)
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    InPlaceRestore,
    JobRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.retention import silent_since
from airflow_provider_statecheck.checkpoint.store import JobView

OPERATORS_ON_PAGE = 50
"""Number of operators on a page of the table."""
RETRY_DELAY = timedelta(hours=1)
"""How long after a failure a page waits for the retry."""

Record = TypeVar("Record", AttemptRecord, CheckpointRecord)
Coordinates = Collection[tuple[str, str]]
"""Coordinates of a task or a run, as in the owner of an attempt; empty for all."""


class OperatorSort(StrEnum):
    """Order of the table."""

    STATUS = "status"
    NAME = "name"
    COMPLETED_AT = "completed_at"
    SIZE = "size"
    FAILED_AT = "failed_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """One operator in the table."""

    job: JobRecord
    record: OperatorRecord
    attempt: AttemptRecord | None
    """Newest attempt; ``None`` if its row is removed."""
    newest: CheckpointRecord | None
    """Newest checkpoint that a retry restores."""
    failure: Failure | None
    """Last failure of an attempt or checkpoint whose row is retained."""
    in_place_restore: InPlaceRestore | None
    """Savepoint of the job that the next attempt restores instead; ``None`` if no user wants this."""
    silent_since: datetime | None
    """Last call of the newest attempt, if it is open but has been silent for so long that ``gc`` may close it."""

    @property
    def status(self) -> str:
        """Return the status of the newest attempt."""
        return "idle" if self.attempt is None else self.attempt.status.value

    @property
    def is_stage(self) -> bool:
        """Return whether a stage runs the operator, in contrast to the coordinator of aligned checkpoints."""
        return self.record.operator_id != ALIGNED_OPERATOR_ID

    @property
    def next_restore(self) -> int | None:
        """Return the checkpoint that a retry restores: the one that a user chose, or the newest one."""
        newest = None if self.newest is None else self.newest.checkpoint_id
        return newest if self.record.next_restore is None else self.record.next_restore

    @property
    def failed_attempt(self) -> AttemptRecord | None:
        """Return the newest attempt, if it failed."""
        return self.attempt if self.attempt is not None and self.attempt.status is AttemptStatus.FAILED else None

    def is_working(self, now: datetime) -> bool:
        """Return whether an attempt gives signs of life, or failed so recently that a retry may follow."""
        if self.status == AttemptStatus.RUNNING:
            return self.silent_since is None
        failed = self.failed_attempt
        return failed is not None and failed.ended_at is not None and now - failed.ended_at < RETRY_DELAY


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsQuery:
    """Filter, order and position of the table in the address of its page."""

    name: Annotated[str, Query(description="Only operators whose names contain this text")] = ""
    sort: Annotated[OperatorSort, Query(description="Order of the operators")] = OperatorSort.STATUS
    descending: Annotated[bool, Query(description="Whether the order is reversed")] = False
    page: Annotated[int, Query(ge=1, le=10**9, description="Number of the page, from 1")] = 1

    def table(self, rows: Iterable[OperatorRow]) -> OperatorsTable:
        """Return a page of the table of operators; those without a value to sort by come last."""
        found = [row for row in rows if self.name.casefold() in row.record.uid.casefold()]
        found.sort(key=lambda row: (_name(row), row.job.name))
        valued = [(value, row) for row in found if (value := _value(row, self.sort)) is not None]
        valued.sort(key=lambda pair: pair[0], reverse=self.descending)
        ordered = [row for _, row in valued] + [row for row in found if _value(row, self.sort) is None]
        begin = (self.page - 1) * OPERATORS_ON_PAGE
        return OperatorsTable(query=self, rows=tuple(ordered[begin : begin + OPERATORS_ON_PAGE]), counts=_counts(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsTable:
    """A page of the table of operators."""

    query: OperatorsQuery
    rows: tuple[OperatorRow, ...]
    counts: dict[str, int]
    """Number of operators that match the filter, by status."""

    @property
    def count(self) -> int:
        """Return the number of operators that match the filter."""
        return sum(self.counts.values())

    @property
    def has_more(self) -> bool:
        """Return whether operators follow on another page."""
        return self.query.page * OPERATORS_ON_PAGE < self.count


class ByOperator(Generic[Record]):
    """Rows of a job by their operator, in their order; each is looked at several times."""

    def __init__(self, records: Iterable[Record]) -> None:
        found = defaultdict[OperatorId, list[Record]](list)
        for record in records:
            found[record.operator_id].append(record)
        self._found: dict[OperatorId, tuple[Record, ...]] = {key: tuple(rows) for key, rows in found.items()}

    def __getitem__(self, operator_id: OperatorId) -> tuple[Record, ...]:
        return self._found.get(operator_id, ())


def operator_rows(view: JobView, task: Coordinates = ()) -> tuple[OperatorRow, ...]:
    """
    Return the operators of a job.

    :param task: Only operators with an attempt of this task or run are included.
    """
    attempts, checkpoints = ByOperator(view.attempts), ByOperator(view.checkpoints)
    shown = {a.operator_id for a in view.attempts if is_of(a.owner, task)}
    included = (each for each in view.operators if not task or each.operator_id in shown)
    return tuple(_row(view, o, attempts[o.operator_id], checkpoints[o.operator_id]) for o in included)


def is_of(owner: AttemptOwner, task: Coordinates) -> bool:
    """Return whether an attempt belongs to a task or a run, by its coordinates."""
    return bool(task) and {*task} <= {*owner.airflow}


def is_restorable(checkpoint: CheckpointRecord, generation: int | None) -> bool:
    """Return whether the next attempt of an operator with a generation can restore a checkpoint."""
    is_usable = checkpoint.is_restorable and checkpoint.unusable_reason is None
    return is_usable and checkpoint.generation == generation


def _row(
    view: JobView,
    operator: OperatorRecord,
    attempts: Sequence[AttemptRecord],
    checkpoints: Sequence[CheckpointRecord],
) -> OperatorRow:
    newest = (c for c in reversed(checkpoints) if is_restorable(c, operator.generation))
    found = (*map(failure_of_attempt, attempts), *map(failure_of_checkpoint, checkpoints))
    return OperatorRow(
        job=view.job,
        record=operator,
        attempt=attempts[-1] if attempts else None,
        newest=next(newest, None),
        failure=max((each for each in found if each is not None), default=None),
        in_place_restore=waiting_in(view, operator),
        silent_since=silent_since(attempts[-1], checkpoints, view.read_at) if attempts else None,
    )


def _value(row: OperatorRow, sort: OperatorSort) -> Any:
    if sort is OperatorSort.NAME:
        return _name(row)
    if sort is OperatorSort.STATUS:
        return rank_of(_listed(row))
    if sort is OperatorSort.FAILED_AT:
        return row.failure and row.failure[0]
    if row.newest is None:
        return None
    return row.newest.full_size_bytes if sort is OperatorSort.SIZE else row.newest.completed_at


def _name(row: OperatorRow) -> list[str | int]:
    # Mapped instances in the order of their indexes: load[2] before load[10]. Texts and numbers alternate.
    parts = re.split(r"([0-9]+)", row.record.uid)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _listed(row: OperatorRow) -> ListedStatus:
    return status_of(() if row.attempt is None else (row.attempt.status,))


def _counts(rows: Iterable[OperatorRow]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.status] += 1
    return dict(sorted(counts.items()))
