"""Writing of a savepoint that replaces one keyed state and copies all other state."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    OperatorState,
    OperatorSubtaskState,
    with_streams,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, key_group_range_of, key_group_ranges
from airflow_provider_statecheck.exceptions import CorruptStateError, StorageError
from airflow_provider_statecheck.state.arrow.layout import KEY_GROUP, NAMESPACE, USER_KEY, VALUE, single
from airflow_provider_statecheck.state.arrow.part_files import PartWriter
from airflow_provider_statecheck.state.arrow.restore import BACKEND_ID
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.arrow.snapshot_metadata import SnapshotMeta, StateFiles, decode_meta, encode_meta
from airflow_provider_statecheck.state.backends.full_snapshot import FullSnapshot, FullSnapshotReader
from airflow_provider_statecheck.state.backends.restored_state import (
    RestoredRows,
    StateRows,
    arrow_schema_of,
    blocks_of,
)
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, CheckpointStates, FunctionState
from airflow_provider_statecheck.state.schemas import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.state.writing.new_rows import NewRows
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle, encode_metadata
from airflow_provider_statecheck.storage.savepoints import StateCopies
from airflow_provider_statecheck.storage.views.state_files import discard_state, open_input_stream, read_state
from airflow_provider_statecheck.storage.views.state_streams import FsCheckpointStateOutputStream, StateWriting

EDITS = "edits"
"""Key of the audit entries in the values of the stage."""
_FIRST = 1
"""Checkpoint id, epoch and generation of a savepoint without a base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTarget:
    """State that a savepoint replaces or adds, and the parallelism of its operator."""

    stage: str
    function: str
    rows: NewRows
    parallelism: int
    is_full: bool

    @property
    def uid(self) -> str:
        """Return the uid of the operator."""
        return f"{self.stage}/{self.function}"

    @property
    def ranges(self) -> tuple[KeyGroupRange, ...]:
        """Return the key group range of each subtask."""
        return tuple(key_group_ranges(self.parallelism, self.rows.max_parallelism))


