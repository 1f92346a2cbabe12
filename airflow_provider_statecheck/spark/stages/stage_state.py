"""State of a stage's functions on the driver: restored, redistributed, tracked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import OperatorId, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.layout import STATE_DIRECTORY, shared_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.states.assignment import assign_states
from airflow_provider_statecheck.checkpoint.states.compatibility import RestoreTarget
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    OperatorState,
    OperatorSubtaskState,
    SegmentFileStateHandle,
    StreamStateHandle,
    with_streams,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import default_max_parallelism
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.stages.executor.task_control import TaskReport
from airflow_provider_statecheck.spark.stages.planning import PlannedOperator
from airflow_provider_statecheck.state.schemas import OperatorSchemas, decode_schemas, encode_schemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.state_codec import decode_state, encode_state
from airflow_provider_statecheck.storage.views.state_files import read_state


class StageStates:
    """
    Where each function's state is after the increments so far.

    :param schemas: The types of state by the uid of the function's operator.
    :param parallelism: Number of subtasks.
    :param max_parallelism: Number of key groups.
    :param restored: The state to begin with, by operator and subtask.
    :param unchanged: Operators as they are in the restored checkpoint, by the uid of today.
    :param restored_checkpoint_id: In which they are.
    """

    def __init__(
        self,
        schemas: Mapping[str, OperatorSchemas],
        *,
        parallelism: int,
        max_parallelism: int,
        restored: Mapping[tuple[OperatorId, int], OperatorSubtaskState],
        unchanged: Mapping[str, OperatorState] | None = None,
        restored_checkpoint_id: int | None = None,
    ) -> None:
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self._schemas = {uid: coordinator_state(encode_schemas(each)) for uid, each in schemas.items()}
        self._states: dict[str, dict[int, OperatorSubtaskState]] = {
            uid: {
                index: state for (operator_id, index), state in restored.items() if operator_id == operator_id_of(uid)
            }
            for uid in schemas
        }
        self._unchanged = dict(unchanged or {})
        self._saved_with = dict.fromkeys(self._unchanged, restored_checkpoint_id)

    def of(self, uid: str) -> dict[int, OperatorSubtaskState]:
        """Return the state of an operator by subtask."""
        return dict(self._states[uid])

    def saved_with(self, uid: str) -> int | None:
        """Return with which checkpoint an operator was saved last, 0 for an increment without one; ``None`` for never."""
        return self._saved_with.get(uid)

    def update(
        self, reports: Iterable[TaskReport], operators_by_vertex: Sequence[Sequence[str]], checkpoint_id: int
    ) -> None:
        """
        Take over what the winning tasks of an increment saved; subtasks that did not run keep what they had.

        :param operators_by_vertex: The uids of the operators of each vertex.
        :param checkpoint_id: Which the functions were told.
        """
        for report in reports:
            saved = {state.uid: state.subtask_states[report.subtask] for state in report.states}
            for uid in operators_by_vertex[report.vertex]:
                self._saved_with[uid] = checkpoint_id
                self._unchanged.pop(uid, None)
                if uid in saved:
                    self._states[uid][report.subtask] = saved[uid]
                else:
                    self._states[uid].pop(report.subtask, None)

    def operator_states(self) -> tuple[OperatorState, ...]:
        """Return what a checkpoint says of the functions; one without any state is in it too."""
        return tuple(self._operator_state(uid) for uid in self._states)

    def _operator_state(self, uid: str) -> OperatorState:
        if uid in self._unchanged:
            # What was dealt out is not what was saved: of union lists each subtask got all, which would be saved as often.
            return replace(self._unchanged[uid], operator_id=operator_id_of(uid), uid=uid)
        return OperatorState(
            operator_id=operator_id_of(uid),
            uid=uid,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            subtask_states=dict(self._states[uid]),
            coordinator_state=self._schemas[uid],
        )


def coordinator_state(value: Any) -> ByteStreamStateHandle:
    """Return JSON as state that travels in the metadata."""
    return ByteStreamStateHandle(new_key(), json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def single_state(uid: str, value: Any) -> OperatorState:
    """Return what a checkpoint says of a part of the stage that the driver alone has, such as its source."""
    return OperatorState(
        operator_id=operator_id_of(uid),
        uid=uid,
        parallelism=1,
        max_parallelism=1,
        coordinator_state=coordinator_state(encode_state(value)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedStates:
    """State of operators of which every file belongs to the operator itself."""

    states: tuple[OperatorState, ...]
    copied_bytes: int


def own_borrowed(storage: CheckpointStorage, states: Iterable[OperatorState], attempt: AttemptRef) -> OwnedStates:
    """
    Copy the files of state that belong to the owner of a snapshot which was restored without a claim.

    A call that failed is made good by the next one of the same attempt, which copies only what is missing.

    :param storage: Where the attempt writes.
    :param states: What the next checkpoint is to name.
    :param attempt: Who writes; what it or its forerunners wrote for checkpoints to share is not copied.
    :raises CheckpointNotFoundError: if a file is missing, because its owner deleted it.
    :raises StorageError: if one cannot be copied.
    """
    copies = _OwnCopies(storage, attempt)
    owned = tuple(with_streams(state, copies.of_stream) for state in states)
    return OwnedStates(states=owned, copied_bytes=copies.size_bytes)


class _OwnCopies:
    """Copies each foreign stream once."""

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef) -> None:
        self._storage = storage
        self._epoch = attempt.epoch
        self._shared = shared_uri(storage.base_uri, attempt.job_id, attempt.operator_id)
        self._copies: dict[StreamStateHandle, FileStateHandle] = {}
        self.size_bytes = 0

    def of_stream(self, stream: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(stream, FileStateHandle | SegmentFileStateHandle) or self._is_own(stream.uri):
            return stream
        if stream not in self._copies:
            self._copies[stream] = self._copy(stream)
        return self._copies[stream]

    def _is_own(self, uri: str) -> bool:
        # Not what lies in the directory of a checkpoint: that may be the very one which was restored without a claim.
        return uri.startswith(f"{self._shared}/")

    def _copy(self, stream: FileStateHandle | SegmentFileStateHandle) -> FileStateHandle:
        copy = FileStateHandle(uri=self._uri_of(stream), size=stream.state_size, sha256=stream.sha256)
        if not self._is_there(copy):
            self._write(stream, copy)
        self.size_bytes += copy.size
        return copy

    def _write(self, stream: FileStateHandle | SegmentFileStateHandle, copy: FileStateHandle) -> None:
        if isinstance(stream, FileStateHandle):
            self._storage.copy_file(stream.uri, copy.uri)
            return
        # The rest of its file belongs to others.
        data = self._storage.read_range(stream.uri, stream.start, stream.start + stream.length)
        self._storage.write_bytes(copy.uri, data)

    def _is_there(self, copy: FileStateHandle) -> bool:
        try:
            return self._storage.size(copy.uri) == copy.size
        except CheckpointNotFoundError:
            return False

    def _uri_of(self, stream: FileStateHandle | SegmentFileStateHandle) -> str:
        # The same each time that one attempt copies it.
        part = f"{stream.start}+{stream.length}" if isinstance(stream, SegmentFileStateHandle) else ""
        name = hashlib.sha256(f"{stream.uri}#{part}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._shared}/{STATE_DIRECTORY}/{self._epoch}-{name}"


STATE_KEY = "stage"
"""Under which a checkpoint's small values hold those of a stage."""
SOURCE, SINK = "source", "sink"
"""Parts of which the driver alone has state."""


