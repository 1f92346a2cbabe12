"""Replies to queries, as a server returns and sends them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.queryable.answers import decode_reply, reply_parts
from airflow_provider_statecheck.queryable.queries import StateReply
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import StateSchema
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer, restored_user_keys, serializer_of

TEXT_KEYS = KeySerializer((KeyField("user", pa.string()),))


def reply_of(
    kind: StateKind,
    value_type: Any,
    values: tuple[Any, ...],
    *,
    user_key_type: Any = None,
    keys: KeySerializer = TEXT_KEYS,
    names: tuple[Any, ...] | None = None,
    is_entry: bool = False,
) -> StateReply:
    user_keys = None if user_key_type is None else serializer_of(user_key_type).snapshot()
    schema = StateSchema(name="totals", kind=kind, key=user_keys, value=serializer_of(value_type).snapshot())
    return StateReply(
        job_id=job_id_of("sales"),
        name="totals-by-user",
        uid="stage/totals",
        checkpoint_id=7,
        pointer="s3://lake/checkpoints/chk-7",
        completed_at=datetime(2026, 11, 23, 3, tzinfo=UTC),
        schema=schema,
        key=keys.snapshot(),
        is_entry=is_entry,
        keys=names if names is not None else tuple(f"user-{i}" for i in range(len(values))),
        values=values,
    )


def encoded(reply: StateReply) -> dict[str, Any]:
    """Return the JSON values of a reply."""
    data: dict[str, Any] = json.loads("".join(reply_parts(reply)))
    return data


def sent(reply: StateReply) -> StateReply:
    return decode_reply(encoded(reply))


def as_served(value_type: Any, values: list[Any]) -> tuple[Any, ...]:
    """Return values as a server reads them, without the classes of the user."""
    serializer = serializer_of(value_type)
    return tuple(restored_serializer(serializer.snapshot()).from_arrow(serializer.to_arrow(values)))


def served_user_keys(key_type: Any, keys: list[Any]) -> list[Any]:
    serializer = serializer_of(key_type)
    return restored_user_keys(serializer.snapshot()).from_arrow(serializer.to_arrow(keys))
