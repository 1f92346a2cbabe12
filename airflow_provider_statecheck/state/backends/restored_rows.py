"""A restored state that no descriptor asked for yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.backends.state_rows import NAMESPACE, USER_KEY, VALUE, StateRows, repeated
from airflow_provider_statecheck.state.keyed.cell_migration import CellMigration, MigratedCells

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.backends.hash_map_table import HashMapTable
    from airflow_provider_statecheck.state.backends.hash_state_table import HashStateTable
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


class RestoredRows:
    """
    Keeps the rows as they were read: they go on unchanged through snapshots, or into a table.

    :param rows: What was read.
    """

    def __init__(self, rows: StateRows) -> None:
        self._rows = rows

    def rows(self) -> StateRows:
        """Return the rows as they were read."""
        return self._rows

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._rows)

    def fill(
        self, table: HashStateTable | HashMapTable, state: RegisteredState, key_serializer: KeySerializer, now_ms: int
    ) -> None:
        """
        Put the rows into a table, in the types of its state.

        :param now_ms: The time, for values whose times are added or taken away.
        :raises StateMigrationError: if they cannot go on with the serializers.
        """
        if not self._rows.blocks:
            return
        key_groups, rows = self._joined()
        migration = CellMigration.of(self._rows.schema, state, now_ms)
        user_keys = rows.column(USER_KEY) if state.is_map else None
        cells = rows.column(VALUE)
        changed = MigratedCells(user_keys, cells) if migration is None else migration.migrated(cells, user_keys)
        living = (changed.living(column) for column in rows.columns[: len(key_serializer.fields)])
        keys = key_serializer.from_columns(tuple(living))
        columns = (changed.living(key_groups).to_pylist(), changed.living(rows.column(NAMESPACE)).to_pylist(), keys)
        for row in zip(*columns, *_decoded(state, changed), strict=True):
            table.restore(*row)

    def _joined(self) -> tuple[Any, Any]:
        import pyarrow as pa

        batches = [batch for _, batch in self._rows.blocks]
        counts = [batch.num_rows for batch in batches]
        key_groups = repeated([key_group for key_group, _ in self._rows.blocks], counts, pa.int32())
        return key_groups, pa.concat_batches(batches)


def _decoded(state: RegisteredState, changed: MigratedCells) -> tuple[list[Any], list[Any]]:
    cells = state.cells.read(changed.living(changed.cells))
    if state.key_serializer is None:
        return [None] * len(cells), cells
    return state.key_serializer.from_arrow(changed.living(changed.user_keys)), cells
