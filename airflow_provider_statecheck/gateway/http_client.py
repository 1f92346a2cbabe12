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
    Client of one api-server.

    :param base_url: Root URL of Airflow's api-server, including the path of ``[api] base_url``.
    :param client: Client for the requests. The default trusts the certificates of the machine.
    """

    def __init__(self, base_url: str, client: httpx.Client | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._client = client or httpx.Client(timeout=_TIMEOUT)

    def post(self, path: str, body: Any, token: str | None = None) -> Any:
        """
        Send a message and return the reply.

        :raises StateCheckError: the error of the coordinator.
        :raises CoordinatorUnavailableError: if the message did not reach the server.
        :raises CommitStateUnknownError: if the reply was lost.
        """
        return self._send("POST", path, token, body)

    def get(self, path: str, token: str | None = None) -> Any:
        """
        Return the reply to a query.

        :raises StateCheckError: as for :meth:`post`.
        """
        return self._send("GET", path, token, None)

    def log_in(self, login: str, password: str) -> str:
        """
        Return the token of an Airflow user.

        :raises AccessDeniedError: if Airflow rejects the login.
        :raises CoordinatorUnavailableError: if Airflow does not respond.
        """
        url = f"{self.base_url}/auth/token"
        response = self._request("POST", url, {"username": login, "password": password}, {})
        data = _json(response)
        if _is_transient(response):
            raise CoordinatorUnavailableError(
                f"Expected Airflow at {self.base_url} to log in the user of the connection, found status "
                f"{response.status_code}; nothing was changed, try again."
            )
        if not response.is_success or not isinstance(data, dict) or "access_token" not in data:
            raise AccessDeniedError(
                f"Expected Airflow at {self.base_url} to accept the user {login!r} of the connection, found status "
                f"{response.status_code}; correct the login or the password."
            )
        return str(data["access_token"])

    def airflow_version(self) -> str | None:
        """
        Return the version of Airflow, or ``None`` if the server is not Airflow.

        :raises CoordinatorUnavailableError: if the server does not respond.
        """
        data = _json(self._request("GET", f"{self.base_url}/api/v2/version", None, {}))
        return str(data["version"]) if isinstance(data, dict) and "version" in data else None

    def _send(self, method: str, path: str, token: str | None, body: Any) -> Any:
        url = url_of(self.base_url, path)
        return content_of(self._request(method, url, body, headers_for(token)), url)

    def _request(self, method: str, url: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        with mapping_failures(self.base_url, url):
            return self._client.request(method, url, json=body, headers=headers)


def url_of(base_url: str, path: str) -> str:
    """Return the URL of a path of the API."""
    return f"{base_url}{MOUNT_PATH}{VERSION_PATH}/{path}"


def headers_for(token: str | None) -> dict[str, str]:
    """Return the headers with a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@contextmanager
def mapping_failures(base_url: str, url: str) -> Iterator[None]:
    """
    Map the failure of a request without a reply to an error of this package.

    :param base_url: Root URL of the server.
    :param url: URL of the request.
    :raises CoordinatorUnavailableError: if the request did not reach the server.
    :raises CommitStateUnknownError: if the reply was lost.
    :raises InvalidConfigurationError: if the URL is invalid.
    :raises AccessDeniedError: if the token is not a valid header value.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise CoordinatorUnavailableError(
            f"Expected the coordinator's API at {base_url}, found no server ({error}); nothing was changed."
        ) from error
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise InvalidConfigurationError(
            f"Expected a URL such as http://localhost:8080, found {base_url!r} ({error}); correct [statecheck] api_url or "
            f"the connection."
        ) from error
    except httpx.LocalProtocolError:
        # The text of the error quotes the header, which contains the token.
        raise AccessDeniedError(
            "Expected a token that is a valid header value, found one with other characters, such as a line break; correct "
            "the token."
        ) from None
    except httpx.TransportError as error:
        raise CommitStateUnknownError(
            f"The reply of {url} was lost ({type(error).__name__}), so the call may or may not have taken effect; "
            f"repeat it."
        ) from error


def content_of(response: httpx.Response, url: str) -> Any:
    """
    Return the content of a reply.

    :raises StateCheckError: the error of the coordinator, or one derived from the reply of another server.
    """
    data = _json(response)
    if response.is_success and data is not _NO_JSON:
        return data
    if isinstance(data, dict) and "code" in data and "message" in data:
        raise decode_error(data)
    raise _unexpected(response, url)


def _unexpected(response: httpx.Response, url: str) -> StateCheckError:
    found = f"found status {response.status_code}: {response.text[:200]!r}"
    if _is_transient(response):
        # A proxy may send such a reply after it forwarded the call, so the call may have taken effect.
        return CommitStateUnknownError(f"Expected a reply of the coordinator at {url}, {found}; repeat the call.")
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return AccessDeniedError(
            f"Expected a reply of the coordinator at {url}, {found}; allow the caller in Airflow or in the proxy in front "
            f"of it."
        )
    return CoordinatorError(
        f"Expected a reply of the coordinator at {url}, {found}; check that this provider is installed on the api-server "
        f"and that [statecheck] api_url is the URL of that server."
    )


def _is_transient(response: httpx.Response) -> bool:
    status = response.status_code
    return status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS


_NO_JSON = object()


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return _NO_JSON


class Credentials(Protocol):
    """Source of tokens for one task."""

    def obtain(self) -> str:
        """
        Return a new token that can register an attempt and read jobs.

        :raises AccessDeniedError: if the coordinator issues no token.
        :raises CoordinatorUnavailableError: if the coordinator does not respond.
        """
        ...


class GivenToken:
    """
    Credentials with a single token from another process.

    :param token: The token.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def obtain(self) -> str:
        """Return the token."""
        return self._token

    def __repr__(self) -> str:
        return "GivenToken(***)"
