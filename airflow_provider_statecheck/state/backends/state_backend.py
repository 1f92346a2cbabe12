"""Contracts of state backends, and restored state as Arrow columns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupRange, OperatorStateHandle
from airflow_provider_statecheck.exceptions import (
    BackendRestoreError,
    InvalidConfigurationError,
    StateCheckError,
    StateMigrationError,
)
from airflow_provider_statecheck.state.arrow.layout import NAMESPACE, USER_KEY, VALUE, single
from airflow_provider_statecheck.state.keyed.cell_migration import CellMigration, MigratedCells
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.arrow.layout import StateLayout
    from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
    from airflow_provider_statecheck.state.schemas import OperatorSchemas
    from airflow_provider_statecheck.storage.views.state_streams import CompletedCheckpointStorageLocation


@runtime_checkable
class StateBackend(Protocol):
    """
    Factory of the keyed and operator state of subtasks.

    A backend is pickled from the driver to the executors, so it holds only plain values.
    """

    def create_keyed_state_backend(
        self,
        environment: StateEnvironment,
        job_id: str,
        operator_identifier: str,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_registry: Any = None,
        *,
        restored: Sequence[KeyedStateHandle] = (),
    ) -> AbstractKeyedStateBackend:
        """
        Create the keyed state of one subtask.

        :param kv_registry: Registry of queryable states, if any.
        :param restored: Handles to restore; keys of other subtasks are skipped.
        :raises InvalidConfigurationError: if the range exceeds the number of key groups.
        :raises BackendRestoreError: if the state cannot be read; no resources are leaked.
        :raises StateMigrationError: if the keys have another type.
        """
        ...

    def create_operator_state_backend(
        self,
        environment: StateEnvironment,
        operator_identifier: str,
        *,
        restored: Sequence[OperatorStateHandle] = (),
    ) -> DefaultOperatorStateBackend:
        """
        Create the operator state of one subtask.

        :raises BackendRestoreError: if the state cannot be read.
        """
        ...

    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        """
        Return the checkpoint of a pointer, of any job.

        :param storage_options: Options of the filesystem.
        :raises CheckpointNotFoundError: if there is no checkpoint.
        """
        ...


@runtime_checkable
class ConfigurableStateBackend(Protocol):
    """State backend whose unset fields can be taken from a configuration."""

    def configure(self, config: Mapping[str, Any]) -> StateBackend:
        """
        Return this backend with its unset fields taken from a configuration.

        :raises InvalidConfigurationError: for an invalid setting.
        """
        ...


@runtime_checkable
class StateBackendFactory(Protocol):
    """Factory of backends from a configuration. ``state.backend`` may name one by its dotted path."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """
        Create a backend.

        :raises InvalidConfigurationError: for an invalid setting.
        """
        ...

    def get_identifier(self) -> str:
        """Return the name of the backend in configurations."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnvironment:
    """Subtask and attempt in which a backend runs."""

    storage: CheckpointStorage
    """Storage of the restored state."""
    subtask_index: int
    parallelism: int
    max_parallelism: int
    now_ms: Callable[[], int]
    """
    Returns the time for expiry in milliseconds; by default the logical date of the run, so that a rerun expires the
    same values.
    """
    epoch: int
    """Fencing epoch of the attempt."""
    operator_name: str = ""
    """Operator name for errors."""
    schemas: OperatorSchemas | None = None
    """Schemas of the restored state, if any."""