class RestoredStageState:
    """
    Reads a checkpoint of a stage; of a fresh start there is nothing in it.

    The checkpoint may be a savepoint of a stage with another uid; then its functions are known by their own part of the uid.

    :param attempt: The registered try.
    :param restored: What it restored.
    """

    def __init__(self, attempt: StageAttempt, restored: RestoredStage | None) -> None:
        self._attempt = attempt
        self._restored = restored

    @property
    def checkpoint_id(self) -> int | None:
        """Return which checkpoint it is; ``None`` for a fresh start."""
        return None if self._restored is None else self._restored.checkpoint.checkpoint_id

    @property
    def own_checkpoint_id(self) -> int | None:
        """
        Return the checkpoint of this very operator at which the state was taken; a savepoint is a copy of one.

        It is ``None`` for a fresh start, and for what was taken of another job or of a stage with another uid.
        """
        if self._restored is None:
            return None
        document, attempt = self._restored.document, self._attempt.grant.attempt
        is_own = (document.job_id, document.operator_id) == (attempt.job_id, attempt.operator_id)
        return int(self._small_values.get("checkpoint", document.checkpoint_id)) if is_own else None

    @property
    def own_epoch(self) -> int | None:
        """Return the attempt of this operator that took it, ``None`` where :attr:`own_checkpoint_id` is."""
        return None if self._restored is None or self.own_checkpoint_id is None else self._restored.document.epoch

    @property
    def run(self) -> str | None:
        """Return the run that took the checkpoint."""
        run: str | None = self._small_values.get("run")
        return run

    @property
    def now_ms(self) -> int | None:
        """Return the time by which state expired in that run, in milliseconds."""
        now_ms = self._small_values.get("now_ms")
        return None if now_ms is None else int(now_ms)

    @property
    def cost_seconds(self) -> tuple[float, ...]:
        """Return what a checkpoint cost at that time, as far as it was known."""
        cost = self._small_values.get("cost_seconds")
        return () if cost is None else (float(cost),)

    @property
    def source(self) -> Any:
        """Return what the source saved."""
        return self._value(SOURCE)

    @property
    def open_commits(self) -> Any:
        """Return what the sink had not committed, and need not be told that it did."""
        return self._value(SINK)

    @cached_property
    def functions(self) -> tuple[OperatorState, ...]:
        """
        Return the state of the functions; files that belong to somebody else are copied first.

        :raises StorageError: if one cannot be copied.
        """
        states = tuple(s for s in self._states if s.uid not in (self.uid_of(SOURCE), self.uid_of(SINK)))
        if self._restored is None or not self._restored.checkpoint.properties.unclaimed:
            return states
        return own_borrowed(self._attempt.storage, states, self._attempt.grant.attempt).states

    def schemas_of(self, state: OperatorState) -> OperatorSchemas:
        """
        Return the types of a function's state.

        :raises CorruptStateError: if they are not what was written.
        """
        if state.coordinator_state is None:
            return OperatorSchemas()
        return decode_schemas(json.loads(read_state(self._attempt.storage, state.coordinator_state)))

    def uid_of(self, part: str) -> str:
        """Return the uid that a part of the stage has in the checkpoint."""
        stage = self._attempt.registration.uid if self._restored is None else self._restored.document.uid
        return f"{stage}/{part}"

    def _value(self, part: str) -> Any:
        state = next((s for s in self._states if s.uid == self.uid_of(part)), None)
        if state is None or state.coordinator_state is None:
            return None
        return decode_state(json.loads(read_state(self._attempt.storage, state.coordinator_state)))

    @property
    def _small_values(self) -> dict[str, Any]:
        return {} if self._restored is None else dict(self._restored.state.get(STATE_KEY, {}))

    @property
    def _states(self) -> tuple[OperatorState, ...]:
        return () if self._restored is None else self._restored.document.operator_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How many subtasks and key groups a stage is to have."""

    subtasks: int
    max_parallelism: int | None
    """``None`` where nobody chose it: then it is that of the restored state, or follows from the subtasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredFunctions:
    """What the subtasks of a try begin with."""

    states: Mapping[tuple[OperatorId, int], OperatorSubtaskState] = field(default_factory=dict)
    schemas: Mapping[str, OperatorSchemas] = field(default_factory=dict)
    """By the uid of the operator; of what is restored."""
    restored: Mapping[str, OperatorState] = field(default_factory=dict)
    """By the uid of the operator; as it is in the checkpoint."""
    max_parallelism: int


