"""One state as it was when a snapshot began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.backends.state_rows import StateRows, arrow_schema_of, blocks_of, repeated
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import unexpired

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.backends.hash_map_table import HashMapTable
    from airflow_provider_statecheck.state.backends.hash_state_table import HashStateTable
    from airflow_provider_statecheck.state.backends.versioned_groups import Version
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


class CapturedState:
    """
    Keeps a version of a table; lists, which the state changes in place, become columns at once, others when they are asked for.

    :param state: What is in the table.
    :param table: The table.
    :param key_serializer: What the keys are.
    :param now_ms: The time of the snapshot; what is expired then is not written.
    """

    def __init__(
        self,
        state: RegisteredState,
        table: HashStateTable | HashMapTable,
        key_serializer: KeySerializer,
        now_ms: int,
    ) -> None:
        self._state = state
        self._table = table
        self._key_serializer = key_serializer
        self._now_ms = now_ms
        self._version: Version | None = table.groups.version()
        self._rows: StateRows | None = None
        if state.kind is StateKind.LIST:
            self.rows()

    def rows(self) -> StateRows:
        """
        Return the state as columns.

        :raises UnsupportedStateError: for a value of another type than the state's.
        """
        if self._rows is None:
            assert self._version is not None  # noqa: S101 - for the type checker
            self._rows = self._encoded(self._version)
            self._version = None
        return self._rows

    def _encoded(self, version: Version) -> StateRows:
        schema = arrow_schema_of(self._state, self._key_serializer)
        key_groups, batch = self._columns(version, schema)
        return StateRows(self._state.schema(), schema, tuple(blocks_of(key_groups, batch)))

    def _columns(self, version: Version, schema: Any) -> tuple[Any, Any]:
        import pyarrow as pa

        parts = sorted((key_group, name) for name, groups in version.items() for key_group in groups)
        found = [self._table.rows_of(version[name][key_group]) for key_group, name in parts]
        keys, user_keys, cells = ([row for part in found for row in part[i] or ()] for i in range(3))
        counts = [len(part[0]) for part in found]
        names = repeated([name for _, name in parts], counts, pa.string())
        columns = [*self._key_columns(keys), names, *self._user_key_columns(user_keys)]
        columns.append(self._state.cells.write(cells))
        key_groups = repeated([key_group for key_group, _ in parts], counts, pa.int32())
        return self._without_expired(key_groups, pa.RecordBatch.from_arrays(columns, schema=schema))

    def _key_columns(self, keys: list[Any]) -> list[Any]:
        import pyarrow as pa

        # Keys are in their normalized form already, which takes longer to find than all the rest.
        types = self._key_serializer.arrow_types
        columns = [keys] if len(types) == 1 else (list(zip(*keys, strict=True)) or [()] * len(types))
        return [pa.array(column, wanted) for column, wanted in zip(columns, types, strict=True)]

    def _user_key_columns(self, user_keys: list[Any]) -> list[Any]:
        serializer = self._state.key_serializer
        return [] if serializer is None else [serializer.to_arrow(user_keys)]

    def _without_expired(self, key_groups: Any, batch: Any) -> tuple[Any, Any]:
        import pyarrow as pa

        if self._state.ttl is None:
            return key_groups, batch
        cells, kept = unexpired(self._state, batch.column(batch.num_columns - 1), self._now_ms)
        batch = pa.RecordBatch.from_arrays([*batch.columns[:-1], cells], schema=batch.schema)
        return key_groups.filter(kept), batch.filter(kept)
