"""Reading of DataFrame snapshots without Spark, as batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import DATA_DIRECTORY
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnknownStateError, UnsupportedStateError
from airflow_provider_statecheck.state.progress import describe, describe_scope
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.columns import (
    DataFrameColumn,
    as_written,
    dataframe_columns,
    only_spark_reads,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    NamedSnapshot,
    SnapshotHandle,
    named_snapshots,
)
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotManifest, read_batches, read_verified_manifest

_LISTED = 20
"""Number of snapshots that an error lists."""
# Spark marks files whose old dates or timestamps are in the Julian calendar.
_OTHER_CALENDAR = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}


def read_snapshot(
    pointer: str,
    name: str,
    *,
    scope: str | None = None,
    uid: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
) -> Any:
    """
    Return a named DataFrame snapshot of a checkpoint as a ``pyarrow.RecordBatchReader``, which reads lazily.

    The files are verified as for a restore before the first row is read, and their pages while they are read. The order of
    rows is that of the files.

    :param pointer: Directory of a checkpoint or savepoint, or its metadata file.
    :param name: Name of the snapshot.
    :param scope: Items of the loops around the snapshot, such as ``days[2026-01-01]``, or ``""`` for none; required if the
        checkpoint has the name in several scopes.
    :param uid: Uid of the stage, required for a savepoint of the whole job.
    :param columns: Names of the columns to read, by default all.
    :param storage_options: Options of the filesystem.
    :param allowed_locations: URIs of further locations that checkpoints may reference, such as ``s3://archive``.
    :raises CheckpointNotFoundError: if the checkpoint or a file of the snapshot is missing.
    :raises UnknownStateError: if the checkpoint has no such snapshot or stage; the message lists those that it has.
    :raises InvalidConfigurationError: if several scopes have the name, for an unknown column, or for several stages and no uid.
    :raises UnsupportedStateError: for a column that only Spark reads, also while reading.
    :raises CorruptStateError: if a file of the snapshot was changed, also while reading.
    :raises StorageError: if the storage fails, also while reading.
    """
    states = CheckpointStates.load(pointer, storage_options, allowed_locations).of_stage(uid)
    return SnapshotReader(states.storage, find_snapshot(states.document, name, scope), columns).record_batches()


def find_snapshot(document: CheckpointDocument, name: str, scope: str | None = None) -> NamedSnapshot:
    """
    Return a snapshot of a checkpoint.

    :param name: Name of the snapshot.
    :param scope: Items of the loops around it, or ``""`` for none; by default any.
    :raises UnknownStateError: if there is none; the message lists the snapshots. Also if parts of it are missing.
    :raises InvalidConfigurationError: if several scopes have the name; the message lists them.
    """
    named = [each for each in named_snapshots(document.snapshots) if each.name == name]
    found = [each for each in named if scope in (None, describe_scope(each.scope))]
    if not found:
        raise _unknown(document, name, scope)
    if len(found) > 1:
        scopes = _listed([repr(describe_scope(each.scope)) for each in found])
        raise InvalidConfigurationError(
            f"Expected the snapshot {name!r} in one scope, found it in {scopes}; set one as the scope."
        )
    if not found[0].is_complete:
        raise UnknownStateError(
            f"Expected all parts of the snapshot {name!r} in checkpoint {document.checkpoint_id} of job "
            f"{document.job_name!r}, found {found[0].parts} of them, because the step was not finished; read it from a later "
            f"checkpoint."
        )
    return found[0]


class SnapshotReader:
    """
    Reads the rows of a snapshot.

    :param storage: Storage of the files.
    :param snapshot: The snapshot.
    :param columns: Names of the columns to read, by default all.
    """

    def __init__(
        self, storage: CheckpointStorage, snapshot: NamedSnapshot, columns: Sequence[str] | None = None
    ) -> None:
        self._storage = storage
        self._snapshot = snapshot
        self._names = columns

    @cached_property
    def columns(self) -> tuple[DataFrameColumn, ...]:
        """
        Return the columns that are read; several columns of a DataFrame may have one name.

        :raises InvalidConfigurationError: for an unknown name.
        :raises CorruptStateError: if the snapshot was changed.
        :raises CheckpointNotFoundError: if its manifest is missing.
        """
        known = dataframe_columns(next(iter(self._manifests.values())).schema_json)
        if self._names is None:
            return known
        names = [each.name for each in known]
        for name in self._names:
            if name not in names:
                raise InvalidConfigurationError(
                    f"Expected columns of the snapshot {self._snapshot.name!r}, found {name!r}; give some of "
                    f"{', '.join(map(repr, names))}."
                )
        return tuple(each for name in dict.fromkeys(self._names) for each in known if each.name == name)

    @cached_property
    def schema(self) -> Any:
        """
        Return the Arrow schema of the rows.

        :raises UnsupportedStateError: for a column that only Spark reads.
        """
        import pyarrow as pa

        return pa.schema([(each.name, each.arrow_type) for each in self.columns])

    def batches(self, wanted: int | None = None) -> Iterator[Any]:
        """
        Yield the rows as record batches.

        :param wanted: Number of rows that the caller is going to read, by default all.
        :raises CorruptStateError: if a file was changed.
        :raises CheckpointNotFoundError: if a file is missing.
        :raises UnsupportedStateError: if a file has a column that only Spark reads.
        :raises StorageError: if the storage fails.
        """
        schema, stored = self.schema, [each.name_in_file for each in self.columns]
        for handle, manifest in self._manifests.items():
            for file in manifest.files:
                uri = f"{handle.uri}/{DATA_DIRECTORY}/{file.name}"
                batches = read_batches(self._storage, uri, file, stored, wanted)
                for batch in _only_arrow(batches, self._snapshot.name):
                    yield self._shown(batch, schema)

    def record_batches(self) -> Any:
        """Return the rows as a ``pyarrow.RecordBatchReader``; raises as :meth:`batches`, also while reading."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def _shown(self, batch: Any, schema: Any) -> Any:
        import pyarrow as pa

        if _OTHER_CALENDAR & set(batch.schema.metadata or ()):
            self._refuse_times()
        arrays = [as_written(batch.column(each.name_in_file), each) for each in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _refuse_times(self) -> None:
        for column in self.columns:
            if column.has_times:
                raise only_spark_reads(column)

    @cached_property
    def _manifests(self) -> dict[SnapshotHandle, SnapshotManifest]:
        return {handle: read_verified_manifest(self._storage, handle) for handle in self._snapshot.handles}


def _only_arrow(batches: Iterator[Any], name: str) -> Iterator[Any]:
    try:
        yield from batches
    except NotImplementedError as error:
        raise UnsupportedStateError(
            f"Expected types in the snapshot {name!r} that Arrow reads, found another: {error}; read it with "
            f"airflow_provider_statecheck.spark.state_dataframes.read_snapshot."
        ) from error


def _unknown(document: CheckpointDocument, name: str, scope: str | None) -> UnknownStateError:
    inside = f" in the scope {scope!r}" if scope is not None else ""
    found = (
        _listed([describe((each.scope, each.name)) for each in named_snapshots(document.snapshots)]) or "no snapshot"
    )
    return UnknownStateError(
        f"Expected a snapshot {name!r}{inside} in checkpoint {document.checkpoint_id} of job {document.job_name!r}, found "
        f"{found}."
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join([*names[:_LISTED], *([f"{more} more"] if more > 0 else [])])
