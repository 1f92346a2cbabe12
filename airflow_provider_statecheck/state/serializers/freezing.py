"""Values in a form that nobody can change, of which each reader gets a value of its own for less than a copy costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from airflow_provider_statecheck.state.serializers.optional import is_immutable
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer


class Freezing(NamedTuple):
    """How values are kept."""

    freeze: Callable[[Any], list[Any]]
    """Gives what is kept of the values of an Arrow array, ``None`` where it is null."""
    thaw: Callable[[Any], Any] | None
    """Makes a value of what was kept of it; ``None`` if that is the value itself."""


def freezing_of(serializer: TypeSerializer[Any]) -> Freezing:
    """Return how the values of a serializer are kept: as they are, as its ``freezing`` says, or else copied at each read."""
    if is_immutable(serializer):
        return Freezing(serializer.from_arrow, None)
    own = getattr(serializer, "freezing", None)
    return Freezing(serializer.from_arrow, serializer.copy) if own is None else own()
