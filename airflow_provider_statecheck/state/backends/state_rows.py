"""One state of a snapshot or of a restore as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.schemas import StateSchema

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer

NAMESPACE = "namespace"
USER_KEY = "user_key"
VALUE = "value"


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of one state, in the order of their key groups."""

    schema: StateSchema
    arrow_schema: Any
    """Of each block: the columns of the key, ``namespace``, ``user_key`` of a map, and ``value``."""
    blocks: tuple[tuple[int, Any], ...]
    """Key groups, ascending and each perhaps several times, with Arrow record batches that are not empty."""

    def by_key_group(self) -> dict[int, list[Any]]:
        """Return the blocks of each key group."""
        found: dict[int, list[Any]] = {}
        for key_group, batch in self.blocks:
            found.setdefault(key_group, []).append(batch)
        return found

    def __len__(self) -> int:
        return sum(batch.num_rows for _, batch in self.blocks)


def arrow_schema_of(state: RegisteredState, key_serializer: KeySerializer) -> Any:
    """Return the columns in which a state is written."""
    import pyarrow as pa

    keys = [pa.field(f"key_{index}", arrow_type) for index, arrow_type in enumerate(key_serializer.arrow_types)]
    user_key = [] if state.key_serializer is None else [pa.field(USER_KEY, state.key_serializer.arrow_type)]
    return pa.schema(
        [*keys, pa.field(NAMESPACE, pa.string()), *user_key, pa.field(VALUE, state.cell_serializer.arrow_type)]
    )


def repeated(values: Sequence[Any], counts: Sequence[int], arrow_type: Any) -> Any:
    """Return an Arrow array of values, each as often as it counts."""
    import pyarrow as pa

    parts = [pa.repeat(pa.scalar(value, arrow_type), count) for value, count in zip(values, counts, strict=True)]
    return pa.concat_arrays(parts) if parts else pa.array([], arrow_type)


def blocks_of(key_groups: Any, batch: Any) -> Iterator[tuple[int, Any]]:
    """Return the part of each key group of rows that are in the order of their key groups, given as an Arrow array."""
    import numpy as np

    found, starts = np.unique(key_groups.to_numpy(), return_index=True)
    ends = [*starts, len(key_groups)][1:]
    for key_group, start, end in zip(found, starts, ends, strict=True):
        yield int(key_group), batch.slice(int(start), int(end - start))