class RestorableTable(Protocol):
    """Table that takes restored rows."""

    def restore(self, key_group: int, namespace: str, key: Any, user_key: Any, cell: Any) -> None:
        """Add a row; ``user_key`` is ``None`` unless the state is a map."""
        ...


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of one state, in the order of their key groups."""

    schema: StateSchema
    arrow_schema: Any
    """Arrow schema of each block: key columns, ``namespace``, ``user_key`` for a map, and ``value``."""
    blocks: tuple[tuple[int, Any], ...]
    """Pairs of a key group and a non-empty Arrow record batch, ascending. A key group may have several batches."""

    def by_key_group(self) -> dict[int, list[Any]]:
        """Return the record batches of each key group."""
        found: dict[int, list[Any]] = {}
        for key_group, batch in self.blocks:
            found.setdefault(key_group, []).append(batch)
        return found

    def __len__(self) -> int:
        return sum(batch.num_rows for _, batch in self.blocks)


def arrow_schema_of(state: RegisteredState, key_serializer: KeySerializer) -> Any:
    """Return the Arrow schema of the rows of a state."""
    import pyarrow as pa

    keys = [pa.field(f"key_{index}", arrow_type) for index, arrow_type in enumerate(key_serializer.arrow_types)]
    user_key = [] if state.key_serializer is None else [pa.field(USER_KEY, state.key_serializer.arrow_type)]
    return pa.schema(
        [*keys, pa.field(NAMESPACE, pa.string()), *user_key, pa.field(VALUE, state.cell_serializer.arrow_type)]
    )


def repeated(values: Sequence[Any], counts: Sequence[int], arrow_type: Any) -> Any:
    """Return an Arrow array with each value repeated ``counts`` times."""
    import pyarrow as pa

    parts = [pa.repeat(pa.scalar(value, arrow_type), count) for value, count in zip(values, counts, strict=True)]
    return pa.concat_arrays(parts) if parts else pa.array([], arrow_type)


def blocks_of(key_groups: Any, batch: Any) -> Iterator[tuple[int, Any]]:
    """Split rows, sorted by key group, into one record batch per key group."""
    import numpy as np

    distinct, starts = np.unique(key_groups.to_numpy(), return_index=True)
    ends = [*starts, len(key_groups)][1:]
    for key_group, start, end in zip(distinct, starts, ends, strict=True):
        yield int(key_group), batch.slice(int(start), int(end - start))


def rows_of_tables(
    state: RegisteredState, layout: StateLayout, key_serializer: KeySerializer, tables: Iterable[Any]
) -> StateRows:
    """Return sorted tables in the layout of the Arrow backend as the rows of a state."""
    import pyarrow as pa

    schema = arrow_schema_of(state, key_serializer)
    blocks: list[tuple[int, Any]] = []
    for table in tables:
        key_groups, *columns = map(single, layout.conform(table, namespace=True, deleted=False).columns)
        blocks += blocks_of(key_groups, pa.RecordBatch.from_arrays(columns, schema=schema))
    return StateRows(state.schema(), schema, tuple(blocks))


class RestoredRows:
    """
    Restored rows of a state. Snapshots copy them until a descriptor claims them for a table.

    :param rows: Rows read from a snapshot.
    """

    def __init__(self, rows: StateRows) -> None:
        self._rows = rows

    def rows(self) -> StateRows:
        """Return the rows."""
        return self._rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def fill(self, table: RestorableTable, state: RegisteredState, key_serializer: KeySerializer, now_ms: int) -> None:
        """
        Migrate the rows to the types of a state and add them to its table.

        :param now_ms: Current time in milliseconds, for values that gain or lose a time to live.
        :raises StateMigrationError: if the types are incompatible.
        """
        if not self._rows.blocks:
            return
        key_groups, rows = self._concatenated()
        migration = CellMigration.of(self._rows.schema, state, now_ms)
        user_keys = rows.column(USER_KEY) if state.is_map else None
        cells = rows.column(VALUE)
        migrated = MigratedCells(user_keys, cells) if migration is None else migration.migrated(cells, user_keys)
        key_columns = (migrated.living(column) for column in rows.columns[: len(key_serializer.fields)])
        keys = key_serializer.from_columns(tuple(key_columns))
        columns = (migrated.living(key_groups).to_pylist(), migrated.living(rows.column(NAMESPACE)).to_pylist(), keys)
        for row in zip(*columns, *_decode_cells(state, migrated), strict=True):
            table.restore(*row)

    def _concatenated(self) -> tuple[Any, Any]:
        import pyarrow as pa

        batches = [batch for _, batch in self._rows.blocks]
        counts = [batch.num_rows for batch in batches]
        key_groups = repeated([key_group for key_group, _ in self._rows.blocks], counts, pa.int32())
        return key_groups, pa.concat_batches(batches)


def _decode_cells(state: RegisteredState, migrated: MigratedCells) -> tuple[list[Any], list[Any]]:
    cells = state.cells.read(migrated.living(migrated.cells))
    if state.key_serializer is None:
        return [None] * len(cells), cells
    return state.key_serializer.from_arrow(migrated.living(migrated.user_keys)), cells


@contextlib.contextmanager
def restoring(operator_identifier: str) -> Iterator[None]:
    """
    Raise failures of a restore as ``BackendRestoreError``. Configuration and migration errors are not wrapped.

    :param operator_identifier: Uid of the operator.
    :raises BackendRestoreError: if the state cannot be read.
    """
    try:
        yield
    except (BackendRestoreError, InvalidConfigurationError, StateMigrationError):
        raise
    except (StateCheckError, OSError) as error:
        raise BackendRestoreError(
            f"The state backend of {operator_identifier} could not be restored: {error}", failures=(error,)
        ) from error
