"""Functions that see the elements of one key after the other, with the state of that key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from airflow_provider_statecheck.state.functions.keyed_batch_context import KeyedBatchContext
from airflow_provider_statecheck.state.functions.keyed_context import KeyedContext
from airflow_provider_statecheck.state.functions.rich_function import RichFunction

K = TypeVar("K")
In = TypeVar("In")
Out = TypeVar("Out")


class KeyedProcessFunction(RichFunction, Generic[K, In, Out]):
    """
    Gets elements in the scope of their key.

    A subclass has ``process_element`` or ``process_batch``; where it has both, batches are taken.
    """

    def process_element(self, value: In, context: KeyedContext[K]) -> Iterable[Out] | None:
        """
        Take one element and return what to emit; it may be a generator.

        :param context: The key, and the time of the element; of no use after the call.
        """
        raise NotImplementedError

    def process_batch(self, table: Any, context: KeyedBatchContext) -> Any:
        """
        Take elements of many keys as an Arrow table, and return one of what to emit, or ``None``.

        :param context: The distinct keys of the table, and their state as columns; of no use after the call.
        """
        raise NotImplementedError

    def on_end_of_input(self, context: KeyedContext[K]) -> Iterable[Out] | None:
        """
        Say what to emit for a key at the end of a bounded input; called once for each key that has state.

        :param context: The key; of no use after the call.
        """
        return None
