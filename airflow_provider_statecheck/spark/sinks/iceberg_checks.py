"""Checks of an Iceberg table before a sink writes to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.sink import CHECKPOINT, LINEAGE
from airflow_provider_statecheck.spark.sinks.target_files import missing_file_cause
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES

_TABLE_FORMAT = 2


def require_writable_table(table: Any, shown: str) -> None:
    """
    Require a table format and a file format that the sink can write.

    :raises UnsupportedStateError: if the table has another format.
    """
    if table.metadata.format_version != _TABLE_FORMAT:
        raise UnsupportedStateError(
            f"Expected the Iceberg table {shown} in format {_TABLE_FORMAT}, found {table.metadata.format_version}; "
            "create the table with the property format-version = 2, or upgrade it."
        )
    written = table.metadata.properties.get("write.format.default", "parquet")
    if written.lower() != "parquet":
        raise UnsupportedStateError(
            f"Expected the Iceberg table {shown} to be written as Parquet, found {written!r}; change write.format.default."
        )


def require_partitionable(table: Any, shown: str) -> None:
    """
    Require the packages that compute the partitions of the table.

    :raises EnvironmentNotReadyError: if a package is missing.
    """
    from importlib.util import find_spec

    from pyiceberg.transforms import IdentityTransform, VoidTransform

    computed = [f for f in table.spec().fields if not isinstance(f.transform, IdentityTransform | VoidTransform)]
    if computed and find_spec("pyiceberg_core") is None:
        raise EnvironmentNotReadyError(
            f"Expected the package pyiceberg-core for the partitions of the Iceberg table {shown} by "
            f"{computed[0].transform}, found none; pip install 'pyiceberg[pyiceberg-core]' on the driver and on the executors."
        )


def require_fitting_columns(table: Any, schema: Any, shown: str) -> None:
    """
    Require output that is compatible with the columns of the table.

    :param schema: Arrow schema of the output; ``None`` if it is not known yet.
    :raises UnsupportedStateError: if the schema is incompatible; the message lists the differences.
    """
    if schema is None:
        return
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible

    try:
        _check_pyarrow_schema_compatible(table.schema(), schema, format_version=table.metadata.format_version)
    except (ValueError, TypeError) as error:
        raise UnsupportedStateError(
            f"Expected output that fits the columns of the Iceberg table {shown}, found differences:\n{error}\n"
            "Convert the output in the stage, or alter the table."
        ) from error


def has_marks(table: Any) -> bool:
    """Return whether the table has the columns that record the sink and the checkpoint of a row."""
    from pyiceberg.types import LongType, StringType

    types = {column.name: column.field_type for column in table.schema().fields}
    return types.get(LINEAGE) == StringType() and types.get(CHECKPOINT) == LongType()


def require_marks(table: Any, shown: str) -> None:
    """
    Require the columns that record the sink and the checkpoint of a row.

    :raises UnsupportedStateError: if they are missing.
    """
    if not has_marks(table):
        raise UnsupportedStateError(
            f"Expected the columns {LINEAGE} (string) and {CHECKPOINT} (long) in the Iceberg table {shown}, as it had them when "
            "rows were upserted, found that they were dropped; roll the table back to a snapshot and a schema with them, or "
            "delete the rows of this stage from the table, drop the branch of the ledger and start over."
        )


def require_keys(table: Any, keys: Sequence[str], schema: Any, shown: str) -> None:
    """
    Require key columns for upserts, and no output in the columns that the sink sets itself.

    :param schema: Arrow schema of the output; ``None`` if it is not known yet.
    :raises UnsupportedStateError: if a key column is missing or of an unsupported type.
    """
    known = {column.name: column.field_type for column in table.schema().fields}
    written = known if schema is None else schema.names
    wrong = [name for name in keys if name not in written or not _is_exact(known.get(name))]
    if wrong:
        raise UnsupportedStateError(
            f"Expected upsert_by to name columns of the output and of the Iceberg table {shown} with exact types, found "
            f"{', '.join(f'{name} ({known.get(name)})' for name in wrong)}; use columns of integers, decimals, text, binary, dates, "
            "times or booleans."
        )
    reserved = {LINEAGE, CHECKPOINT} & {*keys, *(schema.names if schema is not None else [])}
    if reserved:
        raise UnsupportedStateError(
            f"Expected output without the columns that the sink sets itself, found {', '.join(sorted(reserved))}; rename them."
        )


def require_no_equality_deletes(table: Any, shown: str) -> None:
    """
    Require a table whose rows pyiceberg can read.

    :raises UnsupportedStateError: if rows were deleted by equality, as its newest snapshot reports.
    """
    snapshot = table.metadata.snapshot_by_name("main")
    summary = snapshot and snapshot.summary
    if summary and int(summary.get("total-equality-deletes") or 0):
        raise UnsupportedStateError(
            f"Expected no equality deletes in the Iceberg table {shown}, which an upsert cannot read, found some; rewrite its data "
            "files to apply the deletes."
        )


def require_not_rolled_back(table: Any, snapshot_id: int, checkpoint_id: int, shown: str) -> None:
    """
    Require that a committed snapshot is still part of the table's history.

    An expired snapshot cannot be checked; the table retains its live files.

    :param checkpoint_id: Checkpoint whose output the snapshot added.
    :raises CorruptStateError: if the table was rolled back to an earlier snapshot.
    """
    from pyiceberg.table.snapshots import ancestors_of

    wanted, metadata = table.metadata.snapshot_by_id(snapshot_id), table.metadata
    if wanted is None:
        return
    ancestors = ancestors_of(metadata.snapshot_by_name("main"), metadata)
    # Expired snapshots leave gaps: only an ancestor that is not newer decides.
    older = next((each for each in ancestors if each.sequence_number <= wanted.sequence_number), wanted)
    if older.snapshot_id != snapshot_id:
        raise CorruptStateError(
            f"Expected the output of checkpoint {checkpoint_id} in the Iceberg table {shown}, found the table rolled "
            f"back to before snapshot {snapshot_id}; roll it forward, or start over.",
            checkpoint_id=checkpoint_id,
        )


def require_same_spec(table: Any, files: Sequence[Any], shown: str) -> None:
    """
    Require files that were written with the current partition spec of the table.

    :raises UnsupportedStateError: if a file has another spec.
    """
    specs = {file.spec_id for file in files} - {table.metadata.default_spec_id}
    if specs:
        raise UnsupportedStateError(
            f"Expected the partitions of the Iceberg table {shown} unchanged while output waits for its commit, found spec "
            f"{table.metadata.default_spec_id} instead of {min(specs)}; restore that spec until the stage has ended."
        )


def require_files_exist(table: Any, files: Sequence[Any], checkpoint_id: int, shown: str) -> None:
    """
    Require that the driver sees the data files before a snapshot refers to them.

    Only files on a disk are checked, because an object store is the same for the driver and the executors.

    :raises CorruptStateError: if a file is missing.
    """
    removed = [f.file_path for f in files if _is_local(f.file_path) and not table.io.new_input(f.file_path).exists()]
    if removed:
        raise CorruptStateError(
            f"Expected the data file {removed[0]} of checkpoint {checkpoint_id} for the Iceberg table {shown}, found none; "
            f"{missing_file_cause(is_local=True)}",
            uri=removed[0],
            checkpoint_id=checkpoint_id,
        )


def _is_local(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return not separator or scheme in LOCAL_SCHEMES


def _is_exact(kind: Any) -> bool:
    from pyiceberg import types

    exact = types.BooleanType | types.IntegerType | types.LongType | types.DecimalType | types.StringType
    return isinstance(kind, exact | types.BinaryType | types.DateType | types.TimestampType | types.TimestamptzType)
