"""Permission to read a job: which credentials a remembered permission is for."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Request

from airflow_provider_statecheck.api.checked_rows import JobGrant, RememberedAccess
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.exceptions import AccessDeniedError

JOB = job_id_of("sales")


class Sessions:
    """Access with a cookie, which may be in any of the headers."""

    async def require(self, request: Request, job_id: JobId) -> JobGrant:
        if request.cookies.get("session") != "of ann":
            raise AccessDeniedError("Expected a session, found none; log in.")
        return JobGrant(caller=f"ann in {job_id}")


def request_with(*cookies: bytes, authorization: bytes | None = None) -> Request:
    headers = [(b"cookie", each) for each in cookies]
    if authorization is not None:
        headers.append((b"authorization", authorization))
    return Request({"type": "http", "method": "GET", "path": "/", "headers": headers})


@pytest.mark.parametrize(
    "request_of_another",
    [
        request_with(b"theme=dark"),
        request_with(b"theme=dark", b"session=of ben"),
        request_with(b"theme=darksession=of ann"),
        request_with(b"theme=dark", authorization=b"session=of ann"),
        request_with(),
    ],
)
def test_permission_is_remembered_for_all_credentials_of_a_request(request_of_another: Request) -> None:
    access = RememberedAccess(Sessions())
    asyncio.run(access.require(request_with(b"theme=dark", b"session=of ann"), JOB))
    with pytest.raises(AccessDeniedError):
        asyncio.run(access.require(request_of_another, JOB))
