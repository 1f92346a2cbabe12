"""User functions of stateful stages, and their life cycle in Flink's order of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.handles import OperatorStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.functions.contexts import (
    BroadcastContext,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBatchContext,
    KeyedContext,
    RuntimeContext,
    StateInitializationContext,
    StateSnapshotContext,
    TaskInfo,
)
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory


class CheckpointedFunction(ABC):
    """Function with managed state and a hook before each checkpoint."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """
        Register the state of the function. Called once, before ``open``.

        :param context: State stores and restored checkpoint, valid during the call.
        """

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """
        Update the state before a checkpoint. The checkpoint contains the state as it is after the call.

        :param context: Current checkpoint, valid during the call.
        """


class BoundedOneInput(ABC):
    """Function that also processes the end of its input, in each subtask."""

    @abstractmethod
    def end_input(self) -> Iterable[Any] | None:
        """
        Return the elements that are left; may be a generator.

        Called once in each subtask, after its last element, and before the next function ends and the last checkpoint
        is taken. The input of each run of a job ends.
        """


class RichFunction:
    """Function with hooks before the first and after the last element. Both do nothing by default."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """
        Prepare the function. Called once, after the state is initialized.

        :param runtime_context: Task information and keyed state.
        """

    def close(self) -> None:
        """Release the resources of ``open``. Called once, also after a failure."""


In = TypeVar("In")
Out = TypeVar("Out")


class MapFunction(ABC, Generic[In, Out]):
    """Function that maps each element to one element."""

    @abstractmethod
    def map(self, value: In) -> Out:
        """Return the element for an input element."""


class RichMapFunction(MapFunction[In, Out], RichFunction):
    """Map function with ``open`` and ``close``."""


class FlatMapFunction(ABC, Generic[In, Out]):
    """Function that maps each element to zero or more elements."""

    @abstractmethod
    def flat_map(self, value: In) -> Iterable[Out]:
        """Return the elements for an input element; may be a generator."""


class RichFlatMapFunction(FlatMapFunction[In, Out], RichFunction):
    """Flat map function with ``open`` and ``close``."""


K = TypeVar("K")


class KeyedProcessFunction(RichFunction, Generic[K, In, Out]):
    """
    Function that processes elements with the state of their key.

    A subclass defines ``process_element`` or ``process_batch``. If it defines both, ``process_batch`` is called.
    """

    def process_element(self, value: In, context: KeyedContext[K]) -> Iterable[Out] | None:
        """
        Process one element and return the output elements; may be a generator.

        :param context: Key and timestamp of the element, valid during the call.
        """
        raise NotImplementedError

    def process_batch(self, table: Any, context: KeyedBatchContext) -> Any:
        """
        Process an Arrow table with elements of many keys.

        :param context: Distinct keys of the table and their state as columns, valid during the call.
        :return: Arrow table of output elements, or ``None``.
        """
        raise NotImplementedError

    def on_end_of_input(self, context: KeyedContext[K]) -> Iterable[Out] | None:
        """
        Return the output of a key at the end of a bounded input. Called once for each key with state.

        :param context: Current key, valid during the call.
        """
        return None


B = TypeVar("B")


class KeyedBroadcastProcessFunction(KeyedProcessFunction[K, In, Out], Generic[K, In, B, Out]):
    """
    Function with keyed state and a broadcast input, which each subtask sees before the elements of its keys.

    The context of ``process_element``, ``process_batch`` and ``on_end_of_input`` reads the broadcast states with
    ``get_broadcast_state``.
    """

    def process_broadcast_element(self, value: B, context: BroadcastContext) -> Iterable[Out] | None:
        """
        Process one element of the broadcast input, and return elements that this subtask emits; may be a generator.

        All subtasks see the same elements in the same order, and have to change the broadcast states alike.

        :param context: Broadcast states, valid during the call.
        """
        raise NotImplementedError


def as_map_function(function: MapFunction[In, Out] | Callable[[In], Out]) -> MapFunction[In, Out]:
    """
    Return a map function, wrapping a plain function.

    :raises InvalidConfigurationError: for another object, or for a class instead of an instance.
    """
    if isinstance(function, MapFunction):
        return function
    if isinstance(function, type) or not callable(function):
        raise InvalidConfigurationError(
            f"Expected a function of one element or an object of a MapFunction, found {function!r}; pass one of them."
        )
    return _PlainMapFunction(function)


class _PlainMapFunction(MapFunction[In, Out]):
    """Adapter of a plain function."""

    def __init__(self, function: Callable[[In], Out]) -> None:
        self._function = function

    def map(self, value: In) -> Out:
        return self._function(value)


class FunctionLifecycle:
    """
    Lifecycle calls of one user function: ``initialize_state``, ``open``, ``snapshot_state`` and ``close``.

    Methods that the function does not have are skipped.
    """

    def __init__(self, function: object, task_info: TaskInfo) -> None:
        self._function = function
        self._task_info = task_info
        self._runtime_context: RuntimeContext | None = None
        self._is_closed = False

    def initialize(self, context: StateInitializationContext) -> None:
        """Initialize the state of the function, end the context, and open the function."""
        try:
            if isinstance(self._function, CheckpointedFunction):
                self._function.initialize_state(context)
        finally:
            context.end()
        self._runtime_context = context.runtime_context(self._task_info)
        if isinstance(self._function, RichFunction):
            self._function.open(self._runtime_context)

    def snapshot(
        self, checkpoint: CheckpointMetaData, streams: CheckpointStreamFactory | None = None
    ) -> tuple[OperatorStateHandle, ...]:
        """
        Call ``snapshot_state`` and return the handles of raw state. The state backends take their snapshots afterwards.

        :raises CheckpointException: if the function raises; the task fails.
        """
        if not isinstance(self._function, CheckpointedFunction):
            return ()
        context = StateSnapshotContext(checkpoint, streams)
        try:
            self._function.snapshot_state(context)
            return context.close_raw_state()
        except Exception as error:
            raise CheckpointException(CheckpointFailureReason.TASK_CHECKPOINT_FAILURE, error) from error
        finally:
            context.end()

    def close(self) -> None:
        """Close the function once, even if it was never opened."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if isinstance(self._function, RichFunction):
                self._function.close()
        finally:
            if self._runtime_context is not None:
                self._runtime_context.end()