class SavepointEdit:
    """
    Writer of an edited savepoint in a new directory.

    The metadata file is written last. The base does not change, and the savepoint does not reference its files.

    :param storage: Storage of the savepoint.
    :param target: Parent directory of the savepoint.
    :param place: State to replace or add.
    :param base: Checkpoint that provides all other state; ``None`` for a savepoint with this state only.
    :param now: Creation time of a savepoint without a base, in ISO format.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        target: str,
        place: StateTarget,
        base: CheckpointStates | None,
        now: str,
    ) -> None:
        self._storage = storage
        self._place = place
        self._base = base
        self._source = _bootstrap(place.stage, now) if base is None else base.document
        self.directory = new_savepoint_uri(target, JobId(self._source.job_id))
        self.handles = NewHandles(storage, self.directory, self._source.epoch, place.is_full)
        self._copies = StateCopies(storage, self.directory, self._source.epoch)

    @contextlib.contextmanager
    def deleting_on_failure(self) -> Iterator[None]:
        """Delete the directory of the savepoint if the block raises."""
        try:
            yield
        except BaseException:
            # Files that remain without metadata are not a savepoint, and the first error is the cause.
            with contextlib.suppress(StorageError):
                self._storage.delete_directory(self.directory)
            raise

    def finish(self, written: Sequence[KeyedStateHandle | None], edit: dict[str, Any]) -> str:
        """
        Copy all other state, write the metadata and return the pointer.

        :param written: Handle of each subtask from :meth:`NewHandles.write`.
        :param edit: Audit entry for the metadata.
        :raises CheckpointNotFoundError: if a file of the base is missing.
        :raises CorruptStateError: if a file of the base is corrupt.
        :raises StorageError: if the storage fails.
        """
        source, copies = self._source, self._copies
        document = replace(
            source,
            properties=CheckpointProperties.for_savepoint(),
            has_commit=False,
            snapshots=tuple(copies.of_snapshot(handle) for handle in source.snapshots),
            state=InlineStateHandle(value=self._values(edit)),
            operator_states=tuple(self._operators(written)),
        )
        uri = f"{self.directory}/{METADATA_FILE}"
        self._storage.write_bytes(uri, encode_metadata(document, uri=uri))
        return self.directory

    def _values(self, edit: dict[str, Any]) -> dict[str, Any]:
        values = {} if self._base is None else self._base.values()
        of_stage = values.get(STAGE, {})
        return values | {STAGE: of_stage | {EDITS: [*of_stage.get(EDITS, ()), edit]}}

    def _operators(self, written: Sequence[KeyedStateHandle | None]) -> Iterator[OperatorState]:
        function = None if self._base is None else function_of(self._base, self._place.function)
        for operator in self._source.operator_states:
            if function is not None and operator.uid == function.operator.uid:
                yield self._edited(function, written)
            else:
                yield with_streams(operator, self._copies.of_stream)
        if function is None:
            yield self._with_new(self._new_operator(), OperatorSchemas(), written)

    def _edited(self, function: FunctionState, written: Sequence[KeyedStateHandle | None]) -> OperatorState:
        dropping = StateDropping(self.handles, self._copies, self._place.rows.state.name)
        return self._with_new(dropping.copied(function.operator), function.schemas, written)

    def _with_new(
        self, operator: OperatorState, schemas: OperatorSchemas, written: Sequence[KeyedStateHandle | None]
    ) -> OperatorState:
        subtasks = dict(operator.subtask_states)
        for index, handle in enumerate(written):
            if handle is not None:
                found = subtasks.get(index, OperatorSubtaskState())
                subtasks[index] = replace(found, managed_keyed=(*found.managed_keyed, handle))
        kept = {index: each for index, each in subtasks.items() if each.has_state}
        return replace(operator, subtask_states=kept, coordinator_state=self._coordinator_state(schemas))

    def _coordinator_state(self, schemas: OperatorSchemas) -> ByteStreamStateHandle:
        rows = self._place.rows
        others = tuple(each for each in schemas.keyed if each.name != rows.state.name)
        now = replace(schemas, key=rows.keys.snapshot(), keyed=(*others, rows.state.schema()))
        encoded = json.dumps(encode_schemas(now), sort_keys=True, separators=(",", ":"))
        return ByteStreamStateHandle(new_key(), encoded.encode())

    def _new_operator(self) -> OperatorState:
        uid = f"{self._source.uid}/{self._place.function}"
        return OperatorState(
            operator_id=operator_id_of(uid),
            uid=uid,
            name=self._place.function,
            parallelism=self._place.parallelism,
            max_parallelism=self._place.rows.max_parallelism,
        )


def function_of(states: CheckpointStates, uid: str) -> FunctionState | None:
    """Return the function with a uid and all of its states, ``None`` if the checkpoint has no such function."""
    found = next((each for each in states.functions() if uid in (each.uid, each.operator.uid)), None)
    return None if found is None else states.complete(found)


def _bootstrap(stage: str, now: str) -> CheckpointDocument:
    # A job name that no running job has, because a sink must not treat it as a checkpoint of its job.
    job = f"bootstrap/{stage}"
    return CheckpointDocument(
        job_id=job_id_of(job),
        job_name=job,
        operator_id=operator_id_of(stage),
        uid=stage,
        checkpoint_id=_FIRST,
        epoch=_FIRST,
        generation=_FIRST,
        snapshots=(),
        state=InlineStateHandle(value={}),
        created_at=now,
    )


@dataclass(frozen=True, slots=True)
class NewHandles:
    """
    Writer of keyed state files in the directory of a savepoint.

    :param storage: Storage of the savepoint.
    :param directory: Directory of the savepoint.
    :param epoch: Fencing epoch in the names of files.
    :param is_full: Writes full snapshots, the format of the in-memory backends, instead of files of the Arrow backend.
    """

    storage: CheckpointStorage
    directory: str
    epoch: int
    is_full: bool

    def write(self, new: NewRows, rows: Any, owned: KeyGroupRange) -> KeyedStateHandle | None:
        """
        Write the rows of one subtask and return their handle, ``None`` without rows.

        :param new: Description of the state.
        :param rows: Rows as returned by :meth:`NewRows.of`.
        :param owned: Key groups of the subtask.
        :raises StorageError: if the storage fails.
        """
        if rows.num_rows == 0:
            return None
        return self._full(new, rows, owned) if self.is_full else self._runs(new, rows, owned)

    def open_stream(self) -> FsCheckpointStateOutputStream:
        """Open a new state file of the savepoint."""
        return FsCheckpointStateOutputStream.open(self.storage, self.directory, StateWriting(epoch=self.epoch))

    def write_full(
        self, keys: Any, max_parallelism: int, owned: KeyGroupRange, states: list[StateRows]
    ) -> KeyedStateHandle | None:
        """
        Write states as one full snapshot and return its handle, ``None`` if the states are empty.

        :param keys: Snapshot of the key serializer.
        :param max_parallelism: Number of key groups.
        :param owned: Key groups of the subtask.
        :param states: Rows of each state.
        :raises StorageError: if the storage fails.
        """
        snapshot = FullSnapshot(
            key=keys,
            number_of_key_groups=max_parallelism,
            key_group_range=owned,
            states=[RestoredRows(state) for state in states],
            open_stream=self.open_stream,
            discard=lambda handle: discard_state(self.storage, handle),
        )
        return snapshot.run().handle

    def _full(self, new: NewRows, rows: Any, owned: KeyGroupRange) -> KeyedStateHandle | None:
        import pyarrow as pa

        names = rows.schema.names
        columns = [single(rows.column(name)) for name in new.layout.key_names]
        no_namespace = pa.repeat(pa.scalar("", pa.string()), rows.num_rows)
        columns.append(single(rows.column(NAMESPACE)) if NAMESPACE in names else no_namespace)
        columns += [single(rows.column(USER_KEY))] if USER_KEY in names else []
        schema = arrow_schema_of(new.state, new.keys)
        batch = pa.RecordBatch.from_arrays([*columns, single(rows.column(VALUE))], schema=schema)
        blocks = tuple(blocks_of(single(rows.column(KEY_GROUP)), batch))
        return self.write_full(
            new.keys.snapshot(), new.max_parallelism, owned, [StateRows(new.state.schema(), schema, blocks)]
        )

    def _runs(self, new: NewRows, rows: Any, owned: KeyGroupRange) -> KeyedStateHandle:
        schema = new.state.schema()
        parts = PartWriter(rows.schema, schema, self.open_stream, ArrowStateSettings()).write_all([rows])
        meta = SnapshotMeta(new.keys.snapshot(), new.max_parallelism, (StateFiles(schema, (parts,)),))
        return IncrementalKeyedStateHandle(
            backend_id=BACKEND_ID,
            key_group_range=owned,
            checkpoint_id=1,
            shared=tuple((part.path, part.handle) for part in parts),
            meta=self._written(encode_meta(meta)),
        )

    def _written(self, data: bytes) -> Any:
        with closing(self.open_stream()) as stream:
            stream.write(data)
            return stream.close_and_get_handle()


@dataclass(frozen=True, slots=True)
class StateDropping:
    """
    Copy of an operator in a savepoint, without one of its keyed states.

    :param new: Writer of the files that must be rewritten.
    :param copies: Copier of the files that do not change.
    :param name: Name of the state to drop.
    """

    new: NewHandles
    copies: StateCopies
    name: str

    def copied(self, operator: OperatorState) -> OperatorState:
        """
        Copy the files of an operator and return the operator with the new handles.

        :raises CorruptStateError: if a state file is corrupt.
        :raises CheckpointNotFoundError: if a state file is missing.
        :raises StorageError: if the storage fails.
        """
        subtasks = {index: self._with_runs(each) for index, each in operator.subtask_states.items()}
        kept = with_streams(replace(operator, subtask_states=subtasks), self.copies.of_stream)
        for index, subtask in operator.subtask_states.items():
            own = key_group_range_of(index, operator.parallelism, operator.max_parallelism)
            written = self._snapshots(subtask, operator.max_parallelism, own)
            found = kept.subtask_states[index]
            kept = kept.put_state(index, replace(found, managed_keyed=(*found.managed_keyed, *written)))
        return kept

    def _with_runs(self, subtask: OperatorSubtaskState) -> OperatorSubtaskState:
        runs = [each for each in subtask.managed_keyed if isinstance(each, IncrementalKeyedStateHandle)]
        kept = (self._without(each) for each in runs)
        return replace(subtask, managed_keyed=tuple(each for each in kept if each is not None))

    def _without(self, handle: IncrementalKeyedStateHandle) -> IncrementalKeyedStateHandle | None:
        if handle.meta is None:
            raise CorruptStateError(
                f"Expected metadata of the state files in checkpoint {handle.checkpoint_id}, found none; use another checkpoint."
            )
        files = dict((*handle.shared, *handle.private))
        meta = decode_meta(read_state(self.new.storage, handle.meta), files, f"checkpoint {handle.checkpoint_id}")
        states = tuple(state for state in meta.states if state.state.name != self.name)
        if len(states) == len(meta.states):
            return handle
        paths = {part.path for state in states for parts in state.runs for part in parts}
        data = encode_meta(SnapshotMeta(meta.key, meta.number_of_key_groups, states))
        kept = replace(
            handle,
            shared=tuple(each for each in handle.shared if each[0] in paths),
            private=tuple(each for each in handle.private if each[0] in paths),
            meta=ByteStreamStateHandle(uuid.uuid4().hex, data),
        )
        return kept if states else None

    def _snapshots(
        self, subtask: OperatorSubtaskState, max_parallelism: int, own: KeyGroupRange
    ) -> tuple[KeyedStateHandle, ...]:
        reader = FullSnapshotReader(lambda stream: open_input_stream(self.new.storage, stream), max_parallelism, own)
        written = []
        for handle in subtask.managed_keyed:
            found = reader.read(handle) if isinstance(handle, KeyGroupsStateHandle) else None
            if found is not None:
                states = [state for state in found[1] if state.schema.name != self.name]
                written.append(self.new.write_full(found[0].schemas.key, max_parallelism, own, states))
        return tuple(each for each in written if each is not None)
