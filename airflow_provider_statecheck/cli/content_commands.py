"""Command that shows what checkpoints hold: snapshots, items, iterations, values and states."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_statecheck.cli.output import Exit, Row, command, print_message, print_rows, print_values
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID, storage_opener
from airflow_provider_statecheck.hooks.maintenance import find_job
from airflow_provider_statecheck.hooks.transport import airflow_gateway
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.queryable.job_contents import JobContents, StageContents
    from airflow_provider_statecheck.queryable.queries import AsOf
    from airflow_provider_statecheck.state.reading.checkpoint_contents import HeldState, SnapshotContent

Answer = TypeVar("Answer")
_VALUE_LENGTH = 200
"""Number of characters that are shown of a named value."""


@command
def show(args: Namespace) -> Exit:
    """List what the checkpoints of a job, or one checkpoint, hold, or show the rows of a snapshot."""
    if args.items:
        return _show_items(args)
    return _show_contents(args) if args.name is None else _show_rows(args)


def _show_contents(args: Namespace) -> Exit:
    stages = _stages(args)
    print_rows([row for each in stages for row in _content_rows(each)], args.output)
    return Exit.FOUND if any(each.listing.unreadable for each in stages) else Exit.DONE


def _show_items(args: Namespace) -> Exit:
    rows, following = _read(args, lambda stages: _item_rows(stages, args.name, args.limit))
    print_values(rows, args.output)
    if following:
        print_message(f"There are {following} more items; raise --limit to show them.")
    return Exit.DONE


def _show_rows(args: Namespace) -> Exit:
    from airflow_provider_statecheck.queryable.answers import first_rows
    from airflow_provider_statecheck.queryable.job_contents import snapshot_in

    def rows_of(stages: tuple[StageContents, ...]) -> Any:
        _, reader = snapshot_in(stages, args.name, args.scope)
        return first_rows(reader.schema, reader.batches(args.limit + 1), args.limit)

    found = _read(args, rows_of)
    names = _distinct([name for name, _ in found.columns])
    print_values([dict(zip(names, row, strict=True)) for row in found.rows], args.output)
    if found.has_more:
        print_message(f"There are more than {args.limit} rows; raise --limit to show them.")
    return Exit.DONE


def _read(args: Namespace, answer: Callable[[tuple[StageContents, ...]], Answer]) -> Answer:
    if "://" in args.job:
        return answer(_stages(args))
    contents, job_id, as_of = _job_contents(args)
    return contents.read(job_id, answer, uid=args.uid, as_of=as_of)


def _stages(args: Namespace) -> tuple[StageContents, ...]:
    from airflow_provider_statecheck.queryable.job_contents import stages_at

    if "://" not in args.job:
        contents, job_id, as_of = _job_contents(args)
        return contents.stages(job_id, uid=args.uid, as_of=as_of, lists=True)
    if args.checkpoint is not None:
        raise InvalidConfigurationError(
            "Expected --checkpoint with a job, found it with the URI of a checkpoint; omit it."
        )
    return stages_at(storage_opener(args.storage_conn_id), args.job, args.uid)


def _job_contents(args: Namespace) -> tuple[JobContents, JobId, AsOf]:
    from airflow_provider_statecheck.queryable.job_contents import JobContents
    from airflow_provider_statecheck.queryable.queries import AsOf

    gateway = airflow_gateway(DEFAULT_CONN_ID)
    contents = JobContents(gateway, storage_opener(args.storage_conn_id))
    return contents, find_job(gateway, args.job).job.job_id, AsOf(checkpoint_id=args.checkpoint)


def _content_rows(stage: StageContents) -> Iterator[Row]:
    contents = stage.listing
    for each in contents.snapshots:
        yield _row(
            stage,
            "snapshot",
            "/".join(filter(None, (each.scope, each.name))),
            rows=each.rows,
            size=each.size_bytes,
            content=[*_parts(each), *(f"{name} {kind}" for name, kind in each.columns)],
            written_at=each.written_at,
        )
    for items in contents.finished_items:
        yield _row(stage, "items", items.loop, content=f"{items.count} finished")
    for reached in contents.iterations:
        end = ", converged" if reached.is_converged else ""
        yield _row(stage, "iteration", reached.loop, content=f"{reached.iteration}{end}")
    for name, value in contents.values.items():
        yield _row(stage, "value", name, content=f"{value!r:.{_VALUE_LENGTH}}")
    for state in contents.states:
        yield _row(stage, f"{state.kind} state", f"{state.uid}/{state.name}", content=_state_type(state))
    for unreadable in contents.unreadable:
        yield _row(stage, unreadable.kind, unreadable.name, content=f"unreadable: {unreadable.message}")


def _parts(snapshot: SnapshotContent) -> list[str]:
    if not snapshot.parts:
        return []
    return [f"{snapshot.parts} parts" if snapshot.is_complete else f"{snapshot.parts} parts so far"]


def _state_type(state: HeldState) -> str:
    key = "" if state.key is None else f"{state.key} to "
    queryable = "" if state.queryable_name is None else f", queryable as {state.queryable_name}"
    return f"{key}{state.type}{', expires' if state.expires else ''}{queryable}"


def _row(
    stage: StageContents,
    kind: str,
    name: str,
    *,
    rows: int | None = None,
    size: int | None = None,
    content: Any,
    written_at: Any = None,
) -> Row:
    return {
        "operator": stage.uid,
        "checkpoint": stage.checkpoint_id,
        "pointer": redact(stage.pointer),
        "kind": kind,
        "name": name,
        "rows": rows,
        "bytes": size,
        "content": content,
        "written_at": written_at,
    }


def _item_rows(stages: Sequence[StageContents], loop: str | None, limit: int) -> tuple[list[Row], int]:
    from airflow_provider_statecheck.queryable.job_contents import items_in

    if loop is not None:
        pages = [items_in(stages, loop, limit=limit)]
    else:
        pages = [(each, each.contents.items(name, limit=limit)) for each in stages for name in each.contents.loops]
    rows = [
        {"operator": stage.uid, "checkpoint": stage.checkpoint_id, "loop": page.loop, "item": item}
        for stage, page in pages
        for item in page.items
    ]
    following = sum(page.following for _, page in pages)
    return rows[:limit], following + len(rows[limit:])


def _distinct(names: Sequence[str]) -> list[str]:
    # Columns of a DataFrame may have equal names, keys of a row may not.
    return [name if name not in names[:i] else f"{name} ({i + 1})" for i, name in enumerate(names)]
