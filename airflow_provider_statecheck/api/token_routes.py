"""Getting tokens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Body

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import ServicesDep, TokenDep, require_task
from airflow_provider_statecheck.api.bodies import MessageRoute
from airflow_provider_statecheck.api.tokens import IssuedToken
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.exceptions import AccessDeniedError

router = APIRouter(prefix="/token", tags=["tokens"], route_class=MessageRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A running task instance and the secret whose hash it wrote into its own task state store."""

    ti_id: str
    secret: str

    def __repr__(self) -> str:
        return f"Challenge({self.ti_id}, ***)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What a token is to read."""

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Until when a renewed token is good."""

    expires_at: datetime


@router.post("")
def exchange(
    challenge: Annotated[Challenge, Body(openapi_examples=examples.CHALLENGE)], services: ServicesDep
) -> IssuedToken:
    """Give a token to the task that proves to be the running one; the secret cannot be used again."""
    return services.tokens.issue(services.tasks.prove(challenge.ti_id, challenge.secret))


@router.post("/read")
def reader(
    request: Annotated[ReadRequest, Body(openapi_examples=examples.READ)], services: ServicesDep, token: TokenDep
) -> IssuedToken:
    """Give a token that can read one job and nothing else, for code that cannot ask for tokens itself."""
    require_task(token)
    return services.tokens.issue_reader(token.caller, JobId(request.job_id))


@router.post("/renew")
def renew(services: ServicesDep, token: TokenDep) -> Renewal:
    """Let a token for reading live on while the task that it was given to runs or is deferred."""
    if not services.tasks.is_waiting(token.caller):
        raise AccessDeniedError(
            "Expected a task that runs or is deferred to have its token renewed, found one that does neither."
        )
    return Renewal(expires_at=services.tokens.renew_reader(token))
