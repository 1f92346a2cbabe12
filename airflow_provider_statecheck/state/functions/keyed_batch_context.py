"""What a function learns of elements of many keys, and their state as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.functions.keyed_context import KeyedContext
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import StateDescriptor
    from airflow_provider_statecheck.state.keyed.batch_state import BatchState


class KeyedBatchContext(KeyedContext[Any]):
    """
    The keys of a table, each once, and their state.

    :param state_of: Gives the state of a descriptor for many keys.
    """

    __slots__ = ("_state_of", "keys")

    def __init__(self, state_of: Callable[[StateDescriptor[Any]], BatchState]) -> None:
        super().__init__()
        self._state_of = state_of
        self.keys: KeyBatch = KeyBatch((), ())
        """The distinct keys of the table."""

    def state(self, descriptor: StateDescriptor[Any]) -> BatchState:
        """
        Return a state of single values, to be read and written for many keys at once.

        :raises InvalidConfigurationError: for lists, maps and folded values.
        """
        return self._state_of(descriptor)
