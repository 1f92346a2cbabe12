"""
State of a stage on the driver: restored, redistributed to subtasks, and tracked.

Functions have state in subtasks; source and sink have state only on the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.checkpoint.checkpoint_summary import StateSummary
from airflow_provider_statecheck.checkpoint.codec import decode
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.states.assignment import StateAssignment, assign_states, handles_within
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    OperatorState,
    OperatorSubtaskState,
    default_max_parallelism,
    key_group_ranges,
    with_streams,
)
from airflow_provider_statecheck.checkpoint.states.matching import RestoreTarget, match_states
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.planning import PlannedNode, PlannedVertex
from airflow_provider_statecheck.state.keyed.abstract_backend import StateSize
from airflow_provider_statecheck.state.reading.checkpoint_contents import size_of_only_state, state_summaries
from airflow_provider_statecheck.state.reading.checkpoint_states import RunValues, json_of
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas, decode_schemas, encode_schemas
from airflow_provider_statecheck.state.source_items import BROADCAST_SUFFIX, SOURCE
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_whole
from airflow_provider_statecheck.storage.stored_json import decode_state, decoding, encode_state
from airflow_provider_statecheck.storage.views.checkpoint_storages import OperatorDirectories
from airflow_provider_statecheck.storage.views.state_files import read_state

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.connectors.exactly_once.places import RestoredOutput

SINK = "sink"
"""Uid of the sink within the stage."""
PLACE = "place"
"""Key of the place of the sink among its committables, whose keys are the IDs of checkpoints."""


class RestoredStageState:
    """
    The restored checkpoint of a stage; empty on a fresh start.

    The checkpoint may be a savepoint of a stage with another uid; its functions are then matched by their uids within
    the stage.

    :param restored: The restored checkpoint; ``None`` on a fresh start.
    """

    def __init__(self, attempt: StageAttempt, restored: RestoredStage | None) -> None:
        self._attempt = attempt
        self._restored = restored

    @property
    def checkpoint_id(self) -> int | None:
        """ID of the restored checkpoint; ``None`` on a fresh start."""
        return None if self._restored is None else self._restored.checkpoint.checkpoint_id

    @property
    def own_checkpoint_id(self) -> int | None:
        """
        ID of the checkpoint of this operator that contains the state; for a savepoint, the checkpoint that it copies.

        ``None`` on a fresh start, and for state of another job or of a stage with another uid.
        """
        if self._restored is None:
            return None
        document, attempt = self._restored.document, self._attempt.grant.attempt
        is_own = (document.job_id, document.operator_id) == (attempt.job_id, attempt.operator_id)
        return (self.values.checkpoint or document.checkpoint_id) if is_own else None

    @property
    def is_of_other_job(self) -> bool:
        """Whether the state is that of another job, or of a stage with another uid."""
        return self.checkpoint_id is not None and self.own_checkpoint_id is None

    @cached_property
    def cuts(self) -> Mapping[str, tuple[int, int]]:
        """
        Last attempt and checkpoint whose output a savepoint of another job has, by lineage of the sink.

        Empty for any other checkpoint.
        """
        if self._restored is None or not self.is_of_other_job or not self._restored.checkpoint.properties.member:
            return {}
        from airflow_provider_statecheck.spark.connectors.sink import lineage_of

        savepoint = load_whole(self._attempt.storage, self._restored.checkpoint)
        lineages = {lineage_of(JobId(m.job_id), f"{m.uid}/{SINK}"): m for m in savepoint.members}
        return {lineage: (m.epoch, m.checkpoint_id) for lineage, m in lineages.items()}

    @property
    def own_epoch(self) -> int | None:
        """Epoch of the attempt of this operator that took the checkpoint; ``None`` if :attr:`own_checkpoint_id` is."""
        return None if self._restored is None or self.own_checkpoint_id is None else self._restored.document.epoch

    @cached_property
    def values(self) -> RunValues:
        """
        The values of the run that took the checkpoint.

        :raises CorruptStateError: if they are invalid.
        """
        return RunValues() if self._restored is None else RunValues.of(self._restored.state)

    @property
    def source(self) -> Any:
        """State of the source; raises ``CorruptStateError`` if it is invalid."""
        return self._value(SOURCE)

    def broadcast_source(self, uid: str, renamed_uids: Mapping[str, str]) -> Any:
        """
        Return the state of the broadcast source of a function; raises ``CorruptStateError`` if it is invalid.

        :param uid: Uid of the function within the stage.
        :param renamed_uids: New uids of functions by their earlier ones.
        """
        former = [old for old, new in renamed_uids.items() if new == uid]
        own = () if uid in renamed_uids else (uid,)
        found = (self._value(broadcast_uid(name)) for name in (*former, *own))
        return next((each for each in found if each is not None), None)

    @property
    def open_commits(self) -> Any:
        """Committables that the sink may not have committed yet; raises ``CorruptStateError`` if they are invalid."""
        return self._value(SINK)

    def output_of(self, run: str) -> RestoredOutput | None:
        """
        Return what the checkpoint tells about its output; ``None`` on a fresh start, and for state of another job.

        :param run: The run of this attempt.
        :raises CorruptStateError: if it is invalid.
        """
        if self._restored is None or self.own_checkpoint_id is None:
            return None
        from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place, RestoredOutput

        # A savepoint does not tell whether the output of the checkpoint that it copies was committed later.
        checkpoint, is_copy = self._restored.checkpoint, self.checkpoint_id != self.own_checkpoint_id
        with decoding("the place of a sink"):
            place = (self.open_commits or {}).get(PLACE)
            return RestoredOutput(
                place=None if place is None else decode(Place, place),
                is_committed=not is_copy and not checkpoint.has_open_commit,
                is_of_this_run=not is_copy and self.values.run == run,
            )

    @cached_property
    def functions(self) -> tuple[OperatorState, ...]:
        """
        State of the functions; borrowed files are copied first.

        :raises StorageError: if a file cannot be copied.
        """
        states = self._of_functions
        if self._restored is None or not self._restored.checkpoint.properties.unclaimed:
            return states
        return copy_borrowed_files(self._attempt.storage, states, self._attempt.grant.attempt)

    def assigned_to(
        self,
        functions: Sequence[PlannedNode],
        settings: DriverSettings,
        *,
        parallelism: int,
        max_parallelism: int | None,
    ) -> StateAssignment:
        """
        Redistribute the state to the subtasks of the functions.

        :param max_parallelism: ``None`` if the user did not set it; it then follows from the restored state or the
            parallelism.
        :raises IncompatibleCheckpointError: if the state does not match the functions or their parallelism.
        """
        return assign_states(
            _targets(functions, parallelism, max_parallelism),
            self.functions,
            renamed_uids=self._uids(functions, settings),
            allow_non_restored_state=settings.allow_non_restored_state,
        )

    def key_groups(self, functions: Sequence[PlannedNode], settings: DriverSettings) -> int | None:
        """
        Return the number of key groups of the restored state of the functions; ``None`` if they have none.

        :raises IncompatibleCheckpointError: if the checkpoint has two states for one function.
        """
        matched = match_states(_targets(functions, 1, None), self._of_functions, self._uids(functions, settings))
        return min((state.max_parallelism for _, state in matched.pairs), default=None)

    def _uids(self, functions: Sequence[PlannedNode], settings: DriverSettings) -> dict[str, str]:
        uids = {function.node.uid: function.node.uid for function in functions} | dict(settings.renamed_uids)
        stage_uid = self._attempt.registration.uid
        return {self.uid_of(old): f"{stage_uid}/{new}" for old, new in uids.items()}

    def schemas_of(self, state: OperatorState) -> OperatorSchemas:
        """
        Return the types of the state of a function.

        :raises CorruptStateError: if the stored types are invalid.
        """
        if state.coordinator_state is None:
            return OperatorSchemas()
        return decode_schemas(json_of(read_state(self._attempt.storage, state.coordinator_state)))

    def uid_of(self, uid: str) -> str:
        """Return the uid within the checkpoint of a function, the source or the sink."""
        stage = self._attempt.registration.uid if self._restored is None else self._restored.document.uid
        return f"{stage}/{uid}"

    def _value(self, uid: str) -> Any:
        state = next((s for s in self._states if s.uid == self.uid_of(uid)), None)
        if state is None or state.coordinator_state is None:
            return None
        return decode_state(json_of(read_state(self._attempt.storage, state.coordinator_state)))

    @property
    def _of_functions(self) -> tuple[OperatorState, ...]:
        driver_uids = (self.uid_of(SOURCE), self.uid_of(SINK))
        return tuple(s for s in self._states if s.uid not in driver_uids and not s.uid.endswith(BROADCAST_SUFFIX))

    @property
    def _states(self) -> tuple[OperatorState, ...]:
        return () if self._restored is None else self._restored.document.operator_states


def _targets(functions: Iterable[PlannedNode], parallelism: int, max_parallelism: int | None) -> list[RestoreTarget]:
    return [
        RestoreTarget(
            operator_id=function.operator_id,
            uid=function.uid,
            parallelism=parallelism,
            max_parallelism=max_parallelism or default_max_parallelism(parallelism),
            is_max_parallelism_configured=max_parallelism is not None,
        )
        for function in functions
    ]


class StageStates:
    """
    Tracks the state handles of all functions over the increments of an attempt.

    :param schemas: State types by the uids of the functions.
    :param max_parallelism: Number of key groups.
    :param restored: Initial state, by function and subtask.
    :param unchanged: Functions as in the restored checkpoint, by their current uids.
    :param restored_schemas: Their types, by the same uids.
    """

    def __init__(
        self,
        schemas: Mapping[str, OperatorSchemas],
        *,
        parallelism: int,
        max_parallelism: int,
        restored: Mapping[tuple[OperatorId, int], OperatorSubtaskState],
        unchanged: Mapping[str, OperatorState] | None = None,
        restored_schemas: Mapping[str, OperatorSchemas] | None = None,
        restored_checkpoint_id: int | None = None,
    ) -> None:
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.restored_schemas = restored_schemas or {}
        self._schemas = {uid: coordinator_state(encode_schemas(types)) for uid, types in schemas.items()}
        self._states: dict[str, dict[int, OperatorSubtaskState]] = {
            uid: {
                index: state for (operator_id, index), state in restored.items() if operator_id == operator_id_of(uid)
            }
            for uid in schemas
        }
        self._types = dict(schemas)
        self._sizes: dict[str, dict[int, tuple[StateSize, ...]]] = {uid: {} for uid in schemas}
        self._unchanged = dict(unchanged or {})
        self._saved_with = dict.fromkeys(self._unchanged, restored_checkpoint_id)

    def of(self, uid: str) -> dict[int, OperatorSubtaskState]:
        """Return the state of a function by subtask."""
        return dict(self._states[uid])

    def saved_with(self, uid: str) -> int | None:
        """Return the last checkpoint that saved a function, 0 for an increment without one; ``None`` for never."""
        return self._saved_with.get(uid)

    def types_of(self, vertices: Iterable[PlannedVertex]) -> dict[str, OperatorSchemas]:
        """Return the types of the state that functions continue, by their uids."""
        return {each.uid: self._types[each.uid] for v in vertices for each in v.functions if not each.reads_results}

    def with_types(self, schemas: Mapping[str, OperatorSchemas], written: Mapping[str, OperatorSchemas]) -> Self:
        """
        Return the same state for functions with other types, to which subtasks migrate it.

        :param schemas: State types from now on, by the uids of the functions.
        :param written: Types of the state until now.
        """
        other = copy(self)
        other.restored_schemas = dict(written)
        other._schemas = {uid: coordinator_state(encode_schemas(types)) for uid, types in schemas.items()}
        other._types = dict(schemas)
        return other

    def update(
        self, reports: Iterable[TaskReport], functions_by_vertex: Sequence[Sequence[str]], checkpoint_id: int
    ) -> None:
        """
        Apply the reports of an increment; subtasks without a report retain their state.

        :param functions_by_vertex: Uids of the functions of each vertex.
        :param checkpoint_id: ID of the checkpoint in which the tasks saved their state.
        """
        for report in reports:
            saved = {state.uid: state.subtask_states[report.subtask] for state in report.states}
            for uid in functions_by_vertex[report.vertex]:
                self._saved_with[uid] = checkpoint_id
                self._unchanged.pop(uid, None)
                if uid in saved:
                    self._states[uid][report.subtask] = saved[uid]
                else:
                    self._states[uid].pop(report.subtask, None)
                self._sizes[uid][report.subtask] = report.sizes.get(uid, ())

    def add_parts(self, reports: Iterable[TaskReport], checkpoint_id: int) -> None:
        """
        Add partial state of functions, which tasks have written for keys of all subtasks.

        :param checkpoint_id: ID of the next checkpoint, 0 if there is none yet.
        """
        for state in (state for report in reports for state in report.states):
            handles = state.subtask_states[0].managed_keyed
            for index, own in enumerate(key_group_ranges(self.parallelism, self.max_parallelism)):
                before = self._states[state.uid].get(index, OperatorSubtaskState())
                added = (*before.managed_keyed, *handles_within(handles, own))
                self._states[state.uid][index] = replace(before, managed_keyed=added)
            self._saved_with[state.uid] = checkpoint_id
            self._unchanged.pop(state.uid, None)
            # How many keys are in several parts is not known.
            self._sizes[state.uid].clear()

    def operator_states(self) -> tuple[OperatorState, ...]:
        """Return the state of all functions for a checkpoint, including functions without state."""
        return tuple(self._operator_state(uid) for uid in self._states)

    def summaries(self, stage_uid: str) -> Iterator[StateSummary]:
        """
        Return the figures of all states, from what the tasks have reported.

        :param stage_uid: Uid of the stage within its job.
        """
        for uid, types in self._types.items():
            known = size_of_only_state(types, [self._operator_state(uid)])
            reported = self._reported_sizes(uid)
            sizes = {name: (reported[name].keys, known.get(name, reported[name].size_bytes)) for name in reported} | {
                name: (None, size) for name, size in known.items() if name not in reported
            }
            yield from state_summaries(uid.removeprefix(f"{stage_uid}/"), types, sizes)

    def _reported_sizes(self, uid: str) -> dict[str, StateSize]:
        # Without a report of each subtask with state since the restore, the sums would be too low.
        if uid in self._unchanged or not self._states[uid].keys() <= self._sizes[uid].keys():
            return {}
        by_name: dict[str, list[StateSize]] = {}
        for size in (each for found in self._sizes[uid].values() for each in found):
            by_name.setdefault(size.name, []).append(size)
        return {
            name: StateSize(name, _sum(each.keys for each in found), _sum(each.size_bytes for each in found))
            for name, found in by_name.items()
        }

    def _operator_state(self, uid: str) -> OperatorState:
        if uid in self._unchanged:
            # Restored list state in union mode is duplicated in all subtasks, so the original is saved until the
            # operator runs.
            return replace(self._unchanged[uid], operator_id=operator_id_of(uid), uid=uid)
        return OperatorState(
            operator_id=operator_id_of(uid),
            uid=uid,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            subtask_states=dict(self._states[uid]),
            coordinator_state=self._schemas[uid],
        )


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(number or 0 for number in known)


def coordinator_state(value: Any) -> ByteStreamStateHandle:
    """Return JSON as a state handle that stores its bytes in the metadata."""
    return ByteStreamStateHandle(new_key(), json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def broadcast_uid(uid: str) -> str:
    """Return the uid of the broadcast source of a function."""
    return f"{uid}{BROADCAST_SUFFIX}"


def driver_state(uid: str, value: Any) -> OperatorState:
    """Return the operator state of a source or sink, which only the driver has."""
    return OperatorState(
        operator_id=operator_id_of(uid),
        uid=uid,
        parallelism=1,
        max_parallelism=1,
        coordinator_state=coordinator_state(encode_state(value)),
    )


def copy_borrowed_files(
    storage: CheckpointStorage, states: Iterable[OperatorState], attempt: AttemptRef
) -> tuple[OperatorState, ...]:
    """
    Copy the files that belong to the owner of an unclaimed savepoint, and return the states with the copies.

    A repeated call of the same attempt copies only missing files.

    :param states: Operator states for the next checkpoint.
    :param attempt: The attempt that writes; files in its shared directory are not copied.
    :raises CheckpointNotFoundError: if a file is missing because its owner deleted it.
    :raises StorageError: if a file cannot be copied.
    """
    copies = OperatorDirectories(storage, attempt).copies_of_borrowed_state()
    return tuple(with_streams(state, copies.of_stream) for state in states)
