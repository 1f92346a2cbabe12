"""HTTP client of the coordinator's API, with credentials and error mapping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import httpx

from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.protocol import MOUNT_PATH, VERSION_PATH, decode_error

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
        if _is_passing(response):
            raise CoordinatorUnavailableError(
                f"Expected Airflow at {self.base_url} to log the user of the connection in, found status "
                f"{response.status_code}; nothing was changed."
            )
        if not response.is_success or not isinstance(data, dict) or "access_token" not in data:
            raise AccessDeniedError(
                f"Expected Airflow at {self.base_url} to know the user {login!r} of the connection, found status "
                f"{response.status_code}; correct the login or the password."
            )
        return str(data["access_token"])

    def airflow_version(self) -> str | None:
        """
        Return the version of the Airflow that the server is, ``None`` for another server.

        :raises CoordinatorUnavailableError: if it does not answer.
        """
        data = _json(self._request("GET", f"{self.base_url}/api/v2/version", None, {}))
        return str(data["version"]) if isinstance(data, dict) and "version" in data else None

    def _send(self, method: str, path: str, token: str | None, body: Any) -> Any:
        url = url_of(self.base_url, path)
        return content_of(self._request(method, url, body, headers_for(token)), url)

    def _request(self, method: str, url: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        with failures_of(self.base_url, url):
            return self._client.request(method, url, json=body, headers=headers)


def url_of(base_url: str, path: str) -> str:
    """Return the address of something that the API has."""
    return f"{base_url}{MOUNT_PATH}{VERSION_PATH}/{path}"


def headers_for(token: str | None) -> dict[str, str]:
    """Return the headers that show a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@contextmanager
def failures_of(base_url: str, url: str) -> Iterator[None]:
    """
    Say what it means that a request got no reply.

    :param base_url: Root of the server.
    :param url: What was asked for.
    :raises CoordinatorUnavailableError: if the request did not get there.
    :raises CommitStateUnknownError: if its reply was lost.
    :raises InvalidConfigurationError: for an address that is none.
    :raises AccessDeniedError: for a token that no request can carry.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise CoordinatorUnavailableError(
            f"Expected the coordinator's API at {base_url}, found no server there ({error}); nothing was changed."
        ) from error
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise InvalidConfigurationError(
            f"Expected an address such as http://localhost:8080, found {base_url!r} ({error}); correct "
            f"[statecheck] api_url or the connection."
        ) from error
    except httpx.LocalProtocolError:
        # The error's own text quotes the header, and with it the token.
        raise AccessDeniedError(
            "Expected a token that can stand in a header, found one with other characters, such as a line's end."
        ) from None
    except httpx.TransportError as error:
        raise CommitStateUnknownError(
            f"The reply of {url} was lost ({type(error).__name__}), so the call may or may not have taken effect; "
            f"repeat it."
        ) from error


def content_of(response: httpx.Response, url: str) -> Any:
    """
    Return what a reply says.

    :raises StateCheckError: what the coordinator raised, or what another server's reply means.
    """
    data = _json(response)
    if response.is_success and data is not _NO_JSON:
        return data
    if isinstance(data, dict) and "code" in data and "message" in data:
        raise decode_error(data)
    raise _unexpected(response, url)


def _unexpected(response: httpx.Response, url: str) -> StateCheckError:
    found = f"found status {response.status_code}: {response.text[:200]!r}"
    if _is_passing(response):
        # A proxy or a server that is coming up answers so too; whether the call took effect cannot be told.
        return CommitStateUnknownError(f"Expected an answer of the coordinator at {url}, {found}; repeat the call.")
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return AccessDeniedError(
            f"Expected an answer of the coordinator at {url}, {found}; Airflow or a proxy before it refused the caller."
        )
    return CoordinatorError(
        f"Expected an answer of the coordinator at {url}, {found}; check that the api-server has this provider installed "
        f"and that [statecheck] api_url names it."
    )


def _is_passing(response: httpx.Response) -> bool:
    status = response.status_code
    return status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS


_NO_JSON = object()


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return _NO_JSON


class Credentials(Protocol):
    """Gets tokens for one task."""

    def obtain(self) -> str:
        """
        Return a token that may register an attempt and read.

        :raises AccessDeniedError: if the coordinator gives none.
        :raises CoordinatorUnavailableError: if it does not answer.
        """
        ...


class GivenToken:
    """
    A token that somebody else obtained; it cannot be renewed.

    :param token: The token.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def obtain(self) -> str:
        """Return the token."""
        return self._token

    def __repr__(self) -> str:
        return "GivenToken(***)"
