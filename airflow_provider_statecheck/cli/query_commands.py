"""Commands that query the state of a job by its queryable name."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.cli.output import Exit, Row, command, print_rows, shown
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_statecheck.hooks.maintenance import find_job
from airflow_provider_statecheck.hooks.storage import storage_opener
from airflow_provider_statecheck.hooks.transport import airflow_gateway

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.queryable.local_client import LocalStateClient
    from airflow_provider_statecheck.queryable.queries import AsOf, QueryableName, StateReply


@command
def state_get(args: Namespace) -> Exit:
    """Show the value of one key: a row, or a row for each entry of a map."""
    from airflow_provider_statecheck.queryable.queries import StateQuery, TextKeys, TextUserKey

    client, job_id = _client(args)
    query = StateQuery(
        job_id=job_id,
        name=args.name,
        keys=TextKeys((tuple(args.key),)),
        namespace=args.namespace,
        user_key=None if args.user_key is None else TextUserKey(args.user_key),
        as_of=_as_of(args),
    )
    print_rows(_value_rows(client.ask(query).present()), args.output)
    return Exit.DONE


@command
def state_names(args: Namespace) -> Exit:
    """List the queryable states of a job with their types."""
    client, job_id = _client(args)
    found = client.names(job_id, checkpoint_id=args.checkpoint, pointer=args.pointer, at=args.at)
    print_rows([_name_row(each) for each in found], args.output)
    return Exit.DONE


def _client(args: Namespace) -> tuple[LocalStateClient, JobId]:
    from airflow_provider_statecheck.queryable.local_client import LocalStateClient

    gateway = airflow_gateway(DEFAULT_CONN_ID)
    job_id = find_job(gateway, args.job).job.job_id
    return LocalStateClient(gateway, storage_opener(args.storage_conn_id)), job_id


def _as_of(args: Namespace) -> AsOf:
    from airflow_provider_statecheck.queryable.queries import AsOf

    return AsOf(checkpoint_id=args.checkpoint, pointer=args.pointer, at=args.at)


def _value_rows(reply: StateReply) -> list[Row]:
    from airflow_provider_statecheck.queryable.answers import encode_entries
    from airflow_provider_statecheck.state.arrow.layout import VALUE
    from airflow_provider_statecheck.state.reading.columns import MAP_KEY, MAP_VALUE, key_column_names

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
        "pointer": shown(name.pointer),
        "refused": name.refused or None,
    }
