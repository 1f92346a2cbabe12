"""
Routes for the contents of checkpoints: rows of DataFrame snapshots, and items of loops.

The same callers may read them as queryable state. Named values are not served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.requests import MessageRoute
from airflow_provider_statecheck.api.state_reads import StateGrantDep, preview_in_thread, read_in_thread
from airflow_provider_statecheck.api.state_routes import ERRORS, AsOfDep, json_answer
from airflow_provider_statecheck.api.task_routes import JobPath
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.queryable.job_contents import JobContents, StageContents, items_in, snapshot_in
from airflow_provider_statecheck.queryable.preview import preview
from airflow_provider_statecheck.state.reading.checkpoint_contents import (
    FinishedItems,
    HeldState,
    ReachedIteration,
    SnapshotContent,
    UnreadableContent,
)

router = APIRouter(prefix="/jobs/{job_id}", tags=["contents"], route_class=MessageRoute)

MAX_ROWS = 1_000
"""Maximum number of rows, or of items, of an answer."""
_ROWS_BYTES = 4 << 20

LimitQuery = Annotated[int, Query(ge=1, le=MAX_ROWS, description="Maximum number of rows or items")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAnswer:
    """A checkpoint of one operator."""

    uid: str
    checkpoint_id: int
    pointer: str
    completed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentsAnswer(StageAnswer):
    """What a checkpoint holds."""

    snapshots: tuple[SnapshotContent, ...]
    finished_items: tuple[FinishedItems, ...]
    iterations: tuple[ReachedIteration, ...]
    states: tuple[HeldState, ...]
    unreadable: tuple[UnreadableContent, ...]
    """What is damaged or missing, and is not in the other lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAnswer(StageAnswer):
    """First rows of a snapshot."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Name and Arrow type of each column; names may repeat."""
    rows: tuple[tuple[Any, ...], ...]
    """Values in the order of the columns."""
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsAnswer(StageAnswer):
    """A page of the finished items of a loop, in their order as text."""

    loop: str
    items: tuple[str, ...]
    following: int
    """Number of items after this page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReads:
    """Reads of one request."""

    contents: Callable[[], JobContents]
    chosen: dict[str, Any]
    """Arguments that choose the checkpoints: the id of the job, the uid of an operator, and the checkpoint to read."""

    async def answer(self, read: Callable[..., Any], **options: Any) -> Response:
        """Return what a read of the contents of the checkpoints, made in a thread, has found."""
        return await read_in_thread(lambda: self._read(read, **options))

    async def preview(self, answer: Callable[..., Any]) -> Response:
        """Return what a function makes of the checkpoints, whose rows another process decodes."""
        return await preview_in_thread(lambda: self._read(JobContents.read, answer=answer))

    def _read(self, read: Callable[..., Any], **options: Any) -> Response:
        return json_answer(read(self.contents(), **self.chosen, **options))


async def _job_reads(
    request: Request,
    job_id: JobPath,
    _: StateGrantDep,
    as_of: AsOfDep,
    uid: Annotated[str | None, Query(description="Only this operator")] = None,
) -> JobReads:
    chosen = {"job_id": JobId(job_id), "uid": uid, "as_of": as_of}
    return JobReads(contents=request.app.state.job_contents, chosen=chosen)


JobReadsDep = Annotated[JobReads, Depends(_job_reads)]


@router.get("/snapshots", response_model=tuple[ContentsAnswer, ...], responses=ERRORS)
async def contents(reads: JobReadsDep) -> Response:
    """Return what the latest checkpoint of each operator holds: snapshots, finished items, iterations and states."""
    return await reads.answer(_listings)


@router.get("/snapshots/{name:path}", response_model=RowsAnswer, responses=ERRORS)
async def rows(
    name: Annotated[str, Path(description="Name of the snapshot", openapi_examples=examples.SNAPSHOT_NAME)],
    reads: JobReadsDep,
    scope: Annotated[
        str | None,
        Query(
            description="Items of the loops around the snapshot, if several have the name; empty for none",
            openapi_examples=examples.SNAPSHOT_SCOPE,
        ),
    ] = None,
    column: Annotated[list[str] | None, Query(description="Name of a column, once per column; by default all")] = None,
    limit: LimitQuery = 20,
) -> Response:
    """Return the first rows of a snapshot, up to 4 MiB; the whole snapshot is read with read_snapshot."""

    def answer(stages: tuple[StageContents, ...]) -> RowsAnswer:
        stage, reader = snapshot_in(stages, name, scope, column)
        found = preview(reader, limit, _ROWS_BYTES)
        return RowsAnswer(
            **_checkpoint_of(stage), name=name, columns=found.columns, rows=found.rows, has_more=found.has_more
        )

    return await reads.preview(answer)


@router.get("/items", response_model=ItemsAnswer, responses=ERRORS)
async def items(
    reads: JobReadsDep,
    loop: Annotated[str, Query(description="Name of the loop", openapi_examples=examples.LOOP_NAME)],
    after: Annotated[str | None, Query(description="Last item of the previous page")] = None,
    limit: LimitQuery = 100,
) -> Response:
    """Return finished items of a loop, in pages."""

    def answer(stages: tuple[StageContents, ...]) -> ItemsAnswer:
        stage, page = items_in(stages, loop, after=after, limit=limit)
        return ItemsAnswer(**_checkpoint_of(stage), loop=page.loop, items=page.items, following=page.following)

    return await reads.answer(JobContents.read, answer=answer)


def _listings(contents: JobContents, **chosen: Any) -> tuple[ContentsAnswer, ...]:
    return tuple(map(_contents, contents.stages(**chosen, lists=True)))


def _contents(stage: StageContents) -> ContentsAnswer:
    # Named values are not served.
    names = ("snapshots", "finished_items", "iterations", "states", "unreadable")
    return ContentsAnswer(**_checkpoint_of(stage), **{name: getattr(stage.listing, name) for name in names})


def _checkpoint_of(stage: StageContents) -> dict[str, Any]:
    return {field.name: getattr(stage, field.name) for field in fields(StageAnswer)}
