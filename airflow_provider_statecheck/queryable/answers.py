"""JSON forms of replies to queries, which restore equal Python values, and of rows of snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from airflow_provider_statecheck.checkpoint.codec import (
    MalformedMessageError,
    decode,
    object_parts,
    reading_reply,
    to_json,
)
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.queryable.json_values import (
    JsonForm,
    decoded_at,
    json_form_of,
    list_form,
    map_form,
    optional_form,
    scalar_form,
)
from airflow_provider_statecheck.queryable.queries import ABSENT, StateReply
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.reading.state_reader import restored_keys
from airflow_provider_statecheck.state.schema_evolution import (
    OperatorSchemas,
    StateSchema,
    decode_schemas,
    encode_schemas,
)
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer, restored_user_keys
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot

_KEPT_FORMS = 256
"""Number of states whose conversions are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMessage:
    """Values of keys, all from one checkpoint."""

    job_id: str
    name: str
    uid: str
    """Uid of the function that registered the state, after the uid of its stage and a slash."""
    checkpoint_id: int
    pointer: str
    completed_at: datetime | None
    is_entry: bool
    """Whether each value is that of one entry of a map."""
    entries: Any
    """The keys in the order of the query, with their values in the form that the types direct."""
    types: dict[str, Any]
    """Types of the keys and values, with which a client restores values that JSON does not have."""


def reply_parts(reply: StateReply) -> Iterator[str]:
    """
    Yield the JSON of a reply in parts, an :class:`AnswerMessage`.

    A key of several columns is a list; :mod:`~airflow_provider_statecheck.queryable.json_values` describes the form of
    values.

    :raises UnsupportedStateError: if this release does not support a type of the state.
    """
    head = _head(
        _Types(reply.schema, reply.key),
        job_id=reply.job_id,
        name=reply.name,
        uid=reply.uid,
        checkpoint_id=reply.checkpoint_id,
        pointer=reply.pointer,
        completed_at=reply.completed_at,
        is_entry=reply.is_entry,
    )
    return object_parts(head, {"entries": encode_entries(reply)})


@lru_cache(maxsize=_KEPT_FORMS)
def _head(types: _Types, **fields: Any) -> str:
    # All replies from a checkpoint have this part in common, whose encoding takes longer than that of a value.
    return to_json(fields | {"types": _form(types).types})


def encode_entries(reply: StateReply) -> Iterator[dict[str, Any]]:
    """
    Yield the keys of a reply with their values as values for ``json.dumps``; see :func:`reply_parts`.

    :raises UnsupportedStateError: if this release does not support a type of the state.
    """
    form = _form(_Types(reply.schema, reply.key))
    value = form.value_of(reply.is_entry)
    for key, found in zip(reply.keys, reply.values, strict=True):
        yield {"key": form.key.encode(key)} | ({"absent": True} if found is ABSENT else {"value": value.encode(found)})


def decode_reply(data: Any) -> StateReply:
    """
    Return the reply of its JSON form, the inverse of :func:`reply_parts`. Unknown fields are ignored.

    :raises CoordinatorError: if the data do not match; the error names the field.
    :raises IncompatibleCheckpointError: if a newer version wrote the types.
    :raises UnsupportedStateError: if this release does not support a type of the state.
    """
    with reading_reply():
        message = decode(AnswerMessage, data)
        schema, key, form = _decoded_types(json.dumps(message.types))
        entries = _entries(form, message)
    return StateReply(
        job_id=JobId(message.job_id),
        name=message.name,
        uid=message.uid,
        checkpoint_id=message.checkpoint_id,
        pointer=message.pointer,
        completed_at=message.completed_at,
        schema=schema,
        key=key,
        is_entry=message.is_entry,
        keys=tuple(found for found, _ in entries),
        values=tuple(value for _, value in entries),
    )


class _Form(NamedTuple):
    """Conversions between the keys and values of one state and JSON."""

    types: dict[str, Any]
    key: JsonForm
    value: JsonForm
    entry: JsonForm
    """Form of one value of a map; that of all values for other states."""

    def value_of(self, is_entry: bool) -> JsonForm:
        return self.entry if is_entry else self.value


@dataclass(frozen=True, slots=True, eq=False)
class _Types:
    """Types of a state, compared by identity: a server has one object for all replies from a checkpoint."""

    schema: StateSchema
    key: SerializerSnapshot

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Types) and self.schema is other.schema and self.key is other.key

    def __hash__(self) -> int:
        return hash((id(self.schema), id(self.key)))


@lru_cache(maxsize=_KEPT_FORMS)
def _form(types: _Types) -> _Form:
    schema, key = types.schema, types.key
    value = json_form_of(restored_serializer(schema.value))
    whole = entry = value
    if schema.kind is StateKind.LIST:
        whole = list_form(value)
    if schema.key is not None:
        entry = optional_form(value)
        whole = map_form(restored_user_keys(schema.key), entry)
    encoded = encode_schemas(OperatorSchemas(key=key, keyed=(schema,)))
    return _Form(encoded, _key_form(restored_keys(key)), whole, entry)


