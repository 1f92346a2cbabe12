"""Progress of loops: finished items of ``each``, and snapshotted iterations of ``iterate``."""

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
    Finished items of all loops of a stage.

    :param encoded: Return value of :meth:`encode`.
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
        """Return the number of finished items of all loops."""
        return sum(len(keys) for keys in self._finished.values())

    def is_finished(self, loop: StepKey, item_key: str) -> bool:
        """Return whether an item is finished, in this try or an earlier one."""
        return item_key in self._finished.get(loop, ())

    def finish(self, loop: StepKey, item_key: str) -> None:
        """Record an item as finished, and drop the loops inside it."""
        self._finished.setdefault(loop, set()).add(item_key)
        self.drop_scope((*loop[0], (loop[1], item_key)))

    def drop_scope(self, scope: Scope) -> None:
        """Drop the loops inside an item."""
        self._finished = {loop: keys for loop, keys in self._finished.items() if loop[0][: len(scope)] != scope}


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


@dataclass(frozen=True, slots=True)
class Iteration:
    """Iteration of a loop that its snapshot contains."""

    number: int
    """Number of the step, counted from 1."""
    is_converged: bool
    """Whether the loop ended with this step."""


class Iterations:
    """
    Newest snapshotted iteration of each loop of a stage.

    :param encoded: Return value of :meth:`encode`.
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
        """Return the newest snapshotted iteration of a loop."""
        return self._reached.get(loop)

    def reach(self, loop: StepKey, iteration: Iteration) -> None:
        """Record the iteration of the loop's live snapshot."""
        self._reached[loop] = iteration

    def forget(self, loop: StepKey) -> None:
        """Drop a loop whose name is now that of a step."""
        self._reached.pop(loop, None)

    def drop_scope(self, scope: Scope) -> None:
        """Drop the loops inside a finished item."""
        self._reached = {loop: it for loop, it in self._reached.items() if loop[0][: len(scope)] != scope}
