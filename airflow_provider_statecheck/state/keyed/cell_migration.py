"""Migration of restored cells to the current types and time to live of a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.abstract_backend import compatibility_of, compatibility_of_keys
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState, lists_of
from airflow_provider_statecheck.state.schemas import StateSchema

_Migrate = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class MigratedCells:
    """Migrated Arrow arrays, with a mask of expired rows."""

    user_keys: Any
    """User keys of map entries; ``None`` for other states."""
    cells: Any
    expired: Any = None
    """Boolean Arrow array that marks expired rows; ``None`` if no row is expired."""

    def living(self, column: Any) -> Any:
        """Return a column of the same rows without the expired ones."""
        import pyarrow.compute as pc

        return column if self.expired is None else column.filter(pc.invert(self.expired))


@dataclass(frozen=True, slots=True)
class CellMigration:
    """
    Migration of the types and timestamps of cells.

    Values that gain a time to live get the current time as their last use. Expired values of a state that loses it are
    dropped.
    """

    is_list: bool
    migrate: _Migrate | None
    migrate_keys: _Migrate | None
    had_times: bool
    has_times: bool
    lifetime_ms: int | None
    """Time to live of the restored values in milliseconds, if known."""
    now_ms: int

    @property
    def lets_expire(self) -> bool:
        """Return whether the migration may find expired rows."""
        return self.had_times and not self.has_times and self.lifetime_ms is not None

    @classmethod
    def of(cls, old: StateSchema, new: RegisteredState, now_ms: int) -> CellMigration | None:
        """
        Return the migration of restored cells, or ``None`` if they need none.

        :raises StateMigrationError: if the types are incompatible.
        """
        migration = cls(
            is_list=new.kind is StateKind.LIST,
            migrate=compatibility_of(new.name, new.serializer, old.value).migrate,
            migrate_keys=_key_migration(old, new),
            had_times=old.ttl,
            has_times=new.ttl is not None,
            lifetime_ms=old.ttl_ms,
            now_ms=now_ms,
        )
        changes = migration.migrate or migration.migrate_keys or migration.had_times is not migration.has_times
        return migration if changes else None

    def migrated(self, cells: Any, user_keys: Any = None) -> MigratedCells:
        """Migrate cells, and the user keys of a map."""
        new, expired = self._lists(cells) if self.is_list else self._elements(cells)
        return MigratedCells(user_keys if self.migrate_keys is None else self.migrate_keys(user_keys), new, expired)

    def _elements(self, elements: Any) -> tuple[Any, Any]:
        import pyarrow.compute as pc

        values = pc.struct_field(elements, "value") if self.had_times else elements
        new = values if self.migrate is None else self.migrate(values)
        if self.had_times is self.has_times and not self.had_times:
            return new, None
        times = pc.struct_field(elements, "last_access_ms") if self.had_times else self._repeated_now(len(elements))
        return (_with_times(new, times), None) if self.has_times else (new, self._expired(times))

    def _lists(self, cells: Any) -> tuple[Any, Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        new, expired = self._elements(cells.flatten())
        elements = MigratedCells(None, new, expired)
        lists = lists_of(elements.living(new), elements.living(pc.list_parent_indices(cells)), len(cells))
        return lists, None if expired is None else pc.equal(pc.list_value_length(lists), pa.scalar(0, pa.int32()))

    def _repeated_now(self, length: int) -> Any:
        import pyarrow as pa

        return pa.repeat(pa.scalar(self.now_ms, pa.int64()), length)

    def _expired(self, times: Any) -> Any:
        import pyarrow.compute as pc

        if self.lifetime_ms is None:
            return None
        # A null timestamp belongs to a null value.
        return pc.fill_null(pc.less_equal(times, self.now_ms - self.lifetime_ms), True)


def _key_migration(old: StateSchema, new: RegisteredState) -> _Migrate | None:
    if new.key_serializer is None or old.key is None:
        return None
    return compatibility_of_keys(new.name, new.key_serializer, old.key).migrate


def _with_times(values: Any, times: Any) -> Any:
    import pyarrow as pa

    return pa.StructArray.from_arrays([values, times], names=["value", "last_access_ms"])
