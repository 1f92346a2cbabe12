"""Reads one state of a checkpoint as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.reading.checkpoint_states import StateContent
from airflow_provider_statecheck.state.reading.columns import StateColumns
from airflow_provider_statecheck.state.reading.restored_keys import restored_keys
from airflow_provider_statecheck.state.reading.state_rows_reader import StateRowsReader
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.serializers.restored import restored_serializer
from airflow_provider_statecheck.state.ttl import StateTtlConfig
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

_FOR_EVER = timedelta(days=365_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """What of a state is seen."""

    now_ms: int | None = None
    """What had expired by then is left out; ``None`` for the time of the checkpoint."""
    with_times: bool = False
    namespaces: bool = False


class StateReader:
    """
    Gives the rows of a state with the columns that people see.

    :param storage: Where the files are.
    :param content: The state, and where it is.
    :param view: What of it is seen.
    :raises UnsupportedStateError: for types that this release does not know.
    """

    def __init__(self, storage: CheckpointStorage, content: StateContent, view: StateView | None = None) -> None:
        view = view or StateView()
        self.content = content
        self.columns = columns_of(content, view)
        self.rows = StateRowsReader(storage, content, self.columns)
        self.now_ms = content.taken_at_ms if view.now_ms is None else view.now_ms

    @property
    def schema(self) -> Any:
        """Return the Arrow schema of the rows."""
        return self.columns.schema

    def tables(self, owned: KeyGroupRange | None = None) -> Iterator[Any]:
        """
        Return the rows of some key groups, by default of all, as Arrow tables.

        :raises CorruptStateError: if bytes were changed.
        :raises CheckpointNotFoundError: if a file is missing.
        :raises StorageError: if the storage fails.
        """
        for table in self.rows.tables(self.all_key_groups if owned is None else owned):
            shown = self.columns.shown(table, self.now_ms)
            if shown.num_rows:
                yield shown

    @property
    def all_key_groups(self) -> KeyGroupRange:
        """Return all key groups of the function."""
        return KeyGroupRange(0, self.content.max_parallelism - 1)


def columns_of(content: StateContent, view: StateView) -> StateColumns:
    """Return the columns of a state."""
    return StateColumns(restored_keys(content.key), registered(content.schema), view.with_times, view.namespaces)


def milliseconds(moment: datetime | None) -> int | None:
    """
    Return a moment as milliseconds since 1970.

    :raises InvalidConfigurationError: for one without a time zone.
    """
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InvalidConfigurationError(f"Expected a time with a zone, found {moment.isoformat()}; give it a tzinfo.")
    return int(moment.timestamp() * 1000)


def registered(schema: StateSchema) -> RegisteredState:
    """
    Return a state whose types are known from their snapshots alone.

    :raises UnsupportedStateError: for types that this release does not know.
    """
    return RegisteredState(
        name=schema.name,
        kind=schema.kind,
        serializer=restored_serializer(schema.value),
        key_serializer=None if schema.key is None else restored_serializer(schema.key),
        ttl=_time_to_live(schema) if schema.ttl else None,
    )


def _time_to_live(schema: StateSchema) -> StateTtlConfig:
    return StateTtlConfig(_FOR_EVER if schema.ttl_ms is None else timedelta(milliseconds=schema.ttl_ms))
