"""How a client shows who it is."""

from __future__ import annotations

from typing import Protocol


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
