"""During which call a context is of use."""

from __future__ import annotations

from airflow_provider_statecheck.exceptions import CoordinatorError


class OpenSpan:
    """
    Begins open and is closed once.

    :param what: Names the context in errors.
    :param when: Says when it is of use.
    """

    __slots__ = ("_is_open", "_what", "_when")

    def __init__(self, what: str, when: str) -> None:
        self._what = what
        self._when = when
        self._is_open = True

    def close(self) -> None:
        """End the use."""
        self._is_open = False

    def require(self) -> None:
        """
        Go on while the span is open.

        :raises CoordinatorError: after it was closed.
        """
        if not self._is_open:
            raise CoordinatorError(
                f"Expected {self._what} to be used {self._when}, found a later use; keep the state that it gave, not it."
            )
