"""
Routes for queryable state: single keys and batches of keys by name, and the list of names.

A name may contain any character, for example ``totals[eu]``; clients percent-encode it in the path.

Dependencies are coroutines, because FastAPI calls functions in threads, which takes longer than the read of a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path, Query, Request, Response

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.requests import Handler, MessageRoute, reject_unstorable_parameters
from airflow_provider_statecheck.api.state_reads import (
    MAX_VALUE_BYTES,
    ProxyReads,
    StateGrantDep,
    check_state_access,
    require_few_keys,
    require_short,
    small_json,
)
from airflow_provider_statecheck.api.task_routes import JobPath
from airflow_provider_statecheck.checkpoint.codec import json_parts
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnknownKeyOrNamespaceError
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.queryable.answers import AnswerMessage, reply_parts
from airflow_provider_statecheck.queryable.queries import (
    ABSENT,
    JsonKeys,
    JsonUserKey,
    QueryableName,
    StateQuery,
    StateReply,
    TextUserKey,
)

router = APIRouter(prefix="/jobs/{job_id}/state", tags=["state"], route_class=MessageRoute)

NamePath = Annotated[
    str,
    Path(
        description="Queryable name; of an instance of a mapped task, name[map_key]",
        openapi_examples=examples.STATE_NAME,
    ),
]
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "A key does not fit the types of the key columns, or several checkpoints are named"},
    401: {"description": "The token has expired"},
    403: {"description": "The credentials are missing or invalid, or the token belongs to another job"},
    404: {
        "description": "The job, the checkpoint, the name or the key does not exist; the code tells them apart. A job "
        "that a user may not read does not exist for this user"
    },
    413: {"description": "The request or the answer is too large"},
    429: {
        "description": "The caller has sent too many requests; the header Retry-After has the time to wait in seconds"
    },
    503: {"description": "The checkpoint storage, or the database, cannot be read from this server"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Key and value; without a value, ``absent`` is true."""

    key: Any
    value: Any = None
    absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAnswer(AnswerMessage):
    """Values of keys, all from one checkpoint."""

    entries: tuple[Entry, ...]
    """The keys in the order of the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatch:
    """Several keys of a state."""

    keys: tuple[Any, ...]
    """The keys; a key of several columns is a list."""
    namespace: str = ""
    user_key: Any = None
    """Key of one entry of a map state; null for whole maps and for other states."""
    checkpoint_id: int | None = None
    pointer: str | None = None
    at: datetime | None = None


async def _reads_of(request: Request) -> ProxyReads:
    reads: ProxyReads = request.app.state.state_reads
    return reads


StateReadsDep = Annotated[ProxyReads, Depends(_reads_of)]


async def _as_of(
    checkpoint_id: Annotated[int | None, Query(description="Read this checkpoint of the job")] = None,
    pointer: Annotated[str | None, Query(description="Read this checkpoint or savepoint of the job")] = None,
    at: Annotated[
        str | None,
        Query(description="Read the latest checkpoint at this time, such as 2026-01-31T12:00:00Z"),
    ] = None,
) -> AsOf:
    return AsOf(checkpoint_id=checkpoint_id, pointer=pointer, at=None if at is None else _time(at))


AsOfDep = Annotated[AsOf, Depends(_as_of)]


@router.get("", response_model=tuple[QueryableName, ...], responses=ERRORS)
async def names(job_id: JobPath, reads: StateReadsDep, _: StateGrantDep, as_of: AsOfDep) -> Response:
    """Return the queryable states of a job with their types, first the served and then the refused ones."""
    return json_answer(await reads.names(JobId(job_id), as_of))


class KeyRoute(MessageRoute):
    """
    A route of a single key.

    FastAPI takes longer to bind and validate the parameters than the read takes. The parameters that most requests have
    are therefore bound here, and FastAPI binds the others.
    """

    @override
    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def bound(request: Request) -> Response:
            asked, place = request.query_params, request.path_params
            if "key" not in asked or not asked.keys() <= _PARAMETERS_OF_KEY:
                return await handle(request)
            await check_state_access(request)
            await reject_unstorable_parameters(request)
            key, namespace = tuple(asked.getlist("key")), asked.get("namespace", "")
            query = _query_of_key(place["job_id"], place["name"], key, namespace, asked.get("user_key"), LATEST)
            return await (await _reads_of(request)).get(query, _present, is_short=True)

        return bound


_PARAMETERS_OF_KEY = {"key", "namespace", "user_key"}


async def value(
    job_id: JobPath,
    name: NamePath,
    reads: StateReadsDep,
    _: StateGrantDep,
    as_of: AsOfDep,
    key: Annotated[
        list[str],
        Query(description="Value of a key column, once per column in their order", openapi_examples=examples.STATE_KEY),
    ],
    namespace: Annotated[str, Query(description="Namespace of the state")] = "",
    user_key: Annotated[str | None, Query(description="Key of one entry of a map state")] = None,
) -> Response:
    """Return the value of one key in the latest completed checkpoint, or in the named one."""
    query = _query_of_key(job_id, name, tuple(key), namespace, user_key, as_of)
    return await reads.get(query, _present, is_short=True)


router.add_api_route("/{name:path}", value, response_model=StateAnswer, responses=ERRORS, route_class_override=KeyRoute)


def _query_of_key(
    job_id: str, name: str, key: tuple[str, ...], namespace: str, user_key: str | None, as_of: AsOf
) -> StateQuery:
    require_short((*key, namespace, user_key or ""))
    return StateQuery(
        job_id=JobId(job_id),
        name=name,
        keys=JsonKeys((key,)),
        namespace=namespace,
        user_key=None if user_key is None else TextUserKey(user_key),
        as_of=as_of,
        max_value_bytes=MAX_VALUE_BYTES,
    )


@router.post("/{name:path}", response_model=StateAnswer, responses=ERRORS)
async def values(
    job_id: JobPath,
    name: NamePath,
    batch: Annotated[StateBatch, Body(openapi_examples=examples.STATE_BATCH)],
    reads: StateReadsDep,
    _: StateGrantDep,
) -> Response:
    """Return the values of up to 1000 keys in one checkpoint; a key without state is marked as absent."""
    require_few_keys(len(batch.keys))
    query = StateQuery(
        job_id=JobId(job_id),
        name=name,
        keys=JsonKeys(batch.keys),
        namespace=batch.namespace,
        user_key=None if batch.user_key is None else JsonUserKey(batch.user_key),
        as_of=AsOf(checkpoint_id=batch.checkpoint_id, pointer=batch.pointer, at=batch.at),
        max_value_bytes=MAX_VALUE_BYTES,
    )
    return await reads.get(query, _batch)


def _present(reply: StateReply) -> Response:
    if reply.values[0] is ABSENT:
        raise UnknownKeyOrNamespaceError(
            f"Expected state of {reply.name!r} for the key in checkpoint {reply.checkpoint_id}, found none; check the "
            "key, the namespace and the user key.",
            checkpoint_id=reply.checkpoint_id,
        )
    return _batch(reply)


def _batch(reply: StateReply) -> Response:
    return _response(reply_parts(reply))


def json_answer(data: Any) -> Response:
    """
    Return an answer, see :func:`~airflow_provider_statecheck.checkpoint.codec.json_parts`.

    :raises RequestLimitError: if it is too large.
    """
    return _response(json_parts(data))


def _response(parts: Iterable[str]) -> Response:
    # This takes a fraction of the time of a response that FastAPI serializes.
    return Response(small_json(parts), media_type="application/json")


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidConfigurationError(
            f"Expected at to be a time such as 2026-01-31T12:00:00Z, found {text!r}; write + as %2B in a URL."
        ) from None
