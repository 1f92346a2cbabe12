"""
Routes for tasks and drivers: tokens, and the calls of the interfaces of the coordinator.

The latter are made from the tables of the clients, see ``gateway.verbs``; who may make them is the matter of
``access``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import NoneType
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path, Query
from starlette.routing import BaseRoute

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import (
    Call,
    CallDep,
    ServicesDep,
    TokenDep,
    permitted,
    require_task,
)
from airflow_provider_statecheck.api.checked_rows import JobGrantDep
from airflow_provider_statecheck.api.requests import MessageRoute
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.api.tokens import IssuedToken
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus, RowsVersion
from airflow_provider_statecheck.checkpoint.statistics import readable_refusals
from airflow_provider_statecheck.checkpoint.store import LARGEST_PAGE, RECENT, CheckpointPage, JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.gateway.verbs import STAGE_CALLS, Verb
from airflow_provider_statecheck.maintenance.actions import ALIGNED, MAINTENANCE, RESTORES, SAVEPOINTS
from airflow_provider_statecheck.metadata.tables import TokenRecord

token_router = APIRouter(prefix="/token", tags=["tokens"], route_class=MessageRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A running task instance and the secret whose hash is in its task state store."""

    ti_id: str
    secret: str

    def __repr__(self) -> str:
        return f"Challenge({self.ti_id}, ***)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """The job that a read token is requested for."""

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Expiry of a renewed token."""

    expires_at: datetime


@token_router.post("")
def exchange(
    challenge: Annotated[Challenge, Body(openapi_examples=examples.of(Challenge))], services: ServicesDep
) -> IssuedToken:
    """Issue a token to a running task that knows its secret; each secret is valid once."""
    return services.tokens.issue(services.tasks.prove(challenge.ti_id, challenge.secret))


@token_router.post("/read")
def reader(
    request: Annotated[ReadRequest, Body(openapi_examples=examples.of(ReadRequest))],
    services: ServicesDep,
    token: TokenDep,
) -> IssuedToken:
    """Issue a token that can only read one job, for code that cannot request tokens itself."""
    require_task(token)
    # Each read with the token checks what the task may read: the job need not exist yet.
    return services.tokens.issue_reader(token.task, JobId(request.job_id))


@token_router.post("/renew")
def renew(services: ServicesDep, token: TokenDep) -> Renewal:
    """Extend a read token while its task runs or is deferred."""
    return Renewal(expires_at=services.tokens.renew_reader(token))


JobPath = Annotated[str, Path(openapi_examples=examples.JOB_ID)]
CheckpointPath = Annotated[int, Path(ge=1, le=2**63 - 1, openapi_examples=examples.CHECKPOINT_ID)]
OperatorPath = Annotated[str, Path(openapi_examples=examples.OPERATOR_ID)]


async def _page(
    before: Annotated[int | None, Query(description="Only checkpoints with a lower id")] = None,
    limit: Annotated[int, Query(description=f"Maximum number of checkpoints, up to {LARGEST_PAGE}")] = RECENT,
    operator_id: Annotated[str | None, Query(description="Only checkpoints of this operator")] = None,
    status: Annotated[CheckpointStatus | None, Query(description="Only checkpoints with this status")] = None,
) -> CheckpointPage:
    operator = None if operator_id is None else OperatorId(operator_id)
    return CheckpointPage(before=before, limit=limit, operator_id=operator, status=status)


async def _known_version(
    known_version: Annotated[
        int | None,
        Query(description="The version of the job in an earlier reply", openapi_examples=examples.KNOWN_VERSION),
    ] = None,
    seen_at: Annotated[
        datetime | None,
        Query(description="The seen_at of the job in the same reply", openapi_examples=examples.SEEN_AT),
    ] = None,
) -> RowsVersion | None:
    return None if known_version is None or seen_at is None else RowsVersion(known_version, seen_at)


async def _task_token(token: TokenDep) -> TokenRecord:
    require_task(token)
    return token


_PARAMETERS: dict[str, Any] = {
    "job_id": JobPath,
    "checkpoint_id": CheckpointPath,
    "operator_id": OperatorPath,
    "page": Annotated[CheckpointPage, Depends(_page)],
    "known_version": Annotated[RowsVersion | None, Depends(_known_version)],
}
"""Parameters of the calls that read, as a route takes them."""


def _read(verb: Verb, services: Services, caller: Any, **arguments: Any) -> Any:
    found = getattr(getattr(services, verb.service), verb.name)(**arguments)
    if isinstance(caller, TokenRecord):
        return services.holders.readable(caller.task, found)
    if found is None and verb.reads_one_row:
        checkpoint_id = arguments["checkpoint_id"]
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint_id} of job {arguments['job_id']}, found no row of it; list the "
            "checkpoints of the job to find its id.",
            checkpoint_id=checkpoint_id,
        )
    return found


def _read_route(verb: Verb) -> Callable[..., Any]:
    caller = JobGrantDep if "job_id" in verb.parameters else Annotated[TokenRecord, Depends(_task_token)]
    kinds = {"services": ServicesDep, "caller": caller}
    return _route(verb, partial(_read, verb), kinds | {name: _PARAMETERS[name] for name in verb.parameters})


def _answer(verb: Verb, call: Call, message: Any) -> Any:
    allowed, tokens = permitted(call, verb.path, message), call.services.tokens
    # A task of a maintenance Dag leads without becoming an attempt.
    registers = verb.path == "attempts/register" or (verb.path == "aligned/lead" and allowed.owner.task is not None)
    if registers:
        tokens.claim(call.token, allowed.attempt_key)
    reply = verb.answer(getattr(call.services, verb.service), allowed)
    if registers:
        tokens.bind(call.token, getattr(reply, "attempt", reply), allowed.attempt_key)
    elif verb.path == "attempts/adopt":
        tokens.bind(call.token, allowed.attempt, None)
    return reply


def _message_route(verb: Verb) -> Callable[..., Any]:
    body = Body(openapi_examples=examples.of(verb.message))
    return _route(verb, partial(_answer, verb), {"message": Annotated[verb.message, body], "call": CallDep})


def _route(verb: Verb, answer: Callable[..., Any], kinds: dict[str, Any]) -> Callable[..., Any]:
    """Return a function with these parameters, as FastAPI reads them from its signature."""

    def route(**arguments: Any) -> Any:
        reply = answer(**arguments)
        # A caller who may read a job may read its Dags, but perhaps not the Dag of a task that was refused in the job.
        return readable_refusals(reply, reply.dag_ids.__contains__) if isinstance(reply, JobView) else reply

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, keyword, annotation=kind) for name, kind in kinds.items()]
    reply = None if verb.reply is NoneType else verb.reply
    route.__name__ = verb.name
    route.__signature__ = inspect.Signature(parameters, return_annotation=reply)  # type: ignore[attr-defined]
    return route


def _routes() -> Iterator[BaseRoute]:
    for verbs in (STAGE_CALLS, MAINTENANCE, SAVEPOINTS, RESTORES, ALIGNED):
        for verb in verbs.values():
            if not verb.is_read:
                yield _api_route(verb, _message_route(verb), verb.path.partition("/")[0])
            elif verbs is STAGE_CALLS:  # the other interfaces repeat its reads
                yield _api_route(verb, _read_route(verb), "jobs")


def _api_route(verb: Verb, route: Callable[..., Any], tag: str) -> BaseRoute:
    methods = ["GET" if verb.is_read else "POST"]
    return MessageRoute(f"/{verb.path}", route, methods=methods, tags=[tag], description=verb.description)


router = APIRouter(routes=[*_routes()])
