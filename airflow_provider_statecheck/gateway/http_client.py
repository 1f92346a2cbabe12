"""One request to the coordinator's API, and what its failure means."""

from __future__ import annotations

from typing import Any

import httpx

from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.errors import decode_error
from airflow_provider_statecheck.gateway.paths import MOUNT_PATH, VERSION_PATH

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)


class HttpClient:
    """
    Speaks to one server.

    :param base_url: Root of Airflow's api-server, with the path of ``[api] base_url`` if that has one.
    :param client: The client to use; by default one that trusts the machine's certificates.
    """

    def __init__(self, base_url: str, client: httpx.Client | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._client = client or httpx.Client(timeout=_TIMEOUT)

    def post(self, path: str, body: Any, token: str | None = None) -> Any:
        """
        Send a message and return what was answered.

        :raises StateCheckError: what the coordinator raised.
        :raises CoordinatorUnavailableError: if the message did not get there.
        :raises CommitStateUnknownError: if its reply was lost.
        """
        return self._send("POST", path, token, body)

    def get(self, path: str, token: str | None = None) -> Any:
        """
        Ask for something.

        :raises StateCheckError: as for :meth:`post`.
        """
        return self._send("GET", path, token, None)

    def log_in(self, login: str, password: str) -> str:
        """
        Return the token of a user of Airflow.

        :raises AccessDeniedError: if Airflow does not know the user.
        :raises CoordinatorUnavailableError: if it does not answer.
        """
        url = f"{self.base_url}/auth/token"
        response = self._request("POST", url, {"username": login, "password": password}, {})
        data = _json(response)
        if not response.is_success or not isinstance(data, dict) or "access_token" not in data:
            raise AccessDeniedError(
                f"Expected Airflow at {self.base_url} to know the user {login!r} of the connection, found status "
                f"{response.status_code}; correct the login or the password."
            )
        return str(data["access_token"])

    def _send(self, method: str, path: str, token: str | None, body: Any) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = f"{self.base_url}{MOUNT_PATH}{VERSION_PATH}/{path}"
        return _content(self._request(method, url, body, headers), url)

    def _request(self, method: str, url: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        try:
            return self._client.request(method, url, json=body, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise CoordinatorUnavailableError(
                f"Expected the coordinator's API at {self.base_url}, found no server there ({error}); nothing was changed."
            ) from error
        except httpx.TransportError as error:
            raise CommitStateUnknownError(
                f"The reply of {url} was lost ({type(error).__name__}), so the call may or may not have taken effect; "
                f"repeat it."
            ) from error


def _content(response: httpx.Response, url: str) -> Any:
    data = _json(response)
    if response.is_success and data is not _NO_JSON:
        return data
    if isinstance(data, dict) and "code" in data and "message" in data:
        raise decode_error(data)
    raise _unexpected(response, url)


def _unexpected(response: httpx.Response, url: str) -> StateCheckError:
    found = f"found status {response.status_code}: {response.text[:200]!r}"
    if (
        response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
        or response.status_code == httpx.codes.TOO_MANY_REQUESTS
    ):
        # A proxy or a server that is coming up answers so too; whether the call took effect cannot be told.
        return CommitStateUnknownError(f"Expected an answer of the coordinator at {url}, {found}; repeat the call.")
    return CoordinatorError(
        f"Expected an answer of the coordinator at {url}, {found}; check that the api-server has this provider installed "
        f"and that [statecheck] api_url names it."
    )


_NO_JSON = object()


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return _NO_JSON
