"""Progress of loops: finished items, and iterations of refining loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, TypeVar
from uuid import UUID

from airflow_provider_statecheck.exceptions import DuplicateNameError, InvalidConfigurationError
from airflow_provider_statecheck.spark.scope import Scope, StepKey

Item = TypeVar("Item")


class LoopProgress:
    """
    The finished items of all loops of a stage.

    :param encoded: What :meth:`encode` gave.
    """

    def __init__(self, encoded: Any = ()) -> None:
        self._finished: dict[StepKey, set[str]] = {}
        for scope, name, keys in encoded:
            self._finished[(tuple((loop, item) for loop, item in scope), name)] = set(keys)

    def encode(self) -> list[Any]:
        """Return the progress as JSON."""
        return [
            [[list(pair) for pair in scope], name, sorted(keys)]
            for (scope, name), keys in sorted(self._finished.items())
        ]

    @property
    def finished_items(self) -> int:
        """Return how many items are finished over all loops."""
        return sum(len(keys) for keys in self._finished.values())

    def is_finished(self, loop: StepKey, item_key: str) -> bool:
        """Tell whether an item was finished, in this try or an earlier one."""
        return item_key in self._finished.get(loop, ())

    def finish(self, loop: StepKey, item_key: str) -> None:
        """Record an item; what loops inside it had finished is no longer of use."""
        self._finished.setdefault(loop, set()).add(item_key)
        self.drop_scope((*loop[0], (loop[1], item_key)))

    def drop_scope(self, scope: Scope) -> None:
        """Forget what the loops inside an item had finished."""
        self._finished = {loop: keys for loop, keys in self._finished.items() if loop[0][: len(scope)] != scope}


def keyed(items: Iterable[Item], key: Callable[[Item], Any] | None) -> list[tuple[str, Item]]:
    """
    Give every item its key as text.

    :param items: The items; all are taken before the first is worked on.
    :param key: Gives an item's key; by default an item that is text, a number, a date or a UUID is its own.
    :raises InvalidConfigurationError: for an item without a key.
    :raises DuplicateNameError: if two items have one key.
    """
    pairs = [(_text_of(item if key is None else key(item)), item) for item in items]
    seen: set[str] = set()
    for text, item in pairs:
        if text in seen:
            raise DuplicateNameError(
                f"Two items have the key {text!r}, the second is {item!r}; pass key= so that each item has its own."
            )
        seen.add(text)
    return pairs


def _text_of(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, datetime | date):
        return key.isoformat()
    if isinstance(key, int | UUID) and not isinstance(key, bool):
        return str(key)
    raise InvalidConfigurationError(
        f"Expected the key of an item to be text, a whole number, a date or a UUID, found {key!r}; "
        f"pass key= to derive one that stays the same in every try."
    )


@dataclass(frozen=True, slots=True)
class Iteration:
    """What a loop's snapshot holds."""

    number: int
    """Of the step, counted from 1."""
    is_converged: bool
    """Whether the loop was over with it."""


class Iterations:
    """
    The newest snapshotted step of each loop of a stage.

    :param encoded: What :meth:`encode` gave.
    """

    def __init__(self, encoded: Any = ()) -> None:
        self._reached: dict[StepKey, Iteration] = {
            (tuple((loop, item) for loop, item in scope), name): Iteration(number, is_converged)
            for scope, name, number, is_converged in encoded
        }

    def encode(self) -> list[Any]:
        """Return the loops as JSON."""
        return [
            [[list(pair) for pair in scope], name, reached.number, reached.is_converged]
            for (scope, name), reached in sorted(self._reached.items(), key=lambda entry: entry[0])
        ]

    def find(self, loop: StepKey) -> Iteration | None:
        """Return how far a loop has got."""
        return self._reached.get(loop)

    def reach(self, loop: StepKey, iteration: Iteration) -> None:
        """Record what the loop's live snapshot holds now."""
        self._reached[loop] = iteration

    def forget(self, loop: StepKey) -> None:
        """Forget a loop whose name belongs to a plain step now."""
        self._reached.pop(loop, None)

    def drop_scope(self, scope: Scope) -> None:
        """Forget the loops inside a finished item."""
        self._reached = {loop: it for loop, it in self._reached.items() if loop[0][: len(scope)] != scope}
