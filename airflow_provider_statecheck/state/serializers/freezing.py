"""
How a backend keeps values: in a form that nobody else can change, from which each reader gets a value of its own.

Whatever can be changed is taken apart or copied when it is put and when it is read, so a change made in place never reaches
the state. What cannot be changed is kept and handed out as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from airflow_provider_statecheck.state.serializers.optional import is_immutable
from airflow_provider_statecheck.state.serializers.owning import own_of
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer


class Freezing(NamedTuple):
    """How values of one type are kept."""

    freeze: Callable[[Any], Any]
    """Returns what is kept of a value; raises ``UnsupportedStateError`` for a value of another type."""
    thaw: Callable[[Any], Any] | None
    """Returns a value from what was kept of it; ``None`` if that is the value itself."""
    read: Callable[[Any], list[Any]]
    """Returns what is kept of the values of an Arrow array, ``None`` where it is null."""
    write: Callable[[Sequence[Any]], Any]
    """Returns an Arrow array of values from what was kept of them, null where that is ``None``."""

    def thawed(self, kept: Any) -> Any:
        """Return a value from what was kept of it, ``None`` from ``None``."""
        return kept if self.thaw is None or kept is None else self.thaw(kept)


def freezing_of(serializer: TypeSerializer[Any]) -> Freezing:
    """Return how the values of a serializer are kept: as its ``freezing`` says, else as they are or as copies."""
    special = getattr(serializer, "freezing", None)
    if special is not None:
        found: Freezing = special()
        return found
    thaw = None if is_immutable(serializer) else serializer.copy
    return Freezing(own_of(serializer), thaw, serializer.from_arrow, serializer.to_arrow)
