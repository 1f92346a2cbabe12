"""How far each refining loop has got, as far as its snapshot reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.spark.scope import Scope, StepKey


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