def restore_functions(
    restored: RestoredStageState,
    operators: Sequence[PlannedOperator],
    parallelism: Parallelism,
    *,
    stage_uid: str,
    renamed_uids: Mapping[str, str],
    allow_non_restored_state: bool,
) -> RestoredFunctions:
    """
    Deal the state of a checkpoint out to the subtasks of the functions.

    :param stage_uid: Of the stage within its job.
    :param renamed_uids: New uids of functions by old ones, within the stage.
    :param allow_non_restored_state: Whether state of functions that are gone is dropped.
    :raises IncompatibleCheckpointError: if the state does not fit.
    """
    max_parallelism = parallelism.max_parallelism or default_max_parallelism(parallelism.subtasks)
    targets = [_target(operator, parallelism, max_parallelism) for operator in operators]
    assigned = assign_states(
        targets,
        restored.functions,
        renamed_uids=_renamed(restored, operators, stage_uid, renamed_uids),
        allow_non_restored_state=allow_non_restored_state,
    )
    return RestoredFunctions(
        states=assigned.subtask_states,
        schemas={target.uid: restored.schemas_of(state) for target, state in assigned.matched.pairs},
        restored={target.uid: state for target, state in assigned.matched.pairs},
        max_parallelism=max(assigned.max_parallelisms.values(), default=max_parallelism),
    )


def _target(operator: PlannedOperator, parallelism: Parallelism, max_parallelism: int) -> RestoreTarget:
    return RestoreTarget(
        operator_id=operator_id_of(operator.uid),
        uid=operator.uid,
        parallelism=parallelism.subtasks,
        max_parallelism=max_parallelism,
        is_max_parallelism_configured=parallelism.max_parallelism is not None,
    )


def _renamed(
    restored: RestoredStageState, operators: Sequence[PlannedOperator], stage_uid: str, renamed_uids: Mapping[str, str]
) -> dict[str, str]:
    same = {uid: uid for uid in (operator.node.uid for operator in operators)} | dict(renamed_uids)
    return {restored.uid_of(old): f"{stage_uid}/{new}" for old, new in same.items()}
