"""
Copies of checkpoints to savepoints, in the canonical format or in that of the state backend.

A canonical copy may have another maximum parallelism: the key group of every key is recomputed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, SavepointFormat
from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    KeyedStateHandle,
    OperatorState,
    OperatorStateHandle,
    OperatorSubtaskState,
    key_group_ranges,
    require_parallelism,
)
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.arrow.layout import KEY_GROUP, single
from airflow_provider_statecheck.state.arrow.restore import is_known
from airflow_provider_statecheck.state.arrow.row_versions import merge_tables
from airflow_provider_statecheck.state.arrow.run_files import RunBytes, StateFiles
from airflow_provider_statecheck.state.arrow.runs import Reading
from airflow_provider_statecheck.state.arrow.state_runs import LocalSpill, StateRuns
from airflow_provider_statecheck.state.operator.backend import read_restored
from airflow_provider_statecheck.state.reading.checkpoint_states import (
    CheckpointStates,
    StateContent,
    handles_of_subtask,
    owned_handles,
    written_schemas,
)
from airflow_provider_statecheck.state.reading.state_reader import StateColumns, StateReader
from airflow_provider_statecheck.state.schema_evolution import StateSchema, custom_types, is_exact, schema_of_all
from airflow_provider_statecheck.state.writing.canonical_files import CanonicalFiles, KeyedFiles, split_by_ranges
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument
from airflow_provider_statecheck.storage.pointers import StateCopies, WrittenSavepoint, write_copies
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

_BYTES_AT_ONCE = 64 << 20
"""Approximate size of the stored state that is sorted in memory at once when key groups change."""


def write_savepoint(
    storage: CheckpointStorage,
    source: CheckpointDocument,
    *,
    directory: str,
    checkpoint_id: int,
    properties: CheckpointProperties,
    request_key: str = "",
) -> WrittenSavepoint:
    """
    Copy a checkpoint into a savepoint directory in the format of the properties, and write its metadata last.

    The call may be repeated after a crash.

    :param directory: URI of the savepoint directory; it must have no other writer.
    :param request_key: Key of the message that triggered the savepoint; empty for a savepoint without a row.
    :raises CheckpointNotFoundError: if a file of the source is missing.
    :raises CorruptStateError: if a file of the source is corrupt, and the savepoint is canonical.
    :raises UnsupportedStateError: if only the code of the stage can interpret a state, and the savepoint is canonical.
    :raises StorageError: if the storage fails.
    """
    copies = copies_of(storage, source, directory, properties)
    return write_copies(copies, source, checkpoint_id=checkpoint_id, properties=properties, request_key=request_key)


def copies_of(
    storage: CheckpointStorage, source: CheckpointDocument, directory: str, properties: CheckpointProperties
) -> StateCopies:
    """Return the copies of a checkpoint in the format of a savepoint's properties."""
    if properties.savepoint_format is SavepointFormat.NATIVE:
        return StateCopies(storage, directory, source.epoch)
    return CanonicalCopies(storage, directory, source)


