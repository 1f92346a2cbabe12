"""Sink for Iceberg tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from airflow_provider_statecheck.checkpoint.codec import require_count
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.committing_sink import CommittingSink
from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place
from airflow_provider_statecheck.spark.connectors.iceberg.destination import IcebergDestination
from airflow_provider_statecheck.spark.connectors.iceberg.table import (
    OpenTable,
    TableAddress,
    TaskTable,
    required_fields,
)
from airflow_provider_statecheck.spark.connectors.iceberg.writer import (
    IcebergCommittable,
    IcebergSinkWriter,
    WriterTarget,
    conversion_differences,
    has_marks,
    require_keys,
)
from airflow_provider_statecheck.spark.connectors.sink import (
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    unique_names,
)
from airflow_provider_statecheck.spark.tables.column_types import require_stored
from airflow_provider_statecheck.spark.tables.schemas import with_required

_DEFAULT_BUFFER_BYTES = 128 * 1024 * 1024
_KIND = "iceberg"
"""Kind of the place."""


class IcebergSink(CommittingSink):
    """
    Adds the output of each checkpoint to an Iceberg table in one snapshot, when the checkpoint is complete.

    Several sinks of one or more stages may write to a table, concurrently with other writers; without ``upsert_by``,
    each changes only its own files. The table must exist, and it determines the columns, the partitions and the file
    properties.

    :param table: Identifier of the table, such as ``sales.orders``.
    :param catalog: Name of the catalog; by default the one that is configured for pyiceberg.
    :param properties: Properties of the pyiceberg catalog and of the table's storage, such as ``uri``; may contain
        credentials.
    :param upsert_by: Key columns for upserts; without them the sink appends rows. The driver rewrites the files that
        contain keys of a checkpoint.
    :param buffer_bytes: Size in bytes of the rows that a task buffers before it writes one file per partition, by
        default 128 MiB.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` removes it with the
        first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    _committable: ClassVar[type[IcebergCommittable]] = IcebergCommittable

    def __init__(
        self,
        table: str,
        *,
        catalog: str | None = None,
        properties: Mapping[str, Any] | None = None,
        upsert_by: Sequence[str] = (),
        buffer_bytes: int = _DEFAULT_BUFFER_BYTES,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        self.table = table
        self._address: TableAddress | None = TableAddress(table, catalog, properties)
        self._upsert_by = unique_names("upsert_by", upsert_by)
        self._buffer_bytes = require_count("buffer_bytes", buffer_bytes)
        self._target: WriterTarget | None = None
        self._opened: OpenTable | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks write; only the driver needs the catalog and its credentials.
        address = self._address if self._target is None else None
        return {**super().__getstate__(), "_opened": None, "_address": address}

    @override
    def open(self, context: SinkContext) -> None:
        self._release()
        try:
            super().open(context)
        except BaseException:
            self._release()
            raise

    def writer(self, context: SinkTaskContext) -> IcebergSinkWriter:
        """Return the writer of one Spark task."""
        return IcebergSinkWriter(self._require_opened(self._target), context)

    @override
    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        super().commit(checkpoint_id, committables)
        # Vended credentials for the storage expire, often after an hour.
        if self._opened is not None and self._target is not None:
            self._update_target(self._opened, self._target.lineage)

    @override
    def close(self, succeeded: bool) -> None:
        try:
            super().close(succeeded)
        finally:
            self._release()

    @override
    def at(self, place: Place) -> Self | None:
        if self._address is None or place.kind != _KIND:
            return None
        former = self._copy()
        former.table, former._address = place.address, self._address.of_table(place.address)
        former._target = former._opened = None
        return former

    @override
    def _place(self, context: SinkContext) -> Place:
        if self._address is None:
            raise self._copy_error()
        return Place(kind=_KIND, address=self.table, store=self._address.shown_catalog)

    @override
    def _destination(self, context: SinkContext) -> IcebergDestination:
        if self._address is None:
            raise self._copy_error()
        require_stored(context.schema, "an Iceberg table")
        self._opened = table = OpenTable(self._address)
        loaded = table.load()
        with table.redacted_failures():
            self._require_fitting(loaded, context.schema, table.name)
            self.can_retract = not self._upsert_by or has_marks(loaded)
        self._update_target(table, context.lineage)
        return IcebergDestination(
            table=table,
            context=context,
            upsert_by=self._upsert_by,
            marks_rows=bool(self._upsert_by) and self.can_retract,
        )

    def _require_fitting(self, loaded: Any, schema: Any, name: str) -> None:
        _require_writable_table(loaded, name)
        _require_partitionable(loaded, name)
        _require_fitting_columns(loaded, schema, name)
        if self._upsert_by:
            require_keys(loaded, self._upsert_by, schema, name)
            _require_no_equality_deletes(loaded, name)

    def _update_target(self, table: OpenTable, lineage: str) -> None:
        with table.redacted_failures():
            self._target = WriterTarget(
                table=TaskTable.of(table.latest, table.name),
                lineage=lineage,
                buffer_bytes=self._buffer_bytes,
                upsert_by=self._upsert_by,
            )

    def _release(self) -> None:
        self._committer = None
        table, self._opened = self._opened, None
        if table is not None:
            table.close()


_TABLE_FORMAT = 2


def _require_writable_table(table: Any, shown: str) -> None:
    if table.metadata.format_version != _TABLE_FORMAT:
        raise UnsupportedStateError(
            f"Expected the Iceberg table {shown} in format {_TABLE_FORMAT}, found {table.metadata.format_version}; "
            "create the table with the property format-version = 2, or upgrade it."
        )
    written = table.metadata.properties.get("write.format.default", "parquet")
    if written.lower() != "parquet":
        raise UnsupportedStateError(
            f"Expected the Iceberg table {shown} to be written as Parquet, found {written!r}; change "
            "write.format.default."
        )


def _require_partitionable(table: Any, shown: str) -> None:
    from importlib.util import find_spec

    from pyiceberg.transforms import IdentityTransform, VoidTransform

    computed = [f for f in table.spec().fields if not isinstance(f.transform, IdentityTransform | VoidTransform)]
    if computed and find_spec("pyiceberg_core") is None:
        raise EnvironmentNotReadyError(
            f"Expected the package pyiceberg-core for the partitions of the Iceberg table {shown} by "
            f"{computed[0].transform}, found none; pip install 'pyiceberg[pyiceberg-core]' on the driver and on the "
            "executors."
        )


def _require_fitting_columns(table: Any, schema: Any, shown: str) -> None:
    if schema is None:
        return
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible

    try:
        ours = with_required(schema, required_fields(table.schema()))
        _check_pyarrow_schema_compatible(table.schema(), ours, format_version=table.metadata.format_version)
    except (ValueError, TypeError) as error:
        raise _unfit(shown, str(error)) from error
    found = conversion_differences(table.metadata, ours)
    if found:
        raise _unfit(shown, "; ".join(found))


def _unfit(shown: str, differences: str) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Expected output that fits the columns of the Iceberg table {shown}, found differences:\n{differences}\n"
        "Convert the output in the stage, or alter the table."
    )


def _require_no_equality_deletes(table: Any, shown: str) -> None:
    snapshot = table.metadata.snapshot_by_name("main")
    summary = snapshot and snapshot.summary
    if summary and int(summary.get("total-equality-deletes") or 0):
        raise UnsupportedStateError(
            f"Expected no equality deletes in the Iceberg table {shown}, which an upsert cannot read, found some; "
            "rewrite its data files to apply the deletes."
        )
