"""
Routes for tasks and drivers: tokens, and the calls of the interfaces of the coordinator.

The latter are made from the tables of the clients, see ``gateway.verbs``. A call of an attempt needs the token of this
attempt, a call of maintenance the token of a task of a maintenance Dag, and a read the permission to read the job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from types import NoneType
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path, Query
from starlette.routing import BaseRoute

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import (
    ServicesDep,
    TakesTestJobsDep,
    TokenDep,
    owner_of,
    require_attempt,
    require_job_of_runs,
    require_maintenance,
    require_registration,
    require_task,
)
from airflow_provider_statecheck.api.job_access import JobGrantDep, require_job
from airflow_provider_statecheck.api.requests import MessageRoute
from airflow_provider_statecheck.api.services import IssuedToken, Services
from airflow_provider_statecheck.checkpoint.aligned.rows import PutHandle, TakeLeadership
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import AdoptAttempt, AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus, RowsVersion
from airflow_provider_statecheck.checkpoint.store import LARGEST_PAGE, RECENT, CheckpointPage
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.gateway.verbs import COORDINATOR, Verb
from airflow_provider_statecheck.maintenance.verbs import ALIGNED, MAINTENANCE, SAVEPOINTS
from airflow_provider_statecheck.metadata.token_store import TokenRecord
from airflow_provider_statecheck.storage.uris import normalise_pointer

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
    challenge: Annotated[Challenge, Body(openapi_examples=examples.CHALLENGE)], services: ServicesDep
) -> IssuedToken:
    """Issue a token to a running task that knows its secret; each secret is valid once."""
    return services.tokens.issue(services.tasks.prove(challenge.ti_id, challenge.secret))


@token_router.post("/read")
def reader(
    request: Annotated[ReadRequest, Body(openapi_examples=examples.READ)], services: ServicesDep, token: TokenDep
) -> IssuedToken:
    """Issue a token that can only read one job, for code that cannot request tokens itself."""
    require_task(token)
    return services.tokens.issue_reader(token.task, JobId(request.job_id))


@token_router.post("/renew")
def renew(services: ServicesDep, token: TokenDep) -> Renewal:
    """Extend a read token while its task runs or is deferred."""
    if not services.tasks.is_waiting(token.task):
        raise AccessDeniedError(
            "Expected a task that runs or is deferred, found that the task of this token has ended; a token of an ended "
            "task cannot be renewed."
        )
    return Renewal(expires_at=services.tokens.renew_reader(token))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The services and the token of a call of the API."""

    services: Services
    token: TokenRecord
    takes_test_jobs: bool


async def _call(services: ServicesDep, token: TokenDep, takes_test_jobs: TakesTestJobsDep) -> Call:
    return Call(services=services, token=token, takes_test_jobs=takes_test_jobs)


Answer = Callable[[Verb, Call, Any], Any]
"""Checks the caller of a message, and returns the reply."""


def _register(verb: Verb, call: Call, message: RegisterAttempt) -> AttemptGrant:
    """Register an attempt, bind the token to it, fence all earlier attempts, and return the candidates for a restore."""
    services, token = call.services, call.token
    request = require_registration(token, message, services.tasks, takes_test_jobs=call.takes_test_jobs)
    services.tokens.claim(token, request.attempt_key)
    grant: AttemptGrant = verb.answer(services.coordinator, request)
    services.tokens.bind(token, grant.attempt, request.attempt_key)
    return grant


def _adopt(verb: Verb, call: Call, message: AdoptAttempt) -> None:
    """Bind the token of a later try to an attempt that still runs; its driver keeps its own token."""
    if call.token.attempt != message.attempt:
        require_task(call.token)
    owner = owner_of(call.token.task, message.owner)
    verb.answer(call.services.coordinator, replace(message, owner=owner))
    call.services.tokens.bind(call.token, message.attempt, None)


def _of_attempt(verb: Verb, call: Call, message: Any) -> Any:
    require_attempt(call.token, message.attempt)
    require_job(call.token, getattr(message, "job_id", message.attempt.job_id))
    return verb.answer(call.services.coordinator, _normalised(message))


def _of_maintenance(verb: Verb, call: Call, message: Any) -> Any:
    require_maintenance(call.token, call.services)
    # The permission of the user was checked at the request that request_key names; a bare name has no such check.
    if getattr(message, "is_named", False):
        raise AccessDeniedError(
            "Expected a job to remove because of its age or on the request of a user, found one to remove by name; remove it "
            "on its page, or use 'airflow statecheck prune JOB'."
        )
    return verb.answer(call.services.maintenance, message)