def end_of_subtask(function: object) -> list[Any]:
    """Return the elements that a function emits at the end of the input of its subtask; none without ``end_input``."""
    return list(function.end_input() or ()) if isinstance(function, BoundedOneInput) else []


def _defines(function: KeyedProcessFunction[Any, Any, Any], method: str) -> bool:
    """Return whether a function overrides a method, in its class or on the instance."""
    found = getattr(function, method)
    return getattr(found, "__func__", found) is not getattr(KeyedProcessFunction, method)


def processes_batches(function: KeyedProcessFunction[Any, Any, Any]) -> bool:
    """Return whether the function defines ``process_batch``."""
    return _defines(function, "process_batch")


def wants_end_of_input(function: KeyedProcessFunction[Any, Any, Any]) -> bool:
    """Return whether the function defines ``on_end_of_input``."""
    return _defines(function, "on_end_of_input")


def require_keyed_process_function(function: object) -> None:
    """
    Require a function that processes elements or batches.

    :raises InvalidConfigurationError: for another object, a class, or a function without a process method, or with a
        broadcast input that it does not process.
    """
    if not isinstance(function, KeyedProcessFunction):
        raise InvalidConfigurationError(
            f"Expected an object of a KeyedProcessFunction, found {function!r}; pass an instance."
        )
    if not (_defines(function, "process_element") or processes_batches(function)):
        raise InvalidConfigurationError(
            f"Expected {type(function).__name__} to define process_element or process_batch, found neither of them; "
            "define one."
        )
    process = getattr(function, "process_broadcast_element", None)
    if getattr(process, "__func__", process) is KeyedBroadcastProcessFunction.process_broadcast_element:
        raise InvalidConfigurationError(
            f"Expected {type(function).__name__} to define process_broadcast_element, found no such method; define "
            "it, or use a KeyedProcessFunction."
        )
