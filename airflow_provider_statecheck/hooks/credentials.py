"""How an Airflow task proves to the coordinator's API which task it is."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_statecheck.gateway.challenge import CHALLENGE_KEY, challenge_of
from airflow_provider_statecheck.gateway.http_client import HttpClient

_CHALLENGE_LIFETIME = timedelta(minutes=5)


class TaskCredentials:
    """
    The challenge exchange: no secret has to be configured on a worker.

    :param client: The server.
    :param ti_id: Id of the running task instance, which is a new one in each try.
    """

    def __init__(self, client: HttpClient, ti_id: Any) -> None:
        self._client = client
        self._ti_id = ti_id

    def obtain(self) -> str:
        """
        Return a token of this task.

        :raises AccessDeniedError: if the coordinator does not believe it.
        """
        secret = secrets.token_urlsafe(32)
        _announce(self._ti_id, challenge_of(secret))
        answer = self._client.post("token", {"ti_id": str(self._ti_id), "secret": secret})
        return _masked(answer["token"])


class LoginCredentials:
    """
    A user of Airflow who may edit the task's instances, for deployments where the exchange is not possible.

    :param client: The server.
    :param task: Coordinates of the task instance.
    :param login: Name of the user.
    :param password: Password of the user.
    """

    def __init__(self, client: HttpClient, task: Mapping[str, Any], login: str, password: str) -> None:
        self._client = client
        self._task = dict(task)
        self._login = login
        self._password = password

    def obtain(self) -> str:
        """
        Return a token of this task.

        :raises AccessDeniedError: if the user is unknown or may not edit the task.
        """
        user = self._client.log_in(self._login, self._password)
        return _masked(self._client.post("token/login", self._task, user)["token"])

    def __repr__(self) -> str:
        return f"LoginCredentials({self._login!r}, ***)"


def _announce(ti_id: Any, challenge: str) -> None:
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import SetTaskStateStore

    # The message itself, for a worker's own state store backend would send a reference instead of the value.
    expires_at = datetime.now(UTC) + _CHALLENGE_LIFETIME
    message = SetTaskStateStore(ti_id=ti_id, key=CHALLENGE_KEY, value=challenge, expires_at=expires_at)
    task_runner.SUPERVISOR_COMMS.send(message)


def _masked(token: Any) -> str:
    from airflow.sdk.log import mask_secret

    mask_secret(token)
    return str(token)
