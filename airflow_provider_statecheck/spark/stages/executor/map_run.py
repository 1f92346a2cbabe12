"""Functions of single elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from typing_extensions import override

from airflow_provider_statecheck.spark.stages.executor.elements import Elements, rows_of
from airflow_provider_statecheck.spark.stages.executor.keyed_chunk import KeyedChunk
from airflow_provider_statecheck.spark.stages.executor.operator_run import FunctionRun
from airflow_provider_statecheck.state.functions.flat_map_function import FlatMapFunction
from airflow_provider_statecheck.state.functions.map_function import as_map_function


class MapRun(FunctionRun):
    """Applies a ``MapFunction`` or a ``FlatMapFunction``; right behind a key it has keyed state too."""

    @override
    def process(self, elements: Elements) -> Elements:
        return self._given(self._apply(elements.rows()))

    @override
    def process_keyed(self, chunk: KeyedChunk) -> Elements:
        backend = self.keyed
        rows, given = rows_of(chunk.table), []
        for key, group, start, end in chunk.spans(backend.key_serializer):
            backend.set_current_key(key, group)
            given.extend(self._apply(rows[start:end]))
        backend.unset_current_key()
        backend.advance_to(chunk.last_key_group + 1)
        return self._given(given)

    @cached_property
    def _apply(self) -> Callable[[Iterable[Any]], list[Any]]:
        if isinstance(self.function, FlatMapFunction):
            flat_map = self.function.flat_map
            return lambda rows: [given for row in rows for given in flat_map(row)]
        function = as_map_function(self.function).map
        return lambda rows: [function(row) for row in rows]

    def _given(self, values: Sequence[Any]) -> Elements:
        return Elements(self.task.output_schema, values=values)
