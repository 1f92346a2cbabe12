"""
Rows of an Iceberg table by partition.

PyIceberg compares the rows with the value of each partition: it loses those with not-a-number, which equals nothing,
and writes those with 0.0 and -0.0, which are equal, twice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from airflow_provider_statecheck.exceptions import UnfitOutputError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.limits import MAX_NAME_BYTES
from airflow_provider_statecheck.spark.connectors.sink import ROW, numbered


def partitions_of(metadata: Any, table: Any) -> Iterator[tuple[Any, Any]]:
    """
    Split rows by the current partitions of a table.

    :param metadata: Metadata of the Iceberg table.
    :param table: Arrow table with the columns of the Iceberg table.
    :return: Pairs of the partition key of PyIceberg, ``None`` without partitions, and an Arrow table of its rows.
    """
    spec = metadata.spec()
    if spec.is_unpartitioned():
        yield None, table
        return
    values = pa.table(dict(_partition_values(metadata, table)))
    grouped = numbered(values).group_by(values.column_names, use_threads=False).aggregate([(ROW, "list")])
    for number in range(grouped.num_rows):
        found = [grouped.column(name)[number].as_py() for name in values.column_names]
        yield _key_of(metadata, found), table.take(grouped.column(f"{ROW}_list")[number].values)


def require_nameable(key: Any, shown: str) -> None:
    """
    Require a partition in whose directories a disk can have files.

    :param key: Partition key of PyIceberg; ``None`` without partitions.
    :param shown: The table, for the error message.
    :raises UnfitOutputError: if the name of a directory is too long.
    """
    names = [] if key is None else key.to_path().split("/")
    fields = () if key is None else key.partition_spec.fields
    long = [field.name for field, name in zip(fields, names, strict=True) if len(name.encode()) > MAX_NAME_BYTES]
    if long:
        raise UnfitOutputError(
            f"Expected partitions of the Iceberg table {shown} with names of directories of at most {MAX_NAME_BYTES} "
            f"bytes, found longer ones of {', '.join(long)}; shorten the values in the stage, filter their rows out, "
            "or partition by another column."
        )


def _partition_values(metadata: Any, table: Any) -> Iterator[tuple[str, Any]]:
    from pyiceberg.io.pyarrow import _get_field_from_arrow_table

    schema = metadata.schema()
    for position, field in enumerate(metadata.spec().fields):
        column = _get_field_from_arrow_table(table, schema.find_column_name(field.source_id))
        transform = field.transform.pyarrow_transform(schema.find_field(field.source_id).field_type)
        yield f"partition_{position}", transform(column)


def _key_of(metadata: Any, values: list[Any]) -> Any:
    from pyiceberg.partitioning import PartitionFieldValue

    spec = metadata.spec()
    found = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, values, strict=True)]
    return _key_class()(field_values=found, partition_spec=spec, schema=metadata.schema())


@functools.cache
def _key_class() -> Any:
    from pyiceberg.partitioning import PartitionKey, partition_record_value
    from pyiceberg.typedef import Record

    class AnyPartitionKey(PartitionKey):
        """A partition key whose fields may have one column in common."""

        @property
        @override
        def partition(self) -> Any:
            return Record(*(partition_record_value(each.field, each.value, self.schema) for each in self.field_values))

    return AnyPartitionKey
