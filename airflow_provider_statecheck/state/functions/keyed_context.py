"""What a function learns of the element that it is given."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

from airflow_provider_statecheck.exceptions import CoordinatorError

K = TypeVar("K")
_NONE = object()


class KeyedContext(Generic[K]):
    """
    The key and the time of the element at hand; one object serves all elements of a subtask.

    It is of no use outside of the call that it is given to, nor to a generator that is read later.
    """

    __slots__ = ("_is_open", "_key", "_timestamp")

    def __init__(self) -> None:
        self._is_open = False
        self._key: object = _NONE
        self._timestamp: int | None = None

    @property
    def current_key(self) -> K:
        """
        Return the key of the element.

        :raises CoordinatorError: outside of a call, or where there are elements of many keys.
        """
        if self._key is _NONE:
            raise CoordinatorError(
                "Expected to be asked for the current key while one element is processed, found no key; "
                "in process_batch take it from the columns of the table."
            )
        return cast(K, self._key)

    def timestamp(self) -> int | None:
        """
        Return the time of the element in milliseconds since 1970, ``None`` if it has none.

        :raises CoordinatorError: outside of a call.
        """
        if not self._is_open:
            raise CoordinatorError(
                "Expected to be asked for the timestamp while an element is processed, found none at hand."
            )
        return self._timestamp

    def begin(self, key: K, timestamp: int | None = None) -> None:
        """Go to an element; what runs the function calls it."""
        self._is_open, self._key, self._timestamp = True, key, timestamp

    def begin_batch(self) -> None:
        """Go to elements of many keys."""
        self._is_open, self._key, self._timestamp = True, _NONE, None

    def end(self) -> None:
        """Leave the element or the batch."""
        self._is_open, self._key, self._timestamp = False, _NONE, None
