"""What all keyed states have in common."""

from __future__ import annotations

from typing import Protocol


class State(Protocol):
    """State of the current key."""

    def clear(self) -> None:
        """
        Remove what the current key has; other keys keep theirs.

        :raises CoordinatorError: if there is no current key.
        """
        ...


class MergeableState(State, Protocol):
    """State that two namespaces can be merged into."""

    def merge_from(self, source: State) -> None:
        """Add what another state of the same kind has, and clear that one."""
        ...