def _of_savepoints(verb: Verb, call: Call, message: Any) -> Any:
    require_maintenance(call.token, call.services)
    return verb.answer(call.services.savepoints, _normalised(message))


def _lead(verb: Verb, call: Call, message: TakeLeadership) -> AttemptRef:
    """
    Register a leader of the aligned checkpoints of a job under the next epoch, and fence the previous one.

    A leader is not the attempt of a task: it has no coordinates in Airflow.
    """
    require_maintenance(call.token, call.services)
    require_job_of_runs(message.job_name, takes_test_jobs=call.takes_test_jobs)
    leader: AttemptRef = verb.answer(call.services.aligned, replace(message, owner=replace(message.owner, airflow=())))
    return leader


def _of_aligned(verb: Verb, call: Call, message: Any) -> Any:
    require_maintenance(call.token, call.services)
    if message.leader.operator_id != ALIGNED_OPERATOR_ID:
        raise AccessDeniedError(
            "Expected a leader of aligned checkpoints, found an attempt of a stage; the stage needs the token of the attempt."
        )
    # The location of a handle is that of its row, which may be a checkpoint directory with another form.
    is_handle = isinstance(message, PutHandle)
    return verb.answer(call.services.aligned, message if is_handle else _normalised(message))


def _normalised(message: Any) -> Any:
    directories = {name: getattr(message, name, None) for name in ("savepoint_dir", "target", "location")}
    given = {name: normalise_pointer(each) for name, each in directories.items() if each is not None}
    return replace(message, **given) if given else message


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


async def _task_token(token: TokenDep) -> None:
    require_task(token)


_PARAMETERS: dict[str, Any] = {
    "job_id": JobPath,
    "checkpoint_id": CheckpointPath,
    "operator_id": OperatorPath,
    "page": Annotated[CheckpointPage, Depends(_page)],
    "known_version": Annotated[RowsVersion | None, Depends(_known_version)],
}
"""Parameters of the calls that read, as a route takes them."""


def _read(verb: Verb, services: Services, caller: Any, **arguments: Any) -> Any:
    return getattr(services.coordinator, verb.name)(**arguments)


def _read_route(verb: Verb) -> Callable[..., Any]:
    caller = JobGrantDep if "job_id" in verb.parameters else Annotated[None, Depends(_task_token)]
    kinds = {"services": ServicesDep, "caller": caller}
    return _route(verb, partial(_read, verb), kinds | {name: _PARAMETERS[name] for name in verb.parameters})


def _message_route(verb: Verb, answer: Answer) -> Callable[..., Any]:
    body = Body(openapi_examples=examples.of_message(verb))
    kinds = {"message": Annotated[verb.message, body], "call": Annotated[Call, Depends(_call)]}
    return _route(verb, partial(answer, verb), kinds)


def _route(verb: Verb, answer: Callable[..., Any], kinds: dict[str, Any]) -> Callable[..., Any]:
    """Return a function with these parameters, as FastAPI reads them from its signature."""

    def route(**arguments: Any) -> Any:
        return answer(**arguments)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, keyword, annotation=kind) for name, kind in kinds.items()]
    reply = None if verb.reply is NoneType else verb.reply
    route.__name__ = verb.name
    route.__signature__ = inspect.Signature(parameters, return_annotation=reply)  # type: ignore[attr-defined]
    return route


_OF_NEW_TOKENS: dict[str, Answer] = {"register": _register, "adopt": _adopt}
"""Calls of an attempt with a token that is not yet bound to it."""


def _coordinator_routes() -> Iterator[BaseRoute]:
    for verb in COORDINATOR.values():
        if verb.is_read:
            yield _api_route(verb, _read_route(verb), "jobs")
        else:
            answer = _OF_NEW_TOKENS.get(verb.name, _of_attempt)
            yield _api_route(verb, _message_route(verb, answer), "attempts", inspect.getdoc(answer))


def _maintenance_routes() -> Iterator[BaseRoute]:
    for folder, verbs, answer in (
        ("maintenance", MAINTENANCE, _of_maintenance),
        ("savepoints", SAVEPOINTS, _of_savepoints),
        ("aligned", ALIGNED, _of_aligned),
    ):
        for verb in verbs.values():
            if not verb.is_read:
                own = _lead if verb.name == "lead" else answer
                yield _api_route(verb, _message_route(verb, own), folder)


def _api_route(verb: Verb, route: Callable[..., Any], tag: str, description: str | None = None) -> BaseRoute:
    return MessageRoute(
        f"/{verb.path}",
        route,
        methods=["GET" if verb.is_read else "POST"],
        tags=[tag],
        description=description or verb.description,
    )


router = APIRouter(routes=[*_coordinator_routes(), *_maintenance_routes()])
