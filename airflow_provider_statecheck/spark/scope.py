"""Names of steps in their scopes, and keys of the items of loops, which are scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any, TypeVar
from uuid import UUID

from airflow_provider_statecheck.exceptions import DuplicateNameError, InvalidConfigurationError
from airflow_provider_statecheck.state.progress import Scope, StepKey, describe

Item = TypeVar("Item")

_MAX_NAME = 200


class ScopedNames:
    """
    Names of steps and loops that were used in this try.

    A second use of a name in one scope is an error: it would return the data of the first step.
    """

    def __init__(self) -> None:
        self.current: Scope = ()
        self._used: set[StepKey] = set()

    def claim(self, name: object) -> StepKey:
        """
        Register a name in the current scope and return its key.

        :raises InvalidConfigurationError: for a name that is not 1 to 200 characters of text.
        :raises DuplicateNameError: if the name is already used.
        """
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise InvalidConfigurationError(
                f"Expected the name of a step to be text of 1 to {_MAX_NAME} characters, found {name!r}; rename the step."
            )
        step = (self.current, name)
        if step in self._used:
            raise DuplicateNameError(f"The name {describe(step)!r} is used twice; give each step a unique name.")
        self._used.add(step)
        return step

    @contextmanager
    def inside(self, name: str, item_key: str) -> Iterator[Scope]:
        """Make an item the current scope; its names are released at the end."""
        outer = self.current
        inner = (*outer, (name, item_key))
        self.current = inner
        try:
            yield inner
        finally:
            self.current = outer
            self._used = {step for step in self._used if step[0][: len(inner)] != inner}


def keyed(items: Iterable[Item], key: Callable[[Item], Any] | None) -> list[tuple[str, Item]]:
    """
    Return pairs of an item's key, as text, and the item.

    :param items: The items; all are read before the first pair is returned.
    :param key: Function that returns the key of an item; by default an item that is text, a whole number, a date or a
        UUID is its own key.
    :raises InvalidConfigurationError: for an item without a key.
    :raises DuplicateNameError: if two items have the same key.
    """
    pairs = [(_encoded_key(item if key is None else key(item)), item) for item in items]
    seen: set[str] = set()
    for encoded, item in pairs:
        if encoded in seen:
            raise DuplicateNameError(
                f"Expected a unique key for each item, found {encoded!r} twice, the second time for {item!r}; pass key= to "
                f"derive unique keys."
            )
        seen.add(encoded)
    return pairs


def _encoded_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, datetime | date):
        return key.isoformat()
    if isinstance(key, int | UUID) and not isinstance(key, bool):
        return str(key)
    raise InvalidConfigurationError(
        f"Expected the key of an item to be text, a whole number, a date or a UUID, found {key!r}; "
        f"pass key= to derive a key that is the same in every try."
    )
