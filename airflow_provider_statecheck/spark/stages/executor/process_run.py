"""Functions with keyed state."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.stages.executor.elements import Elements, rows_of, times_of
from airflow_provider_statecheck.spark.stages.executor.keyed_chunk import KeyedChunk
from airflow_provider_statecheck.spark.stages.executor.operator_run import FunctionRun
from airflow_provider_statecheck.state.functions.keyed_batch_context import KeyedBatchContext
from airflow_provider_statecheck.state.functions.keyed_context import KeyedContext
from airflow_provider_statecheck.state.functions.overrides import processes_batches, wants_end_of_input

_ELEMENTS_AT_ONCE = 10_000


class ProcessRun(FunctionRun):
    """Applies a ``KeyedProcessFunction`` to the elements of one key after the other, or to whole tables."""

    @override
    def process_keyed(self, chunk: KeyedChunk) -> Elements:
        given = self._process_batch(chunk) if processes_batches(self.function) else self._process_elements(chunk)
        self.keyed.advance_to(chunk.last_key_group + 1)
        return given

    @override
    def end(self) -> Iterator[Elements]:
        if not wants_end_of_input(self.function):
            return
        given: list[Any] = []
        context: KeyedContext[Any] = KeyedContext()
        for key in self._keys_with_state():
            self.keyed.set_current_key(key)
            context.begin(key)
            given.extend(self.function.on_end_of_input(context) or ())
            if len(given) >= _ELEMENTS_AT_ONCE:
                yield self._given(given)
                given = []
        context.end()
        self.keyed.unset_current_key()
        yield self._given(given)

    def _process_elements(self, chunk: KeyedChunk) -> Elements:
        backend, function = self.keyed, self.function.process_element
        self._prefetch(chunk)
        context: KeyedContext[Any] = KeyedContext()
        rows, times = rows_of(chunk.table), times_of(chunk.table, self.task.time_column)
        given: list[Any] = []
        for key, group, start, end in chunk.spans(backend.key_serializer):
            backend.set_current_key(key, group)
            context.begin(key)
            for position in range(start, end):
                if times is not None:
                    context.begin(key, times[position])
                emitted = function(rows[position], context)
                if emitted is not None:
                    given.extend(emitted)
        context.end()
        backend.unset_current_key()
        return self._given(given)

    def _process_batch(self, chunk: KeyedChunk) -> Elements:
        self._batch_context.keys = chunk.keys
        self._batch_context.begin_batch()
        try:
            table = self.function.process_batch(chunk.table, self._batch_context)
        finally:
            self._batch_context.end()
        if table is None or self.task.output_schema is None:
            return self._given([])
        return Elements(self.task.output_schema, table=self._require_output(table))

    def _require_output(self, table: Any) -> Any:
        import pyarrow as pa

        try:
            return table.select(self.task.output_schema.names).cast(self.task.output_schema)
        except (KeyError, pa.ArrowException) as error:
            raise InvalidConfigurationError(
                f"Expected process_batch of {self.task.uid!r} to give the columns {self.task.output_schema.names}, found "
                f"{table.schema.names}: {error}."
            ) from error

    def _prefetch(self, chunk: KeyedChunk) -> None:
        # Backends that read from storage get what a chunk touches in one go.
        prefetch = getattr(self.keyed, "prefetch", None)
        if prefetch is not None:
            prefetch(chunk.keys)

    def _keys_with_state(self) -> Iterator[Any]:
        seen: set[Any] = set()
        names = [state.name for state in self.keyed.registered_states()]
        for name in names:
            for key in self.keyed.get_keys(name):
                if len(names) == 1:
                    yield key
                elif key not in seen:
                    seen.add(key)
                    yield key

    def _given(self, values: list[Any]) -> Elements:
        return Elements(self.task.output_schema, values=values)

    @cached_property
    def _batch_context(self) -> KeyedBatchContext:
        return KeyedBatchContext(self.keyed.batch_state)