class CanonicalCopies(StateCopies):
    """
    Copies of a checkpoint in which the state of backends is Parquet.

    :param max_parallelism: New number of key groups, ``None`` to keep it.
    :param without: Uid of an operator and name of its keyed state to leave out.
    :param bytes_at_once: Approximate size of the stored state that is sorted in memory when key groups change, in
        bytes.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        directory: str,
        source: CheckpointDocument,
        *,
        max_parallelism: int | None = None,
        without: tuple[str, str] | None = None,
        bytes_at_once: int = _BYTES_AT_ONCE,
    ) -> None:
        super().__init__(storage, directory, source.epoch)
        self._source = CheckpointStates(storage, source)
        self._parquet = CanonicalFiles(storage, directory, source.epoch)
        self._max_parallelism = max_parallelism
        self._without = without
        self._bytes_at_once = bytes_at_once

    def of_operator(self, operator: OperatorState) -> OperatorState:
        """
        Write the state of an operator as Parquet, and copy what only its own code reads.

        :raises CorruptStateError: if a file is corrupt.
        :raises UnsupportedStateError: if only the code of the stage can interpret a state, or a state cannot be
            converted.
        """
        try:
            return self._converted(operator)
        except StateCheckError:
            raise
        except Exception as error:
            # The state is the user's, and a failed savepoint must not end the stage.
            raise UnsupportedStateError(
                f"Expected state of operator {operator.uid!r} that can be written as Parquet, found a state that "
                f"fails: {error}; take a native savepoint."
            ) from error

    def _converted(self, operator: OperatorState) -> OperatorState:
        subtasks = operator.subtask_states
        unread = {i: replace(each, managed_keyed=(), managed_operator=()) for i, each in subtasks.items()}
        max_parallelism = self._max_parallelism or operator.max_parallelism
        copied = super().of_operator(replace(operator, subtask_states=unread, max_parallelism=max_parallelism))
        found = dict(copied.subtask_states)
        for index, handle in self._keyed(operator):
            found[index] = replace(found.get(index, OperatorSubtaskState()), managed_keyed=(handle,))
            self.size_bytes += handle.state_size
        for index, handles in self._operator_states(operator):
            found[index] = replace(found[index], managed_operator=handles)
        return replace(copied, subtask_states={i: each for i, each in found.items() if each.has_state})

    def _operator_states(self, operator: OperatorState) -> Iterator[tuple[int, tuple[OperatorStateHandle, ...]]]:
        # Subtasks have equal broadcast state, so that one file is enough.
        broadcast: dict[str, tuple[OperatorStateHandle, ...]] = {}
        for index, subtask in sorted(operator.subtask_states.items()):
            written: list[OperatorStateHandle] = []
            for name, state in read_restored(self.storage, subtask.managed_operator).items():
                handles = broadcast.get(name)
                if handles is None:
                    handles = self._parquet.write_elements(operator.uid, index, state)
                    self.size_bytes += sum(each.state_size for each in handles)
                written += handles
                if state.mode is DistributionMode.BROADCAST:
                    broadcast[name] = handles
            yield index, tuple(written)

    def _keyed(self, operator: OperatorState) -> Iterator[tuple[int, KeyedStateHandle]]:
        max_parallelism = self._max_parallelism or operator.max_parallelism
        ranges = key_group_ranges(operator.parallelism, max_parallelism)
        files = [KeyedFiles(self._parquet, operator.uid, i, owned, max_parallelism) for i, owned in enumerate(ranges)]
        if self._max_parallelism is None:
            self._write_as_before(operator, files)
        else:
            self._write_regrouped(operator, files)
        for index, each in enumerate(files):
            handle = each.handle(self._source.document.checkpoint_id)
            if handle is not None:
                yield index, handle

    def _write_as_before(self, operator: OperatorState, files: Sequence[KeyedFiles]) -> None:
        subtasks = [tuple(self._contents(operator, handles_of_subtask(operator, index))) for index in range(len(files))]
        common = _common_schemas(content.schema for contents in subtasks for content in contents)
        for each, contents in zip(files, subtasks, strict=True):
            for written in contents:
                content = replace(written, schema=common.get(written.schema.name, written.schema))
                each.write(content.key, content.schema, self._reader(content).rows())

    def _write_regrouped(self, operator: OperatorState, files: Sequence[KeyedFiles]) -> None:
        for content in self._contents(operator, owned_handles(operator)):
            with closing(LocalSpill()) as spill, closing(RunBytes(self.storage.allowing_own(spill.uri))) as spilled:
                found = self._runs_of(content, files, spill, spilled)
                for each, runs in zip(files, found, strict=True):
                    each.write(content.key, content.schema, runs.rows())

    def _runs_of(
        self, content: StateContent, files: Sequence[KeyedFiles], spill: LocalSpill, spilled: RunBytes
    ) -> tuple[StateRuns, ...]:
        """Return the rows of a state in their new key groups, for the range of each writer."""
        ranges = [each.owned for each in files]
        reader = self._reader(content)
        runs = tuple(StateRuns(reader.form, Reading(spilled)) for _ in ranges)
        for table in self._rows_in_new_groups(reader, files[0].max_parallelism):
            for each, part in zip(runs, split_by_ranges(table, ranges), strict=True):
                each.add(part)
            if sum(each.memory_bytes for each in runs) > self._bytes_at_once:
                for each in runs:
                    each.spill(spill.open_stream)
        return runs

    def _contents(self, operator: OperatorState, handles: tuple[KeyedStateHandle, ...]) -> Iterator[StateContent]:
        for handle in handles:
            _require_convertible(operator, handle)
        schemas = written_schemas(self.storage, handles)
        for state in schemas.keyed:
            if schemas.key is not None and (operator.uid, state.name) != self._without:
                yield StateContent(
                    uid=operator.uid,
                    schema=state,
                    key=schemas.key,
                    max_parallelism=operator.max_parallelism,
                    handles=handles,
                    taken_at_ms=self._source.taken_at_ms,
                )

    def _reader(self, content: StateContent) -> StateReader:
        reader = StateReader(self.storage, content)
        if content.schema.expires or custom_types(content.schema):
            _require_equal_form(content.schema, reader.files())
        return reader

    def _rows_in_new_groups(self, reader: StateReader, max_parallelism: int) -> Iterator[Any]:
        content, columns = reader.content, reader.columns
        for window in content.windows(self._bytes_at_once):
            tables = (columns.layout.conform(t, namespace=True, deleted=False) for t in reader.rows(window))
            regrouped = [_with_groups(columns, table, max_parallelism) for table in tables]
            if regrouped:
                yield merge_tables(columns.layout, regrouped)


def _common_schemas(written: Iterable[StateSchema]) -> dict[str, StateSchema]:
    """
    Return the schemas in which other tools can read the files of all subtasks.

    A state is left out if only the code of the stage can convert the rows of some subtasks.
    """
    found: dict[str, list[StateSchema]] = {}
    for schema in written:
        found.setdefault(schema.name, []).append(schema)
    common = {name: schema_of_all(schemas) for name, schemas in found.items()}
    return {
        name: schema
        for name, schema in common.items()
        if not custom_types(schema) and all(is_exact(each, schema) for each in found[name])
    }


def _with_groups(columns: StateColumns, table: Any, max_parallelism: int) -> Any:
    keys = [single(table.column(name)) for name in columns.layout.key_names]
    groups = pa.array(columns.keys.key_groups_of(keys, max_parallelism), pa.int32())
    return table.set_column(table.schema.get_field_index(KEY_GROUP), KEY_GROUP, groups)


def _require_convertible(operator: OperatorState, handle: KeyedStateHandle) -> None:
    if not is_known(handle):
        raise UnsupportedStateError(
            f"Expected keyed state of operator {operator.uid!r} that this release can convert, found state of the "
            f"backend {handle.backend_id!r}; take a native savepoint."
        )


def _require_equal_form(state: StateSchema, files: StateFiles) -> None:
    rows = [file.state for run in files.runs for file in run]
    if state.expires and not all(each.expires for each in rows):
        raise UnsupportedStateError(
            f"Expected all rows of state {state.name!r} to have the time of their last use, found rows of another "
            "release without it; let the stage rewrite all of the state, or take a native savepoint."
        )
    if custom_types(state) and any((each.key, each.value) != (state.key, state.value) for each in rows):
        raise UnsupportedStateError(
            f"Expected state {state.name!r} to be written with one version of its serializer, found several, which "
            "only the code of the stage can migrate; let the stage rewrite all of the state, or take a native "
            "savepoint."
        )


def rescale_max_parallelism(
    storage: CheckpointStorage, source: CheckpointDocument, *, directory: str, max_parallelism: int
) -> WrittenSavepoint:
    """
    Write a checkpoint as a savepoint with another maximum parallelism. The source is not changed.

    The metadata is written last, and a failed savepoint is deleted unless the storage failed.

    :param directory: Directory of the new savepoint, without other writers.
    :param max_parallelism: New number of key groups.
    :raises InvalidConfigurationError: if the maximum parallelism is above the limit or below the parallelism of an
        operator, or for a savepoint of the whole job.
    :raises UnsupportedStateError: if only the code of the stage can interpret keys or types of the state.
    :raises CorruptStateError: if the state does not match its checksum.
    :raises CheckpointNotFoundError: if a file of the source is missing.
    :raises IncompatibleCheckpointError: if a newer version wrote the state, or the subtasks have different key types.
    :raises StorageError: if the storage fails.
    """
    _require_one_stage(source)
    require_parallelism(max((state.parallelism for state in source.operator_states), default=1), max_parallelism)
    copies = CanonicalCopies(storage, directory, source, max_parallelism=max_parallelism)
    with deleting_on_failure(storage, directory):
        return write_copies(
            copies,
            source,
            checkpoint_id=source.checkpoint_id,
            properties=CheckpointProperties.for_savepoint(),
            request_key=source.request_key,
        )


@contextlib.contextmanager
def deleting_on_failure(storage: CheckpointStorage, directory: str) -> Iterator[None]:
    """
    Delete the directory of a savepoint if the block raises.

    After a failure of the storage or an interruption nothing is deleted: a write that was given up may still succeed,
    and its file would be left without the others. A warning then names the directory.
    """
    try:
        yield
    except BaseException as error:
        if _may_still_write(error):
            log.warning("Left an unfinished savepoint in %s; delete the directory later", redact(directory))
            raise
        # Without metadata the directory is not a savepoint, so files that cannot be deleted are orphans.
        with contextlib.suppress(StorageError):
            storage.delete_directory(directory)
        raise


def _may_still_write(error: BaseException) -> bool:
    return not isinstance(error, Exception) or (isinstance(error, StorageError) and error.retryable)


def _require_one_stage(source: CheckpointDocument) -> None:
    if source.is_of_several:
        uids = ", ".join(repr(state.uid) for state in source.operator_states)
        raise InvalidConfigurationError(
            f"Expected a checkpoint of one stage to rescale, found checkpoint {source.checkpoint_id} of job "
            f"{source.job_name!r}, which covers the stages {uids}; take a savepoint of the stage and rescale that."
        )