@lru_cache(maxsize=_KEPT_FORMS)
def _decoded_types(types: str) -> tuple[StateSchema, SerializerSnapshot, _Form]:
    try:
        schemas = decode_schemas(json.loads(types))
        (schema,) = schemas.keyed
        if schemas.key is None:
            raise MalformedMessageError("the types of a key", ("types", "key"))
        return schema, schemas.key, _form(_Types(schema, schemas.key))
    except (CorruptStateError, ValueError) as error:
        raise MalformedMessageError("the types of one keyed state", ("types",)) from error


def _key_form(keys: KeySerializer) -> JsonForm:
    columns = [scalar_form(each) for each in keys.arrow_types]
    if len(columns) == 1:
        return JsonForm(columns[0].encode, lambda data: _normalized(keys, columns[0].decode(data)))

    def decode_key(data: Any) -> Any:
        if not isinstance(data, list) or len(data) != len(columns):
            raise MalformedMessageError(f"a list of {len(columns)}")
        return _normalized(keys, tuple(form.decode(part) for form, part in zip(columns, data, strict=True)))

    return JsonForm(
        lambda key: [form.encode(part) for form, part in zip(columns, key, strict=True)],
        decode_key,
    )


def _normalized(keys: KeySerializer, key: Any) -> Any:
    try:
        return keys.normalized(key)
    except UnsupportedStateError as error:
        raise MalformedMessageError("a key in the types of its columns") from error


def _entries(form: _Form, message: AnswerMessage) -> list[tuple[Any, Any]]:
    key, value = form.key.decode, form.value_of(message.is_entry).decode

    def entry(data: Any) -> tuple[Any, Any]:
        if (
            not isinstance(data, Mapping)
            or "key" not in data
            or ("value" not in data and data.get("absent") is not True)
        ):
            raise MalformedMessageError("an object with a key, and a value or absent")
        found = decoded_at("value", value, data["value"]) if "value" in data else ABSENT
        return decoded_at("key", key, data["key"]), found

    found: list[tuple[Any, Any]] = decoded_at("entries", list_form(JsonForm(list, entry)).decode, message.entries)
    return found


_ROWS_AT_ONCE = 16
"""So few rows are converted at once, because the size of large ones may end the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRows:
    """First rows of a table."""

    columns: tuple[tuple[str, str], ...]
    """Name and Arrow type of each column; names may repeat."""
    rows: tuple[tuple[Any, ...], ...]
    """Values in the order of the columns."""
    has_more: bool
    """Whether the table has more rows."""


def first_rows(schema: Any, batches: Iterator[Any], limit: int, max_bytes: int | None = None) -> JsonRows:
    """
    Return the first rows of a table; later batches are not read.

    :param schema: Arrow schema of the batches.
    :param limit: Largest number of rows.
    :param max_bytes: Largest size of the rows as JSON; ``None`` for any. At least one row is returned.
    """
    rows: list[tuple[Any, ...]] = []
    size, has_more = 0, False
    for row in _rows(batches, limit + 1):
        size += 0 if max_bytes is None else len(json.dumps(row, ensure_ascii=False).encode())
        has_more = len(rows) == limit or (max_bytes is not None and bool(rows) and size > max_bytes)
        if has_more:
            break
        rows.append(row)
    columns = tuple((field.name, str(field.type)) for field in schema)
    return JsonRows(columns=columns, rows=tuple(rows), has_more=has_more)


def json_column(values: Any) -> list[Any]:
    """
    Return the values of an Arrow array as values for ``json.dumps``.

    Values have the form of :mod:`~airflow_provider_statecheck.queryable.json_values`. A struct whose fields have equal
    names is a list of pairs, and a date or time that Python does not have is the text that Arrow writes.

    :raises UnsupportedStateError: for a type that state cannot have.
    """
    if pa.types.is_struct(values.type):
        return _structs(values)
    if pa.types.is_map(values.type):
        return [each.as_py() if not each.is_valid else _map(each.values) for each in values]
    if pa.types.is_list(values.type):
        return [json_column(each.values) if each.is_valid else None for each in values]
    return _scalars(values)


def _rows(batches: Iterator[Any], limit: int) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        part = batch.slice(0, limit)
        limit -= part.num_rows
        for start in range(0, part.num_rows, _ROWS_AT_ONCE):
            yield from zip(*map(json_column, part.slice(start, _ROWS_AT_ONCE).columns), strict=True)
        if not limit:
            return


def _structs(values: Any) -> list[Any]:
    names = [field.name for field in values.type]
    rows = zip(*map(json_column, values.flatten()), strict=True)
    return [_struct(names, row) if is_valid else None for row, is_valid in zip(rows, values.is_valid(), strict=True)]


def _struct(names: Sequence[str], row: Sequence[Any]) -> Any:
    pairs = list(zip(names, row, strict=True))
    return dict(pairs) if len(set(names)) == len(names) else [list(pair) for pair in pairs]


def _map(entries: Any) -> Any:
    keys, values = (json_column(each) for each in entries.flatten())
    pairs = zip(keys, values, strict=True)
    return dict(pairs) if all(isinstance(key, str) for key in keys) else [list(pair) for pair in pairs]


def _scalars(values: Any) -> list[Any]:
    encode = scalar_form(values.type).encode
    try:
        return [None if each is None else encode(each) for each in values.to_pylist()]
    except (ValueError, OverflowError):
        return list(values.cast(pa.string()).to_pylist())
