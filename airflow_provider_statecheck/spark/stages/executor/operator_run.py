"""One function at work in one task: its state, its life, and what it makes of elements."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.key_groups import key_group_range_of
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState, OperatorSubtaskState
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.spark.stages.executor.control import SnapshotMoment
from airflow_provider_statecheck.spark.stages.executor.elements import Elements
from airflow_provider_statecheck.spark.stages.executor.keyed_chunk import KeyedChunk
from airflow_provider_statecheck.spark.stages.executor.operator_task import OperatorTask, TaskPlace
from airflow_provider_statecheck.spark.stages.executor.streams import TaskStreams
from airflow_provider_statecheck.state.backends.environment import StateEnvironment
from airflow_provider_statecheck.state.functions.lifecycle import FunctionLifecycle
from airflow_provider_statecheck.state.functions.runtime_context import TaskInfo
from airflow_provider_statecheck.state.operator.raw_input import raw_operator_state_inputs
from airflow_provider_statecheck.state.schemas import OperatorSchemas

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.stages.nodes import MapNode, ProcessNode
    from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class OperatorRun:
    """
    Runs one function.

    :param task: What the driver says about it.
    :param place: Where it runs.
    :param storage: From which its state is read.
    """

    def __init__(self, task: OperatorTask, place: TaskPlace, storage: CheckpointStorage) -> None:
        self.task = task
        self.place = place
        self._storage = storage
        self._restored = task.states.get(place.subtask, OperatorSubtaskState())
        self._operator_backend = place.state_backend.create_operator_state_backend(
            self._environment, task.operator_id, restored=self._restored.managed_operator
        )
        self._lifecycle = FunctionLifecycle(self.function, self._task_info)
        self._raw: tuple[Any, ...] = ()

    @property
    def function(self) -> Any:
        """Return what has a life of its own; ``None`` where nothing has."""
        return None

    @cached_property
    def keyed_backend(self) -> AbstractKeyedStateBackend | None:
        """Return the keyed state; ``None`` where there is no key."""
        place, serializer = self.place, self.task.key_serializer
        if serializer is None:
            return None
        backend: AbstractKeyedStateBackend = place.state_backend.create_keyed_state_backend(
            self._environment,
            place.job_id,
            self.task.operator_id,
            serializer,
            place.max_parallelism,
            key_group_range_of(place.subtask, place.parallelism, place.max_parallelism),
            restored=self._restored.managed_keyed,
        )
        return backend

    @property
    def keyed(self) -> AbstractKeyedStateBackend:
        """
        Return the keyed state.

        :raises CoordinatorError: where there is no key.
        """
        if self.keyed_backend is None:
            raise CoordinatorError(f"Expected key_by before {self.task.uid!r}, found none; its elements have no key.")
        return self.keyed_backend

    def open(self) -> None:
        """Restore the state and open the function."""
        keyed = self.keyed_backend
        self._lifecycle.initialize(
            is_restored=self.task.restored_checkpoint_id is not None,
            operator_state_store=self._operator_backend,
            keyed_state_store=None if keyed is None else keyed.store,
            restored_checkpoint_id=self.task.restored_checkpoint_id,
            raw_operator_state=raw_operator_state_inputs(self._storage, self._restored.raw_operator),
        )

    def process(self, elements: Elements) -> Elements:
        """Take elements that are in no particular order."""
        raise NotImplementedError

    def process_keyed(self, chunk: KeyedChunk) -> Elements:
        """Take the elements of whole key groups."""
        raise NotImplementedError

    def end(self) -> Iterator[Elements]:
        """Give what is left at the end of the input."""
        return iter(())

    def capture(self, moment: SnapshotMoment, streams: TaskStreams) -> None:
        """
        Let the function bring its state up to date.

        :raises CheckpointException: for whatever it raises.
        """
        self._raw = self._lifecycle.snapshot(moment.checkpoint_id, moment.timestamp, streams)

    def snapshot(self, moment: SnapshotMoment, streams: TaskStreams) -> tuple[OperatorState | None, int]:
        """
        Write the state.

        :return: The state of this subtask, ``None`` if there is none, and how many bytes are new.
        """
        at = (moment.checkpoint_id, moment.timestamp, streams)
        operator = self._operator_backend.snapshot(*at).run()
        keyed = None if self.keyed_backend is None else self.keyed_backend.snapshot(*at).run()
        state = OperatorSubtaskState(
            managed_operator=() if operator.handle is None else (operator.handle,),
            raw_operator=self._raw,
            managed_keyed=() if keyed is None or keyed.handle is None else (keyed.handle,),
        )
        new_bytes = operator.new_bytes + (0 if keyed is None else keyed.new_bytes)
        return (self._as_operator_state(state) if state.has_state else None), new_bytes

    def schemas(self) -> OperatorSchemas:
        """Return the types of the state."""
        keyed, serializer = self.keyed_backend, self.task.key_serializer
        return OperatorSchemas(
            key=None if serializer is None else serializer.snapshot(),
            keyed=() if keyed is None else keyed.schemas(),
            operator=self._operator_backend.schemas(),
        )

    def close(self) -> None:
        """Close the function and give up the state in memory."""
        try:
            self._lifecycle.close()
        finally:
            self._operator_backend.dispose()
            if "keyed_backend" in self.__dict__ and self.keyed_backend is not None:
                self.keyed_backend.dispose()

    def _as_operator_state(self, state: OperatorSubtaskState) -> OperatorState:
        return OperatorState(
            operator_id=OperatorId(self.task.operator_id),
            uid=self.task.uid,
            parallelism=self.place.parallelism,
            max_parallelism=self.place.max_parallelism,
            subtask_states={self.place.subtask: state},
        )

    @property
    def _environment(self) -> StateEnvironment:
        place = self.place
        return StateEnvironment(
            storage=self._storage,
            subtask_index=place.subtask,
            parallelism=place.parallelism,
            max_parallelism=place.max_parallelism,
            now_ms=lambda: place.now_ms,
            epoch=place.epoch,
            schemas=self.task.schemas,
            operator_name=self.task.uid,
        )

    @property
    def _task_info(self) -> TaskInfo:
        return TaskInfo(
            task_name=self.task.uid,
            index_of_this_subtask=self.place.subtask,
            number_of_parallel_subtasks=self.place.parallelism,
            max_number_of_parallel_subtasks=self.place.max_parallelism,
            logical_date=self.place.logical_date,
        )


class FunctionRun(OperatorRun):
    """Runs a function of the user's."""

    @property
    @override
    def function(self) -> Any:
        return cast("MapNode | ProcessNode", self.task.node).function
