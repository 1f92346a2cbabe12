"""Which status the API gives to errors about state handles."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from airflow_provider_statecheck.api.requests import checked_app
from airflow_provider_statecheck.exceptions import (
    HandleExistsError,
    HandleNotFoundError,
    ResourceVersionError,
    StateCheckError,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [(HandleExistsError("taken"), 409), (HandleNotFoundError("gone"), 404), (ResourceVersionError("changed"), 409)],
)
def test_errors_about_handles_are_the_callers(error: StateCheckError, status: int) -> None:
    app = checked_app()

    @app.get("/handle")
    def fails() -> None:
        raise error

    reply = TestClient(app).get("/handle")
    assert (reply.status_code, reply.json()["code"]) == (status, error.code)
