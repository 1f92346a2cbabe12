"""Writing of a savepoint that replaces one keyed state and copies all other state."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.layout import new_savepoint_uri
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    KeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, key_group_range_of, key_group_ranges
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, CheckpointStates, FunctionState
from airflow_provider_statecheck.state.schemas import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.state.writing.canonical import CanonicalCopies
from airflow_provider_statecheck.state.writing.canonical_files import CanonicalFiles, KeyedFiles, KeyedSubtask
from airflow_provider_statecheck.state.writing.new_rows import NewRows
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle, write_metadata

EDITS = "edits"
"""Key of the audit entries in the values of the stage."""
_FIRST = 1
"""Checkpoint id, epoch and generation of a savepoint without a base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTarget:
    """State that a savepoint replaces or adds, and the parallelism of its operator."""

    stage: str
    function: str
    uid: str
    """Uid of the operator."""
    rows: NewRows
    parallelism: int

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
        self.files = CanonicalFiles(storage, self.directory, self._source.epoch)
        self._copies = CanonicalCopies(
            storage, self.directory, self._source, without=(place.uid, place.rows.state.name)
        )

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

        :param written: Handle of each subtask from :func:`write_subtask`.
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
        write_metadata(self._storage, self.directory, document)
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
                yield self._copies.of_operator(operator)
        if function is None:
            yield self._with_new(self._new_operator(), OperatorSchemas(), written)

    def _edited(self, function: FunctionState, written: Sequence[KeyedStateHandle | None]) -> OperatorState:
        return self._with_new(self._copies.of_operator(function.operator), function.schemas, written)

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
        return OperatorState(
            operator_id=operator_id_of(self._place.uid),
            uid=self._place.uid,
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


def write_subtask(
    files: CanonicalFiles, uid: str, new: NewRows, rows: Any, *, subtask: int, parallelism: int
) -> KeyedStateHandle | None:
    """
    Write the rows of one subtask and return their handle, ``None`` without rows.

    :param files: Writer of the savepoint.
    :param uid: Uid of the operator.
    :param new: Description of the state.
    :param rows: Rows as returned by :meth:`NewRows.of`.
    :raises StorageError: if the storage fails.
    """
    owned = key_group_range_of(subtask, parallelism, new.max_parallelism)
    key = new.keys.snapshot()
    written = KeyedFiles(
        files, KeyedSubtask(uid=uid, index=subtask, owned=owned, key=key, max_parallelism=new.max_parallelism)
    )
    written.write(new.state.schema(), [rows])
    return written.handle(_FIRST)
