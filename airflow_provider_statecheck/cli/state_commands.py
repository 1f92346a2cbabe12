"""The commands that show the state in checkpoints."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.cli.exits import Exit, command, tell
from airflow_provider_statecheck.cli.printing import Row, print_rows
from airflow_provider_statecheck.hooks.maintenance import storage_opener

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates, FunctionState
    from airflow_provider_statecheck.state.reading.state_reader import StateReader
    from airflow_provider_statecheck.state.schemas import StateSchema


@command
def state(args: Namespace) -> Exit:
    """List the states of a checkpoint, or show rows of one of them."""
    states = _states(args, args.pointer)
    if args.name is None:
        functions = map(states.complete, states.functions())
        print_rows([row for each in functions for row in _schema_rows(each)], args.output)
        return Exit.DONE
    _print_some((batch for table in _reader(args, states).tables() for batch in table.to_batches()), args)
    return Exit.DONE


@command
def diff(args: Namespace) -> Exit:
    """Show the keys in which a state of two checkpoints differs; exit status 1 if there are any."""
    from airflow_provider_statecheck.state.reading.diff_states import StateDiff

    readers = [_reader(args, _states(args, pointer)) for pointer in (args.before, args.after)]
    count = _print_some(StateDiff(*readers).batches(), args)
    return Exit.FOUND if count else Exit.DONE


def _states(args: Namespace, pointer: str) -> CheckpointStates:
    from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
    from airflow_provider_statecheck.storage.pointer import pointer_uri

    return CheckpointStates.of(storage_opener(args.storage_conn_id)(pointer), pointer_uri(pointer))


def _reader(args: Namespace, states: CheckpointStates) -> StateReader:
    from airflow_provider_statecheck.state.reading.state_reader import StateReader, StateView

    return StateReader(states.storage, states.content(args.name, args.uid), StateView(namespaces=args.namespaces))


def _print_some(batches: Iterator[Any], args: Namespace) -> int:
    """Print as many rows as are wanted, and return how many that were."""
    rows = (row for batch in batches for row in batch.to_pylist())
    # One more, to know whether there are more; nothing beyond it is read.
    found = list(islice(rows, args.limit + 1))
    print_rows([{name: _plain(value) for name, value in row.items()} for row in found[: args.limit]], args.output)
    if len(found) > args.limit:
        tell(f"There are more rows than {args.limit}; raise --limit to see them.")
    return len(found[: args.limit])


def _schema_rows(function: FunctionState) -> Iterator[Row]:
    from airflow_provider_statecheck.state.serializers.description import describe

    key = None if function.schemas.key is None else describe(function.schemas.key)
    for schema in function.schemas.keyed:
        yield _schema_row(function.uid, key, schema)
    for schema in function.schemas.operator:
        yield _schema_row(function.uid, None, schema)


def _schema_row(uid: str, key: str | None, schema: StateSchema) -> Row:
    from airflow_provider_statecheck.state.serializers.description import describe

    of_map = "" if schema.key is None else f"{describe(schema.key)} to "
    return {
        "function": uid,
        "state": schema.name,
        "kind": schema.kind.value,
        "key": key,
        "type": f"{of_map}{describe(schema.value)}",
        "expires": schema.ttl,
    }


def _plain(value: Any) -> Any:
    """Return a value that JSON and YAML have, with all that is in it."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | timedelta) else value
