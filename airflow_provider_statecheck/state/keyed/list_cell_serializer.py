"""A list state's cell: a list of elements as one Arrow list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

from airflow_provider_statecheck.state.serializers.freezing import Freezing, freezing_of
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    SerializerSnapshot,
    TypeSerializer,
)


class ListCellSerializer:
    """
    Lists of elements of one type; snapshots are those of the element, so that a list state evolves as its elements do.

    :param element: The serializer of an element.
    """

    def __init__(self, element: TypeSerializer[Any]) -> None:
        self.element = element

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow type of the column."""
        import pyarrow as pa

        return pa.list_(self.element.arrow_type)

    def to_arrow(self, values: Sequence[list[Any] | None]) -> Any:
        """
        Return an Arrow array of lists, null where there is ``None``.

        :raises UnsupportedStateError: for an element of another type.
        """
        return self._lists_of(values, self.element.to_arrow)

    def from_arrow(self, array: Any) -> list[list[Any] | None]:
        """Return the lists of an array; each is new and may be changed."""
        return _lists_from(array, self.element.from_arrow)

    def freezing(self) -> Freezing:
        """Return how lists are kept: as lists, which the state alone has, of elements that nobody can change."""
        element = freezing_of(self.element)
        return Freezing(
            lambda value: list(map(element.freeze, value)),
            lambda kept: list(map(element.thawed, kept)),
            lambda array: _lists_from(array, element.read),
            lambda kept: self._lists_of(kept, element.write),
        )

    def copy(self, value: list[Any]) -> list[Any]:
        """Return a list that shares nothing with another that could be changed."""
        return [self.element.copy(element) for element in value]

    def snapshot(self) -> SerializerSnapshot:
        """Return that of the element."""
        return self.element.snapshot()

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Say whether the elements can go on with this serializer; a migration is one of elements."""
        return self.element.resolve_compatibility(old)

    def _lists_of(self, values: Sequence[list[Any] | None], write: Callable[[list[Any]], Any]) -> Any:
        import pyarrow as pa

        flat = write(list(chain.from_iterable(value or () for value in values)))
        ends = list(accumulate(len(value or ()) for value in values))
        offsets = pa.array([0, *ends], pa.int32())
        mask = pa.array([value is None for value in values], pa.bool_()) if None in values else None
        return pa.ListArray.from_arrays(offsets, flat, type=self.arrow_type, mask=mask)


def _lists_from(array: Any, read: Callable[[Any], list[Any]]) -> list[list[Any] | None]:
    flat = read(array.flatten())
    values: list[list[Any] | None] = []
    start = 0
    for length in array.value_lengths().to_pylist():
        end = start + (length or 0)
        values.append(None if length is None else flat[start:end])
        start = end
    return values
