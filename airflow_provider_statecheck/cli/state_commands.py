"""Commands that show what checkpoints hold and their statistics, and that query state by key."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_statecheck.checkpoint.attempt_work import AttemptWork, work_of
from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.ids import is_uri
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.retention import custody_of
from airflow_provider_statecheck.checkpoint.statistics import statistics_of
from airflow_provider_statecheck.cli.output import (
    Exit,
    Row,
    command,
    operators_of,
    print_message,
    print_rows,
    print_values,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID, guarded_storage_opener, pointer_storage_opener
from airflow_provider_statecheck.hooks.transport import airflow_gateway, find_job, maintenance_gateway
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.checkpoint.statistics import CheckpointEntry, CheckpointStatsSnapshot, StatsSummary
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.gateway.time_travel import AsOf
    from airflow_provider_statecheck.queryable.answers import JsonRows
    from airflow_provider_statecheck.queryable.job_contents import JobContents, StageContents
    from airflow_provider_statecheck.queryable.queries import QueryableName, StateReply
    from airflow_provider_statecheck.queryable.reads import LocalStateClient
    from airflow_provider_statecheck.state.reading.checkpoint_contents import (
        CheckpointContents,
        HeldState,
        SnapshotContent,
    )
    from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
    from airflow_provider_statecheck.state.reading.state_reader import StateReader

Answer = TypeVar("Answer")

_PERCENT = 95
_VALUE_LENGTH = 200
"""Number of characters that are shown of a named value."""


@command
def state_show(args: Namespace) -> Exit:
    """List the states of a checkpoint, or show the rows of one state."""
    from airflow_provider_statecheck.state.reading.checkpoint_contents import CheckpointContents

    states = _states(args, args.pointer)
    if args.name is None:
        print_rows(
            [row for stage in states.stages for row in _state_rows(CheckpointContents(stage), states)], args.output
        )
        return Exit.DONE
    reader = _reader(args, states)
    _print_limited(reader.schema, (batch for table in reader.tables() for batch in table.to_batches()), args)
    return Exit.DONE


@command
def diff(args: Namespace) -> Exit:
    """Show the keys of a state that differ between two checkpoints; the exit status is 1 if there are any."""
    from airflow_provider_statecheck.state.reading.diff_states import StateDiff

    readers = [_reader(args, _states(args, pointer)) for pointer in (args.before, args.after)]
    difference = StateDiff(*readers)
    count = _print_limited(difference.schema, difference.batches(), args)
    return Exit.FOUND if count else Exit.DONE


@command
def stats(args: Namespace) -> Exit:
    """Show the statistics of each operator of a job, its last checkpoints, or what one checkpoint holds."""
    view = find_job(maintenance_gateway(), args.job)
    if args.checkpoint is not None:
        return _show_figures(view, args)
    operators = operators_of(view, args.uid)
    found = [statistics_of(view, operator) for operator in operators]
    if args.history:
        print_rows([_history_row(view, each, entry) for each in found for entry in each.history], args.output)
    else:
        working = [_work_row(work_of(view, operator.operator_id)) for operator in operators]
        rows = [_overview_row(each) for each in found]
        _print_overviews([{**row, **work} for row, work in zip(rows, working, strict=True)], args.output)
    return Exit.DONE


def _show_figures(view: JobView, args: Namespace) -> Exit:
    if args.history or args.uid is not None:
        raise InvalidConfigurationError(
            "Expected --checkpoint without --uid and --history, found them together; a checkpoint belongs to one "
            "operator."
        )
    checkpoint = maintenance_gateway().checkpoint(view.job.job_id, args.checkpoint)
    if checkpoint is None:
        raise CheckpointNotFoundError(
            f"Expected a checkpoint of job {view.job.name!r}, found no {args.checkpoint}; list them with 'checkpoints'."
        )
    if checkpoint.summary is None:
        print_message(f"Checkpoint {args.checkpoint} has no figures.")
    summary = checkpoint.summary or CheckpointSummary()
    print_rows(list(_figure_rows(summary)), args.output)
    for name, count in summary.left_out.items():
        print_message(
            f"{count} {name.replace('_', ' ')} are not shown, because the figures of a checkpoint are limited."
        )
    return Exit.DONE


def _figure_rows(summary: CheckpointSummary) -> Iterator[Row]:
    for step in summary.steps:
        yield _figure_row(
            "step",
            step.name,
            ", ".join(filter(None, (step.outcome, step.parts_text))),
            seconds=step.seconds,
            seconds_saved=step.seconds_saved,
            rows=step.rows,
            size=step.size_bytes,
        )
    for loop in summary.loops:
        total = "" if loop.total is None else f" of {loop.total}"
        unit = "iterations" if loop.is_iteration else "items"
        yield _figure_row("loop", loop.name, f"{loop.finished}{total} {unit} finished", seconds=loop.seconds)
    for source in summary.sources:
        yield _figure_row(
            "source", source.uid, f"{source.finished_splits} of {source.total_splits} parts of the input read"
        )
    for state in summary.states:
        name = "/".join(filter(None, (state.uid, state.name)))
        yield _figure_row(f"{state.kind} state", name, state.type, rows=state.keys, size=state.size_bytes)
    for commit in summary.open_commits:
        yield _figure_row("open commit", commit, "")


def _figure_row(
    kind: str,
    name: str,
    content: str,
    *,
    seconds: float | None = None,
    seconds_saved: float | None = None,
    rows: int | None = None,
    size: int | None = None,
) -> Row:
    return {
        "kind": kind,
        "name": name,
        "content": content,
        "seconds": seconds,
        "seconds_saved": seconds_saved,
        "rows": rows,
        "bytes": size,
    }


def _states(args: Namespace, pointer: str) -> CheckpointStates:
    from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
    from airflow_provider_statecheck.storage.pointers import pointer_uri

    return CheckpointStates.of(pointer_storage_opener(args.storage_conn_id, pointer)(pointer), pointer_uri(pointer))


def _reader(args: Namespace, states: CheckpointStates) -> StateReader:
    from airflow_provider_statecheck.state.reading.state_reader import StateReader

    return StateReader(states.storage, states.content(args.name, args.uid), namespaces=args.namespaces)


def _print_limited(schema: Any, batches: Iterator[Any], args: Namespace) -> int:
    """Print at most ``--limit`` rows and return their number."""
    from airflow_provider_statecheck.queryable.answers import first_rows

    return _print_first(first_rows(schema, batches, args.limit), args)


def _print_first(found: JsonRows, args: Namespace) -> int:
    names = _distinct([name for name, _ in found.columns])
    print_values([dict(zip(names, row, strict=True)) for row in found.rows], args.output)
    if found.has_more:
        print_message(f"There are more than {args.limit} rows; raise --limit to show them.")
    return len(found.rows)


def _state_rows(contents: CheckpointContents, states: CheckpointStates) -> Iterator[Row]:
    stage = f"{contents.checkpoint.document.uid}/" if states.document.members else ""
    yield from (_state_row(each, f"{stage}{each.uid}") for each in contents.states())


def _state_row(state: HeldState, function: str) -> Row:
    return {
        "function": function,
        "state": state.name,
        "kind": state.kind.value,
        "key": state.key,
        "type": state.type,
        "expires": state.expires,
    }


def _print_overviews(rows: list[Row], output: str) -> None:
    # A table with one column for each metric is too wide for a terminal; tables have one row for each metric instead.
    is_data = output in ("json", "yaml")
    print_rows(rows if is_data else [line for row in rows for line in _metric_rows(row)], output)


def _metric_rows(row: Row) -> list[Row]:
    metrics = {key: value for key, value in row.items() if key != "operator"}
    return [{"operator": row["operator"], "metric": key, "value": _text(key, metrics[key])} for key in metrics]


def _text(key: str, value: Any) -> Any:
    return readable_size(value) if key.endswith("_bytes") and value is not None else value


def _overview_row(statistics: CheckpointStatsSnapshot) -> Row:
    counts, completed, failed = statistics.counts, statistics.latest_completed, statistics.latest_failed
    return {
        "operator": statistics.uid,
        "total": counts.total,
        "in_progress": counts.in_progress,
        "completed": counts.completed,
        "failed": counts.failed,
        "restored": counts.restored,
        "savepoints": statistics.savepoints.completed,
        **_size_columns(statistics),
        **_seconds_columns(statistics.duration),
        "awaiting_discard": statistics.awaiting_discard,
        "latest_completed": None if completed is None else redact(completed.location),
        "latest_failed": None if failed is None else redact(failed.location),
        "failure": None if failed is None else _failure(failed),
        "failures": [f"{reason}: {count}" for reason, count in statistics.failures],
    }


def _work_row(work: AttemptWork) -> Row:
    share = work.checkpoint_share
    return {
        "computing": work.computing,
        "computing_since": work.computing_since,
        "rows_per_second": None if work.rows_per_second is None else round(work.rows_per_second),
        "checkpointing_percent": None if share is None else round(100 * share, 1),
        "transport": None if work.transport is None else work.transport.value,
        "last_answer": work.answered_at,
    }


def _size_columns(statistics: CheckpointStatsSnapshot) -> Row:
    average = statistics.state_size.average
    return {
        "average_new_bytes": None if average is None else round(average),
        "max_new_bytes": statistics.state_size.maximum,
        "max_bytes": statistics.full_size.maximum,
    }


def _seconds_columns(duration: StatsSummary) -> Row:
    return {
        "average_seconds": _seconds(duration.average),
        f"p{_PERCENT}_seconds": _seconds(duration.percentile(_PERCENT)),
        "max_seconds": _seconds(duration.maximum),
    }


def _history_row(view: JobView, statistics: CheckpointStatsSnapshot, entry: CheckpointEntry) -> Row:
    row = view.checkpoint(entry.checkpoint_id)
    custody = None if row is None else custody_of(view, row)
    return {
        "checkpoint": entry.checkpoint_id,
        "operator": statistics.uid,
        "kind": entry.kind,
        "status": entry.status if row is None else row.status.value,
        "attempt": entry.epoch,
        "triggered_at": entry.triggered_at,
        "seconds": None if entry.duration is None else entry.duration.total_seconds(),
        **_parts_of_duration(None if row is None else row.summary),
        "new_bytes": entry.state_size_bytes,
        "bytes": entry.full_size_bytes,
        "owner": None if custody is None else custody.owner.value,
        "safe_to_delete": None if custody is None else custody.is_safe_to_delete,
        "reason": None if custody is None else custody.because,
        "pointer": redact(entry.location),
        "failure": _failure(entry),
    }


def _parts_of_duration(summary: CheckpointSummary | None) -> Row:
    return {
        "snapshot_seconds": None if summary is None else summary.snapshot_seconds,
        "write_seconds": None if summary is None else summary.write_seconds,
        "commit_seconds": None if summary is None else summary.commit_seconds,
        "seconds_saved": None if summary is None else summary.seconds_saved,
    }


def _failure(entry: CheckpointEntry) -> str | None:
    if entry.failure_reason is None:
        return None
    late = (
        ""
        if entry.late_at is None
        else f" (acknowledged after {(entry.late_at - entry.triggered_at).total_seconds():.1f} s)"
    )
    return f"{entry.failure_reason}: {entry.failure_cause}{late}"


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


@command
def state_get(args: Namespace) -> Exit:
    """Show the value of one key: a row, or a row for each entry of a map."""
    from airflow_provider_statecheck.queryable.queries import JsonKeys, StateQuery, TextUserKey

    client, job_id = _client(args)
    query = StateQuery(
        job_id=job_id,
        name=args.name,
        keys=JsonKeys((tuple(args.key),)),
        namespace=args.namespace,
        user_key=None if args.user_key is None else TextUserKey(args.user_key),
        as_of=_as_of(args),
    )
    print_values(_value_rows(client.ask(query).present()), args.output)
    return Exit.DONE


@command
def state_names(args: Namespace) -> Exit:
    """List the queryable states of a job with their types."""
    client, job_id = _client(args)
    found = client.names(job_id, checkpoint_id=args.checkpoint, pointer=args.pointer, at=args.at)
    print_rows([_name_row(each) for each in found], args.output)
    return Exit.DONE


def _client(args: Namespace) -> tuple[LocalStateClient, JobId]:
    from airflow_provider_statecheck.queryable.reads import LocalStateClient

    gateway = airflow_gateway(DEFAULT_CONN_ID)
    job_id = find_job(gateway, args.job).job.job_id
    # The rows of the job, which its tasks wrote, say what is opened, and the user names at most a pointer.
    return LocalStateClient(gateway, guarded_storage_opener(args.storage_conn_id, args.pointer)), job_id


def _as_of(args: Namespace) -> AsOf:
    from airflow_provider_statecheck.gateway.time_travel import AsOf

    return AsOf(checkpoint_id=args.checkpoint, pointer=args.pointer, at=args.at)


def _value_rows(reply: StateReply) -> list[Row]:
    from airflow_provider_statecheck.queryable.answers import encode_entries
    from airflow_provider_statecheck.state.arrow.layout import VALUE
    from airflow_provider_statecheck.state.reading.state_reader import MAP_KEY, MAP_VALUE, key_column_names

    (entry,) = encode_entries(reply)
    names = key_column_names([field["name"] for field in reply.key.config["fields"]])
    key = dict(zip(names, [entry["key"]] if len(names) == 1 else entry["key"], strict=True))
    origin = {"checkpoint": reply.checkpoint_id, "completed_at": reply.completed_at}
    if reply.schema.key is None or reply.is_entry:
        return [{**key, VALUE: entry["value"], **origin}]
    return [{**key, MAP_KEY: user_key, MAP_VALUE: value, **origin} for user_key, value in _entries(entry["value"])]


def _entries(value: Any) -> list[Any]:
    """Return the entries of a map in its JSON form, an object or a list of pairs."""
    return list(value.items()) if isinstance(value, dict) else value


def _name_row(name: QueryableName) -> Row:
    user_key = "" if name.user_key_type is None else f"{name.user_key_type} to "
    return {
        "name": name.name,
        "function": name.uid,
        "kind": name.kind.value,
        "key": [f"{column} {kind}" for column, kind in name.key_columns],
        "type": f"{user_key}{name.value_type}",
        "expires": name.expires,
        "checkpoint": name.checkpoint_id,
        "pointer": redact(name.pointer),
        "refused": name.refused or None,
    }


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
        print_message(f"{counted(following, 'more item')}; raise --limit to show them.")
    return Exit.DONE


def _show_rows(args: Namespace) -> Exit:
    from airflow_provider_statecheck.queryable.answers import first_rows
    from airflow_provider_statecheck.queryable.job_contents import snapshot_in

    def rows_of(stages: tuple[StageContents, ...]) -> JsonRows:
        _, reader = snapshot_in(stages, args.name, args.scope)
        return first_rows(reader.schema, reader.batches(args.limit + 1), args.limit)

    _print_first(_read(args, rows_of), args)
    return Exit.DONE


def _read(args: Namespace, answer: Callable[[tuple[StageContents, ...]], Answer]) -> Answer:
    if is_uri(args.job):
        return answer(_stages(args))
    contents, job_id, as_of = _job_contents(args)
    return contents.read(job_id, answer, uid=args.uid, as_of=as_of)


def _stages(args: Namespace) -> tuple[StageContents, ...]:
    from airflow_provider_statecheck.queryable.job_contents import stages_at

    if not is_uri(args.job):
        contents, job_id, as_of = _job_contents(args)
        return contents.stages(job_id, uid=args.uid, as_of=as_of, lists=True)
    if args.checkpoint is not None:
        raise InvalidConfigurationError(
            "Expected --checkpoint with a job, found it with the URI of a checkpoint; omit it."
        )
    return stages_at(pointer_storage_opener(args.storage_conn_id, args.job), args.job, args.uid)


def _job_contents(args: Namespace) -> tuple[JobContents, JobId, AsOf]:
    from airflow_provider_statecheck.gateway.time_travel import AsOf
    from airflow_provider_statecheck.queryable.job_contents import JobContents

    gateway = airflow_gateway(DEFAULT_CONN_ID)
    contents = JobContents(gateway, guarded_storage_opener(args.storage_conn_id))
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
    parts = counted(snapshot.parts, "part")
    return [parts if snapshot.is_complete else f"{parts} so far"]


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
