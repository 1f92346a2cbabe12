"""Declared aggregates: whole columns, no Python for single elements."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

from typing_extensions import override

from airflow_provider_statecheck.spark.stages.executor.columns import KEY_GROUP
from airflow_provider_statecheck.spark.stages.executor.elements import Elements
from airflow_provider_statecheck.spark.stages.executor.keyed_chunk import key_columns_of
from airflow_provider_statecheck.spark.stages.executor.operator_run import OperatorRun
from airflow_provider_statecheck.spark.stages.nodes import AggregateNode
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch

STATE_NAME = "aggregates"


class AggregateRun(OperatorRun):
    """
    Adds partial results to the state of their keys.

    Elements have the columns of the key and, under the name of each aggregate, a partial result of it.
    """

    keys = 0
    """How many there were so far."""

    @override
    def open(self) -> None:
        super().open()
        self._state = self.keyed.batch_state(self._descriptor)

    def process_table(self, table: Any) -> Elements:
        """Take partial results with the key group as a column, ordered by it."""
        keys, partial = self._grouped(table)
        merged = self._merged(self._state.get(keys), partial)
        self._state.put(keys, merged)
        self.keys += len(keys)
        self.keyed.advance_to(int(keys.key_groups[-1].as_py()) + 1)
        return self._given(keys, merged) if self._node.emits_changes else self._nothing()

    @override
    def end(self) -> Iterator[Elements]:
        if self._node.emits_changes:
            return
        for keys, values in scan_values(self.keyed, self._descriptor, self._state):
            yield self._given(keys, values)

    def _grouped(self, table: Any) -> tuple[KeyBatch, dict[str, Any]]:
        by = [KEY_GROUP, *self._key_columns]
        for name, column in zip(self._key_columns, key_columns_of(table, self.keyed.key_serializer), strict=True):
            table = table.set_column(table.column_names.index(name), name, column)
        wanted = [(name, aggregate.combine) for name, aggregate in self._node.aggregates.items()]
        grouped = table.group_by(by, use_threads=False).aggregate(wanted)
        # The order of groups is not that of their first elements where hashes meet.
        grouped = grouped.sort_by(KEY_GROUP).combine_chunks()
        columns = [grouped.column(name).combine_chunks() for name in by]
        values = {name: grouped.column(f"{name}_{combine}").combine_chunks() for name, combine in wanted}
        return KeyBatch(columns[0], tuple(columns[1:])), values

    def _merged(self, old: Any, partial: dict[str, Any]) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        combine = {
            "sum": lambda a, b: pc.coalesce(pc.add(a, b), a, b),
            "max": pc.max_element_wise,
            "min": pc.min_element_wise,
        }
        fields = list(self._value_type)
        parts = [pc.struct_field(old, field.name) for field in fields]
        merged = [
            combine[self._node.aggregates[field.name].combine](part, partial[field.name].cast(field.type)).cast(
                field.type
            )
            for field, part in zip(fields, parts, strict=True)
        ]
        return pa.StructArray.from_arrays(merged, fields=fields)

    def _given(self, keys: KeyBatch, values: Any) -> Elements:
        import pyarrow as pa

        schema = self.task.output_schema
        columns = [*keys.columns, *values.flatten()]
        arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
        return Elements(schema, table=pa.Table.from_arrays(arrays, schema=schema))

    def _nothing(self) -> Elements:
        return Elements(self.task.output_schema, table=self.task.output_schema.empty_table())

    @property
    def _node(self) -> AggregateNode:
        return cast("AggregateNode", self.task.node)

    @cached_property
    def _key_columns(self) -> list[str]:
        return [field.name for field in self.keyed.key_serializer.fields]

    @cached_property
    def _value_type(self) -> Any:
        import pyarrow as pa

        return pa.struct([self.task.output_schema.field(name) for name in self._node.aggregates])

    @cached_property
    def _descriptor(self) -> ValueStateDescriptor[Any]:
        return ValueStateDescriptor(STATE_NAME, self._value_type)


def scan_values(backend: Any, descriptor: Any, state: Any) -> Iterator[tuple[KeyBatch, Any]]:
    """Return all keys that have a value of a state, with the values, some at a time."""
    import pyarrow as pa

    scan = getattr(backend, "scan", None)
    if scan is not None:
        for table in scan(descriptor):
            columns = [column.combine_chunks() for column in table.columns]
            yield KeyBatch(columns[0], tuple(columns[1:-1])), columns[-1]
        return
    serializer, groups = backend.key_serializer, backend.number_of_key_groups
    by_group: dict[int, list[Any]] = {}
    for key in backend.get_keys(descriptor.name):
        by_group.setdefault(serializer.key_group_of(key, groups), []).append(key)
    for group, keys in sorted(by_group.items()):
        batch = KeyBatch(pa.array([group] * len(keys), pa.int32()), serializer.to_columns(keys))
        yield batch, state.get(batch)
