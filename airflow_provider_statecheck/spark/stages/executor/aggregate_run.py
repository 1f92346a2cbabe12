"""
Declared aggregates in a Spark task: partial results are added to the state of their keys.

Unless the changes are emitted, nothing is looked up: partial results are state, and reads combine them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.stages.executor.decimal_sums import DecimalSums, record_serializer
from airflow_provider_statecheck.spark.stages.executor.elements import OVERFLOW_PREFIX, Elements, key_columns_of
from airflow_provider_statecheck.spark.stages.executor.node_run import NodeRun
from airflow_provider_statecheck.spark.stages.planning import KEY_GROUP_COLUMN
from airflow_provider_statecheck.spark.stages.stage import AggregateNode
from airflow_provider_statecheck.state.combining.partial_results import combined_by_group, merged_values
from airflow_provider_statecheck.state.combining.records import WRAPPING_SUM, too_large
from airflow_provider_statecheck.state.descriptors import PartialResultsDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas

STATE_NAME = "aggregates"


class AggregateRun(NodeRun):
    """
    Adds partial results to the state of their keys.

    Input rows have the key columns and, under the name of each aggregate, its partial result. Rows that were shuffled
    also have their key group.
    """

    keys = 0
    """Number of keys in all tables."""

    @override
    def open(self) -> None:
        super().open()
        self._state = self.keyed.batch_state(self._descriptor)
        self._decimal_sums = DecimalSums(self.task, self.keyed)

    @override
    def process_keyed(self, table: Any) -> Elements:
        # The keys of a group may be in any order.
        keys, partial = self._combine_rows(table)
        adds = self.task.adds_partials
        old = pa.nulls(len(keys), self._value_type) if adds else self._state.get(keys)
        merged = self._merge(keys, old, partial)
        (self._state.add if adds else self._state.put)(keys, merged)
        self.keys += len(keys)
        self.keyed.advance_to(int(keys.key_groups[-1].as_py()) + 1)
        if self._node.emits_changes:
            return self._output(keys, merged)
        return Elements(self.task.output_schema, table=self.task.output_schema.empty_table())

    @override
    def end(self) -> Iterator[Elements]:
        if self._node.emits_changes:
            return
        self._require_sums_within_types()
        for keys, values in self.keyed.scan(self._descriptor):
            yield self._output(keys, self._decimal_sums.without_too_large(keys, values))

    @override
    def schemas(self) -> OperatorSchemas:
        return replace(super().schemas(), aggregates=self.task.aggregates)

    def _combine_rows(self, table: Any) -> tuple[KeyBatch, dict[str, Any]]:
        groups = [name for name in (KEY_GROUP_COLUMN,) if name in table.column_names]
        by = [*groups, *self._key_columns]
        for name, column in zip(self._key_columns, key_columns_of(table, self.keyed.key_serializer), strict=True):
            table = table.set_column(table.column_names.index(name), name, column)
        functions = {name: aggregate.combine for name, aggregate in self._node.aggregates.items()}
        flags = {name: "any" for name in table.column_names if name.startswith(OVERFLOW_PREFIX)}
        columns, values = combined_by_group(table, by, functions | flags, wraps=not self.task.is_ansi)
        return (KeyBatch(columns[0], tuple(columns[1:])), values) if groups else self._grouped(columns, values)

    def _grouped(self, columns: Sequence[Any], values: Mapping[str, Any]) -> tuple[KeyBatch, dict[str, Any]]:
        """Return distinct keys with their values, ordered by key group."""
        groups = self.keyed.key_serializer.key_groups_of(columns, self.context.max_parallelism)
        order = pa.array(np.argsort(groups, kind="stable"))
        keys = KeyBatch(pa.array(groups), tuple(columns)).take(order)
        return keys, {name: column.take(order) for name, column in values.items()}

    def _merge(self, keys: KeyBatch, old: Any, partial: Mapping[str, Any]) -> Any:
        fields = list(self._value_type)
        try:
            merged = {field.name: self._merge_one(field.name, old, partial) for field in fields}
        except pa.ArrowInvalid as error:
            raise too_large(f"of {self.task.uid!r}", f"a larger one: {error}") from error
        self._decimal_sums.put_into_types(keys, merged, partial)
        return pa.StructArray.from_arrays([merged[field.name].cast(field.type) for field in fields], fields=fields)

    def _merge_one(self, name: str, old: Any, partial: Mapping[str, Any]) -> Any:
        combine = self._node.aggregates[name].combine
        return merged_values(combine, pc.struct_field(old, [name]), partial[name], wraps=not self.task.is_ansi)

    def _require_sums_within_types(self) -> None:
        # Keys whose sum was too large in an earlier run without ANSI mode may have no rows in this one.
        sums = self._decimal_sums
        if self.task.is_ansi and sums.descriptor is not None:
            for _, flags in self.keyed.scan(sums.descriptor):
                sums.require_within({name: pc.struct_field(flags, [name]) for name in self.task.decimal_sums})

    def _output(self, keys: KeyBatch, values: Any) -> Elements:
        schema = self.task.output_schema
        # State keeps the order of the fields in which it was first declared.
        columns = [*keys.columns, *(pc.struct_field(values, [name]) for name in self._node.aggregates)]
        arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
        return Elements(schema, table=pa.Table.from_arrays(arrays, schema=schema))

    @property
    def _node(self) -> AggregateNode:
        return cast("AggregateNode", self.task.node)

    @cached_property
    def _key_columns(self) -> list[str]:
        return [field.name for field in self.keyed.key_serializer.fields]

    @cached_property
    def _value_type(self) -> Any:
        return pa.struct([self.task.output_schema.field(name) for name in self._node.aggregates])

    @cached_property
    def _descriptor(self) -> PartialResultsDescriptor:
        record = record_serializer(self._value_type, self.task.aggregates)
        return PartialResultsDescriptor(STATE_NAME, record, tuple(self._functions.items()))

    @property
    def _functions(self) -> dict[str, str]:
        functions = {name: aggregate.combine for name, aggregate in self._node.aggregates.items()}
        if self.task.is_ansi:
            return functions
        return {name: WRAPPING_SUM if function == "sum" else function for name, function in functions.items()}
