"""Functions that have state of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod

from airflow_provider_statecheck.state.functions.initialization_context import FunctionInitializationContext
from airflow_provider_statecheck.state.functions.snapshot_context import FunctionSnapshotContext


class CheckpointedFunction(ABC):
    """Gets its state before it is opened, and a last word on it before each checkpoint."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """
        Ask for state; called once, before ``open``.

        :param context: The stores of state, and whether they were restored; of no use after the call.
        """

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """
        Bring the state up to date; whatever is in it after the call is in the checkpoint.

        :param context: Which checkpoint it is; of no use after the call.
        """
