"""Reading one state of a checkpoint as Arrow tables, in the columns that users see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupRange
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.state.arrow.layout import (
    KEY_GROUP,
    NAMESPACE,
    USER_KEY,
    VALUE,
    StateLayout,
    single,
)
from airflow_provider_statecheck.state.arrow.restore import StateRowForm, restored_files
from airflow_provider_statecheck.state.arrow.run_files import RunBytes, RunFiles, StateFiles
from airflow_provider_statecheck.state.arrow.runs import FileRun, Reading
from airflow_provider_statecheck.state.arrow.state_runs import StateRuns, unexpired
from airflow_provider_statecheck.state.combining.records import required_combination
from airflow_provider_statecheck.state.descriptors import StateKind, StateTtlConfig
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.keys.key_types import key_type_named
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates, StateContent, written_schemas
from airflow_provider_statecheck.state.schema_evolution import StateSchema, custom_types, loses_nothing
from airflow_provider_statecheck.state.serializers.nested_columns import with_elements
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer, restored_user_keys
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot, describe
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.stored_json import decoding

MAP_KEY, MAP_VALUE = "map_key", "map_value"
LAST_ACCESS, EXPIRES_AT = "last_access", "expires_at"
CHANGE, BEFORE, AFTER = "change", "before", "after"
_LET_REWRITE = (
    "let all subtasks rewrite the state, by a checkpoint of a stage that requests it in open(), or take a native "
    "savepoint."
)
_RESERVED = frozenset({KEY_GROUP, EXPIRES_AT, NAMESPACE, MAP_KEY, MAP_VALUE, VALUE, LAST_ACCESS, CHANGE, BEFORE, AFTER})


def read_state(
    pointer: str,
    name: str,
    *,
    uid: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
    now: datetime | None = None,
    with_times: bool = False,
    namespaces: bool = False,
) -> Any:
    """
    Return a keyed state of a checkpoint as a ``pyarrow.RecordBatchReader``, which reads lazily.

    The columns are those of the key and ``value``. A map state has one row per entry, with ``map_key`` and
    ``map_value`` instead of ``value``.

    :param pointer: Directory of a checkpoint or savepoint, or its metadata file.
    :param name: Name of the state.
    :param uid: Uid of the function, required if several functions have a state with this name. In a savepoint of the
        whole job, the uid of the stage, or both with ``/`` in between.
    :param storage_options: Options of the filesystem.
    :param allowed_locations: URIs of further locations that checkpoints may reference, such as ``s3://archive``.
    :param now: Time by which expiry is decided, by default the time of the checkpoint. Expired rows are left out.
    :param with_times: Adds a column ``last_access`` to a state that expires.
    :param namespaces: Includes rows of all namespaces and adds a column ``namespace``.
    :raises CheckpointNotFoundError: if the pointer refers to a missing checkpoint.
    :raises UnknownStateError: if the checkpoint has no such state; the message lists its states.
    :raises InvalidConfigurationError: if several functions have a state with this name.
    :raises UnsupportedStateError: if this release does not support a type; while reading, if a row has a namespace and
        ``namespaces`` is false.
    :raises CorruptStateError: if a state file is corrupt, also while reading.
    :raises StorageError: if the storage fails, also while reading.
    """
    states = CheckpointStates.load(pointer, storage_options, allowed_locations)
    reader = StateReader(
        states.storage,
        states.content(name, uid),
        now_ms=milliseconds(now),
        with_times=with_times,
        namespaces=namespaces,
    )
    return reader.record_batches()


class StateReader:
    """
    Reads the rows of a state, in user-facing columns or in those of the state backend.

    :param now_ms: Time in milliseconds since the epoch by which expiry is decided; by default that of the checkpoint.
    :param with_times: Adds the column ``last_access`` to a state that expires.
    :param namespaces: Includes rows of all namespaces and adds the column ``namespace``.
    :raises UnsupportedStateError: if this release does not support a type of the state.

    The methods that read raise ``CorruptStateError`` if a state file is corrupt, ``CheckpointNotFoundError`` if one is
    missing, and ``StorageError`` if the storage fails.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        content: StateContent,
        *,
        now_ms: int | None = None,
        with_times: bool = False,
        namespaces: bool = False,
    ) -> None:
        self._storage = storage
        self.content = content
        self.columns = StateColumns(restored_keys(content.key), registered(content.schema), with_times, namespaces)
        self.now_ms = content.taken_at_ms if now_ms is None else now_ms
        # Several steps need the files of one range, and their checks may read all rows.
        self._files_of = lru_cache(maxsize=1)(self._checked_files)

    @property
    def schema(self) -> Any:
        """The Arrow schema of the user-facing columns."""
        return self.columns.schema

    def record_batches(self) -> Any:
        """Return the unexpired rows as a ``pyarrow.RecordBatchReader``, which reads lazily."""
        batches = (batch for table in self.tables() for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def tables(self, owned: KeyGroupRange | None = None) -> Iterator[Any]:
        """
        Return the unexpired rows of a range of key groups, by default all, as Arrow tables in user-facing columns.
        """
        for table in self.rows(owned):
            shown = self.columns.shown(table, self.now_ms)
            if shown.num_rows:
                yield shown

    def rows(self, owned: KeyGroupRange | None = None) -> Iterator[Any]:
        """
        Return the newest version of each row in a range of key groups, by default all, sorted and without removed rows.

        The tables have the columns of the state backend.
        """
        return self.merged(self.files(owned).runs)

    def files(self, owned: KeyGroupRange | None = None) -> StateFiles:
        """
        Return the files with rows in a range of key groups, by default all.

        :raises UnsupportedStateError: if rows of another release would lose fields in the types of the state, or are of
            another version of a user-defined serializer.
        :raises StateMigrationError: if migrated user keys of a map are equal or in another order.
        """
        return self._files_of(KeyGroupRange(0, self.content.max_parallelism - 1) if owned is None else owned)

    def _checked_files(self, owned: KeyGroupRange) -> StateFiles:
        handles = self.content.within(owned).handles
        self._require_one_version(handles)
        found = restored_files(handles, self._storage, self.columns.keys, self.content.max_parallelism, owned)
        files = found.get(self.content.schema.name, StateFiles(self.content.schema, ()))
        _require_no_loss(self.content.schema, files)
        with closing(RunBytes(self._storage)) as stored:
            StateRuns(self.form, Reading(stored), files.runs).require_order()
        return files

    def _require_one_version(self, handles: Iterable[KeyedStateHandle]) -> None:
        schema = self.content.schema
        wanted = custom_types(schema)
        if not wanted:
            return
        # Only the code of the stage knows whether it reads older rows as they are; the subtask then has the newer type,
        # too.
        for each in (state for handle in handles for state in written_schemas(self._storage, [handle]).keyed):
            if each.name == schema.name and custom_types(each) != wanted:
                raise UnsupportedStateError(
                    f"Expected state {schema.name!r} to be written with one version of its serializer, found several, "
                    f"which only the code of the stage can migrate; {_LET_REWRITE}"
                )

    def merged(self, runs: tuple[RunFiles, ...]) -> Iterator[Any]:
        """Return the newest version of each row in the runs, which are ordered from newest to oldest."""
        if not runs:
            return
        with closing(RunBytes(self._storage)) as files:
            yield from StateRuns(self.form, Reading(files), runs).rows()

    def written(self, run: RunFiles) -> Iterator[Any]:
        """Return all rows of a run, including deletion markers."""
        with closing(RunBytes(self._storage)) as files:
            yield from FileRun(run, Reading(files), self.form).all_tables()

    @cached_property
    def form(self) -> StateRowForm:
        """The conversion of rows to the types of the state."""
        return StateRowForm(self.columns.state, self.content.schema, self.columns.layout, self.content.taken_at_ms)


def _require_no_loss(schema: StateSchema, files: StateFiles) -> None:
    for file in (file for run in files.runs for file in run):
        if file.state != schema and not loses_nothing(file.state, schema):
            raise UnsupportedStateError(
                f"Expected rows of state {schema.name!r} that can be read as {describe(schema.value)}, found rows of "
                f"{describe(file.state.value)}, which another release has written; {_LET_REWRITE}"
            )


def milliseconds(moment: datetime | None) -> int | None:
    """
    Return a datetime in milliseconds since the epoch.

    :raises InvalidConfigurationError: if the datetime has no time zone.
    """
    if moment is not None and moment.tzinfo is None:
        raise InvalidConfigurationError(
            f"Expected a datetime with a time zone, found {moment.isoformat()}; set its tzinfo."
        )
    return None if moment is None else int(moment.timestamp() * 1000)


def registered(schema: StateSchema) -> RegisteredState:
    """
    Return a state restored from its schema, without the classes of the user.

    :raises UnsupportedStateError: if this release does not support a type of the state.
    """
    with decoding(f"the schema of state {schema.name!r:.100}"):
        return _registered(schema)


def _registered(schema: StateSchema) -> RegisteredState:
    serializer = restored_serializer(schema.value)
    return RegisteredState(
        name=schema.name,
        kind=schema.kind,
        serializer=serializer,
        key_serializer=None if schema.key is None else restored_user_keys(schema.key),
        ttl=None if schema.ttl_ms is None else StateTtlConfig(timedelta(milliseconds=schema.ttl_ms)),
        queryable_name=schema.queryable_name,
        combination=required_combination(schema.combination, serializer.arrow_type),
    )


def restored_keys(snapshot: SerializerSnapshot) -> KeySerializer:
    """
    Return the key serializer of a snapshot.

    :raises UnsupportedStateError: if this release does not support the type of a key column.
    :raises CorruptStateError: if the snapshot is not one of a key serializer.
    """
    with decoding("the columns of a key"):
        fields = [(field["name"], field["type"]) for field in snapshot.config["fields"]]
        return KeySerializer(tuple(KeyField(name, key_type_named(kind).arrow_type) for name, kind in fields))


@dataclass(frozen=True)
class StateColumns:
    """
    User-facing columns of a state, named like the columns of its key.

    :param with_times: Adds the column ``last_access`` to a state that expires.
    :param namespaces: Includes rows of all namespaces and adds the column ``namespace``.
    """

    keys: KeySerializer
    state: RegisteredState
    with_times: bool = False
    namespaces: bool = False

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return key_column_names([field.name for field in self.keys.fields])

    @property
    def value_name(self) -> str:
        """The name of the value column."""
        return MAP_VALUE if self.state.is_map else VALUE

    @cached_property
    def layout(self) -> StateLayout:
        """The column layout of the state backend."""
        user_keys = self.state.key_serializer
        user_key_type = None if user_keys is None else user_keys.arrow_type
        return StateLayout.of(self.keys, self.state.cell_type, user_key_type, self.state.combination)

    @cached_property
    def schema(self) -> Any:
        """The Arrow schema of the columns."""
        fields = [*zip(self.key_names, self.keys.arrow_types, strict=True)]
        fields += [(NAMESPACE, pa.string())] if self.namespaces else []
        if self.state.key_serializer is not None:
            fields.append((MAP_KEY, self.state.key_serializer.arrow_type))
        cells = [(self.value_name, self.state.serializer.arrow_type)]
        cells += [(LAST_ACCESS, pa.timestamp("us", "UTC"))] if self._has_times else []
        is_list = self.state.kind is StateKind.LIST
        return pa.schema([*fields, *((name, pa.list_(kind) if is_list else kind) for name, kind in cells)])

    def shown(self, table: Any, now_ms: int) -> Any:
        """
        Convert rows of the state backend to these columns, without expired rows.

        :param table: Rows in the layout of the backend.
        :param now_ms: Time in milliseconds since the epoch by which expiry is decided.
        :raises UnsupportedStateError: if a row has a namespace and ``namespaces`` is false.
        """
        if not self.namespaces:
            _require_no_namespace(table, self.state.name)
        return self.named(unexpired(self.state, table, now_ms))

    def named(self, table: Any) -> Any:
        """Return rows of the state backend in these columns."""
        if self.namespaces and NAMESPACE not in table.schema.names:
            table = self.layout.conform(table, namespace=True, deleted=False)
        found = [single(table.column(name)) for name in self.layout.key_names]
        found += [single(table.column(NAMESPACE))] if self.namespaces else []
        found += [single(table.column(USER_KEY))] if self.state.is_map else []
        return pa.Table.from_arrays([*found, *self._cells(single(table.column(VALUE)))], schema=self.schema)

    @property
    def _has_times(self) -> bool:
        return self.with_times and self.state.ttl is not None

    def _cells(self, cells: Any) -> list[Any]:
        """Return the value column, and the time column if requested."""
        if self.state.ttl is None:
            return [cells]
        is_list = self.state.kind is StateKind.LIST
        elements = cells.flatten() if is_list else cells
        columns = [pc.struct_field(elements, "value")]
        if self._has_times:
            times = pc.struct_field(elements, "last_access_ms").cast(pa.timestamp("ms", "UTC"))
            columns.append(times.cast(pa.timestamp("us", "UTC")))
        return [with_elements(cells, column) for column in columns] if is_list else columns


def key_column_names(names: list[str]) -> tuple[str, ...]:
    """Return the names of the key columns, with the prefix ``key_`` on reserved names."""
    # Spark and DuckDB do not distinguish names by case.
    taken, found = _RESERVED | {name.lower() for name in names}, []
    for name in names:
        shown = name
        while shown.lower() in _RESERVED or (shown != name and shown.lower() in taken):
            shown = f"key_{shown}"
        found.append(shown)
        taken |= {shown.lower()}
    return tuple(found)


def _require_no_namespace(table: Any, name: str) -> None:
    if NAMESPACE not in table.schema.names or not table.num_rows:
        return
    if pc.any(pc.not_equal(table.column(NAMESPACE), "")).as_py():
        raise UnsupportedStateError(
            f"Expected all rows of state {name!r} to have no namespace, found rows with one; set namespaces=True to "
            "read them with a column 'namespace'."
        )
