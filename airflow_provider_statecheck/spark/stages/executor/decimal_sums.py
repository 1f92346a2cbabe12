"""
Sums of decimals in state, which can be too large for their type.

Without ANSI mode, Spark returns null for such a sum, also after further values. A sum without values is null as well,
but the next value replaces it. A flag in state tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.spark.stages.executor.elements import OVERFLOW_PREFIX
from airflow_provider_statecheck.state.combining.partial_results import within_type
from airflow_provider_statecheck.state.combining.records import too_large
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.serializers.record_serializer import RecordSerializer
from airflow_provider_statecheck.state.serializers.resolve import serializer_of

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.stages.executor.node_run import NodeTask
    from airflow_provider_statecheck.state.aggregates import AggregateSchema
    from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
    from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch

STATE_NAME = "overflows"
"""State of the keys with a sum that was too large."""


class DecimalSums:
    """
    The sums of decimals of a function.

    :param keyed: Backend of the function; it gets a state if there is such a sum.
    """

    def __init__(self, task: NodeTask, keyed: AbstractKeyedStateBackend) -> None:
        self._task = task
        fields = [pa.field(name, pa.bool_()) for name in task.decimal_sums]
        record = record_serializer(fields, task.aggregates) if fields else None
        self.descriptor = None if record is None else ValueStateDescriptor[Any](STATE_NAME, record)
        self.state = keyed.batch_state(self.descriptor) if self.descriptor else None

    def without_too_large(self, keys: KeyBatch, records: Any) -> Any:
        """Return the records of keys with null for each sum that has been too large."""
        flags = None if self.state is None else self.state.get(keys)
        if flags is None or flags.null_count == len(flags):
            return records
        columns = {field.name: pc.struct_field(records, [field.name]) for field in records.type}
        for name in self._task.decimal_sums:
            is_flagged = pc.fill_null(pc.struct_field(flags, [name]), False)
            columns[name] = pc.if_else(is_flagged, pa.scalar(None, columns[name].type), columns[name])
        return pa.StructArray.from_arrays(list(columns.values()), fields=list(records.type))

    def put_into_types(self, keys: KeyBatch, sums: MutableMapping[str, Any], partial: Mapping[str, Any]) -> None:
        """
        Put sums into their types, with null for those that are or have been too large.

        :param sums: All merged values by name.
        :param partial: Partial results, with the flags of sums that Spark has combined.
        :raises UnsupportedStateError: if a sum is too large in ANSI mode.
        """
        if self.state is None:
            return
        old, flags = self.state.get(keys), {}
        for name in self._task.decimal_sums:
            kind = self._task.output_schema.field(name).type
            sums[name], is_too_large = within_type(sums[name], kind)
            earlier = (pc.struct_field(old, [name]), partial.get(OVERFLOW_PREFIX + name))
            flags[name] = reduce(pc.or_, (pc.fill_null(e, False) for e in earlier if e is not None), is_too_large)
            sums[name] = pc.if_else(flags[name], pa.scalar(None, kind), sums[name])
        self.require_within(flags)
        self._remember(keys, flags)

    def require_within(self, flags: Mapping[str, Any]) -> None:
        """
        Refuse sums that are too large, as Spark does in ANSI mode.

        :param flags: Whether sums have been too large, by name.
        :raises UnsupportedStateError: if a flag is set in ANSI mode.
        """
        found = [name for name, each in flags.items() if pc.any(each).as_py()] if self._task.is_ansi else []
        if found:
            kinds = ", ".join(f"{name} {self._task.output_schema.field(name).type}" for name in found)
            raise too_large(f"of {self._task.uid!r}", f"larger ones of {kinds}")

    def _remember(self, keys: KeyBatch, flags: Mapping[str, Any]) -> None:
        is_any = reduce(pc.or_, flags.values())
        rows = pa.array(np.flatnonzero(is_any.to_numpy(zero_copy_only=False)))
        if len(rows):
            values = pa.StructArray.from_arrays(list(flags.values()), names=list(flags))
            cast("Any", self.state).put(keys.take(rows), values.take(rows))


def record_serializer(fields: Iterable[Any], aggregates: Iterable[AggregateSchema]) -> RecordSerializer:
    """Return the type of a state with a field for each of some aggregates, which may have had other names."""
    declared = cast("RecordSerializer", serializer_of(pa.struct(list(fields))))
    former = {each.name: each.aliases for each in aggregates}
    named = [replace(field, aliases=former.get(field.name, ())) for field in declared.fields]
    return RecordSerializer(declared.shape, named)
