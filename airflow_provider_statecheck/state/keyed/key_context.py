"""The key on whose behalf a function runs at the moment."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import CoordinatorError

NO_KEY_GROUP = -1


class KeyContext:
    """
    Shared by a backend and its states; read at each access, so it is two plain attributes.

    Without a key the group is below 0.
    """

    __slots__ = ("key", "key_group")

    def __init__(self) -> None:
        self.key: Any = None
        self.key_group = NO_KEY_GROUP

    def require(self) -> None:
        """
        Refuse access as long as there is no key.

        :raises CoordinatorError: if no key was set.
        """
        if self.key_group < 0:
            raise no_key()


def no_key() -> CoordinatorError:
    """Return the error of an access to keyed state without a key."""
    return CoordinatorError(
        "Expected a current key, found none; keyed state can be used only while an element of a keyed stream is processed, "
        "not in open() or close()."
    )
