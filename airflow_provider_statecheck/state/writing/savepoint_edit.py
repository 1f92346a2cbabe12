"""A savepoint with one state that is given, and all else of the savepoint that it is based on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, KeyedStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, key_group_ranges
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState, OperatorSubtaskState
from airflow_provider_statecheck.checkpoint.states.streams import with_streams
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, CheckpointStates, FunctionState
from airflow_provider_statecheck.state.schemas import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.state.writing.dropping import StateDropping
from airflow_provider_statecheck.state.writing.new_handles import NewHandles
from airflow_provider_statecheck.state.writing.new_rows import NewRows
from airflow_provider_statecheck.storage.document import CheckpointDocument, InlineStateHandle
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import encode_metadata
from airflow_provider_statecheck.storage.savepoints import StateCopies

EDITS = "edits"
"""Under which the values of the stage tell who made a savepoint of what."""
_FIRST = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlace:
    """Which state is given, and how its operator is cut."""

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
        """Return the key groups of each subtask."""
        return tuple(key_group_ranges(self.parallelism, self.rows.max_parallelism))


class SavepointEdit:
    """
    Writes a savepoint into a new directory, its metadata last; what it is based on stays as it is.

    :param storage: Where the savepoint goes.
    :param target: The directory below which it goes.
    :param place: Which state is given.
    :param base: The checkpoint that has the rest; ``None`` for no rest.
    :param now: When, for the metadata.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        target: str,
        place: StatePlace,
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
        """Delete what was written if something fails."""
        try:
            yield
        except BaseException:
            # Without metadata nobody can use it. What cannot be deleted either is nobody's savepoint.
            with contextlib.suppress(StorageError):
                self._storage.delete_directory(self.directory)
            raise

    def finish(self, written: Sequence[KeyedStateHandle | None], edit: dict[str, Any]) -> str:
        """
        Copy the rest, write the metadata and return the pointer.

        :param written: Of each subtask, what :class:`NewHandles` gave.
        :param edit: What the metadata say of who made the savepoint of what.
        :raises CheckpointNotFoundError: if a file of the base is missing.
        :raises CorruptStateError: if it was changed.
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
    """Return a function of a checkpoint by its uid, with all of its state."""
    found = next((each for each in states.functions() if uid in (each.uid, each.operator.uid)), None)
    return None if found is None else states.complete(found)


def _bootstrap(stage: str, now: str) -> CheckpointDocument:
    # Of no job that runs, so that no sink takes it for a checkpoint of its own.
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
