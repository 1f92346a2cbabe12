"""Elements of one operator state as columns, with what their serializers were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot

KEY = "key"
VALUE = "value"


@dataclass(frozen=True, slots=True)
class WrittenElements:
    """Elements that were written with the same serializers; nobody changes them any more."""

    key: SerializerSnapshot | None
    """Of the keys of a broadcast map."""
    value: SerializerSnapshot
    table: Any
    """An Arrow table with a column ``value``, and one ``key`` for a map."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Any:
        """Return a column as one Arrow array."""
        return self.table.column(name).combine_chunks()

    def take(self, rows: Sequence[int]) -> WrittenElements:
        """Return some of the elements, in the order of their rows."""
        import pyarrow as pa

        if len(rows) == len(self) and list(rows) == list(range(len(self))):
            return self
        return WrittenElements(self.key, self.value, self.table.take(pa.array(rows, pa.int64())))

    def can_join(self, other: WrittenElements) -> bool:
        """Tell whether both can be one."""
        mine = self.key, self.value, self.table.schema
        return mine == (other.key, other.value, other.table.schema)

    def join(self, other: WrittenElements) -> WrittenElements:
        """Return these elements and then others."""
        import pyarrow as pa

        return WrittenElements(self.key, self.value, pa.concat_tables([self.table, other.table]))


def joined(pieces: Iterable[WrittenElements]) -> tuple[WrittenElements, ...]:
    """Return the same elements in as few pieces as possible; one at least stays, for it says what the state is."""
    found = list(pieces)
    result: list[WrittenElements] = []
    for piece in [piece for piece in found if len(piece)] or found[:1]:
        if result and result[-1].can_join(piece):
            result[-1] = result[-1].join(piece)
        else:
            result.append(piece)
    return tuple(result)
