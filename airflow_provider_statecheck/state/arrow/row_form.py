"""Rows of earlier snapshots in the form that a state has now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    NAMESPACE,
    USER_KEY,
    VALUE,
    StateLayout,
    position_columns,
    single,
)
from airflow_provider_statecheck.state.arrow.order import order_codes
from airflow_provider_statecheck.state.arrow.part import Part
from airflow_provider_statecheck.state.keyed.cell_migration import CellMigration
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.schemas import StateSchema

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


class RowForm(Protocol):
    """Brings the rows of a part into the columns and types that a reader wants."""

    def rows(self, part: Part, table: Any, *, namespace: bool) -> Any:
        """Return rows."""
        ...

    def firsts(self, part: Part, *, namespace: bool) -> Any:
        """Return the first position of each block."""
        ...

    def deletions(self, part: Part) -> int:
        """Return how many rows only say that something older is gone; at least one if some may have expired since."""
        ...

    def is_current(self, part: Part) -> bool:
        """Tell whether rows need not be written again to be as the state is now."""
        ...


class PositionForm:
    """
    Leaves the values out, so that it needs none of their types.

    :param layout: Its values are of the null type.
    """

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout

    @classmethod
    def of(cls, keys: KeySerializer, user_key_type: Any) -> PositionForm:
        """Return the form for keys of a serializer."""
        import pyarrow as pa

        return cls(StateLayout.of(keys, pa.null(), user_key_type))

    @property
    def layout(self) -> StateLayout:
        """Return the columns of the rows."""
        return self._layout

    def rows(self, part: Part, table: Any, *, namespace: bool) -> Any:
        """Return rows without their values."""
        import pyarrow as pa

        index = table.schema.get_field_index(VALUE)
        table = table.set_column(index, VALUE, pa.nulls(table.num_rows))
        return self._layout.conform(table, namespace=namespace, deleted=DELETED in table.schema.names)

    def firsts(self, part: Part, *, namespace: bool) -> Any:
        """Return the first position of each block as it was written."""
        return _with_namespace(self._layout, part.firsts, namespace=namespace)

    def deletions(self, part: Part) -> int:
        """Return how many rows only say that something older is gone."""
        return part.deletions

    def is_current(self, part: Part) -> bool:
        """Tell that rows stay as they were written."""
        return True


class StateRowForm:
    """
    Brings the rows of a part into the columns and types of a state, block by block.

    :param state: The state as it is now.
    :param restored: As what it was written last.
    :param layout: Its columns.
    :param now_ms: When values that have no time were last used.
    """

    def __init__(self, state: RegisteredState, restored: StateSchema, layout: StateLayout, now_ms: int) -> None:
        self._state = state
        self._restored = restored
        self._schema = state.schema()
        self._layout = layout
        self._now_ms = now_ms
        self._migrations: list[tuple[StateSchema, CellMigration | None]] = []

    def require(self, part: Part) -> None:
        """
        Refuse a part that cannot go on.

        :raises StateMigrationError: if the types do not fit.
        """
        self._migration(part.state)

    def rows(self, part: Part, table: Any, *, namespace: bool) -> Any:
        """
        Return rows in the form of now; those that expired say that older ones are gone.

        :raises StateMigrationError: if the new user keys of a map are in another order.
        """
        migration = self._migration(part.state)
        if migration is not None:
            table = self._migrated(migration, table)
        return self._layout.conform(table, namespace=namespace, deleted=DELETED in table.schema.names)

    def firsts(self, part: Part, *, namespace: bool) -> Any:
        """Return the first position of each block in the form of now."""
        table, migration = part.firsts, self._migration(part.state)
        if migration is not None and migration.migrate_keys is not None:
            index = table.schema.get_field_index(USER_KEY)
            table = table.set_column(index, USER_KEY, migration.migrate_keys(single(table.column(index))))
        return _with_namespace(self._layout, table, namespace=namespace)

    def deletions(self, part: Part) -> int:
        """Return how many rows only say that something older is gone; at least one if some may have expired since."""
        migration = self._migration(part.state)
        return part.deletions if migration is None or not migration.lets_expire else max(1, part.deletions)

    def is_current(self, part: Part) -> bool:
        """Tell whether rows were written in the form of now."""
        return self._migration(part.state) is None

    def _migration(self, old: StateSchema) -> CellMigration | None:
        for known, migration in self._migrations:
            if known is old or known == old:
                return migration
        migration = None if old == self._schema else CellMigration.of(self._lately(old), self._state, self._now_ms)
        self._migrations.append((old, migration))
        return migration

    def _lately(self, old: StateSchema) -> StateSchema:
        """Return as what rows were written, with the time to live that they had last."""
        return replace(old, ttl_ms=self._restored.ttl_ms) if old.ttl and self._restored.ttl else old

    def _migrated(self, migration: CellMigration, table: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        have = dict(zip(table.schema.names, table.columns, strict=True))
        user_keys = single(have[USER_KEY]) if USER_KEY in have else None
        new = migration.migrated(single(have[VALUE]), user_keys)
        have |= {VALUE: new.cells, USER_KEY: new.user_keys}
        if new.expired is not None:
            have[DELETED] = pc.or_(single(have[DELETED]), new.expired) if DELETED in have else new.expired
        wanted = self._layout.schema(namespace=NAMESPACE in have, deleted=DELETED in have)
        migrated = pa.table([have[name] for name in wanted.names], schema=wanted)
        if migration.migrate_keys is not None:
            self._require_order(migrated)
        return migrated

    def _require_order(self, table: Any) -> None:
        codes = order_codes(position_columns(table))
        if (codes[1:] <= codes[:-1]).any():
            raise StateMigrationError(
                f"Expected the new keys of the map state {self._state.name} to be different and in the order of the old ones, "
                f"found others; use another name for a state with such keys, and move the entries in the function."
            )


def _with_namespace(layout: StateLayout, table: Any, *, namespace: bool) -> Any:
    import pyarrow as pa

    if not namespace or NAMESPACE in table.schema.names:
        return table
    none = pa.repeat(pa.scalar("", pa.string()), table.num_rows)
    return table.add_column(1 + len(layout.key_fields), NAMESPACE, none)
