"""A reply of the coordinator's API as the message that it is."""

from __future__ import annotations

from typing import Any, TypeVar

from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.gateway.wire import decode

Reply = TypeVar("Reply")


def read_reply(kind: type[Reply], data: Any) -> Reply:
    """
    Turn what a server answered into a message.

    :raises CoordinatorError: if the server is of another version, which says something else.
    """
    try:
        return decode(kind, data)
    except ValueError as error:
        raise CoordinatorError(
            f"Expected a reply of this version of the API, found another ({error}); install one version of the provider on "
            f"the api-server and on the workers."
        ) from error
