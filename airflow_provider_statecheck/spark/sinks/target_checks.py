"""Checks of a target before a sink writes to it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.commit_log import Publication
from airflow_provider_statecheck.spark.sinks.sink import decode_schema, require_distinct_names
from airflow_provider_statecheck.spark.sinks.target_files import (
    LEDGER_DIRECTORY,
    TargetFiles,
    is_hidden,
    lineage_of_file,
)
from airflow_provider_statecheck.spark.tables.data_files import require_partitionable
from airflow_provider_statecheck.spark.tables.schemas import conflicts, partition_names, schema_changes

# All lineages of a target have compatible schemas, therefore a sample is enough.
_MAX_LINEAGES_CHECKED = 16


def require_directory(files: TargetFiles) -> None:
    """
    Require that the target is a directory or missing.

    :raises EnvironmentNotReadyError: if the target is a file.
    """
    storage = files.storage
    if storage.exists(storage.base_uri) and not storage.is_directory(storage.base_uri):
        raise EnvironmentNotReadyError(
            f"Expected a directory or nothing at {files.target}, found a file; choose another target, or move the file away."
        )


def require_writable(schema: Any) -> None:
    """
    Require a schema that Parquet can store.

    :raises UnsupportedStateError: if the schema has duplicate columns, no columns, or an unsupported type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_distinct_names(schema.names, "a Parquet sink")
    try:
        pq.write_table(schema.empty_table(), io.BytesIO())
    except (pa.ArrowException, NotImplementedError) as error:
        raise UnsupportedStateError(
            f"Expected output that Parquet can store, found: {error}; convert the column in the stage."
        ) from error


def require_fitting(
    files: TargetFiles,
    names: Iterable[str],
    log_files: Callable[[str], CommitFiles],
    schema: Any,
    partition_by: tuple[str, ...],
) -> None:
    """
    Require a schema that is compatible with the files in the target.

    :param names: Names of all files below the target.
    :param log_files: Function that returns the files of the commit log of a lineage.
    :param schema: Arrow schema of the output; ``None`` if it is not known yet.
    :raises UnsupportedStateError: if the schema is incompatible; the message lists the differences.
    """
    if schema is None:
        return
    require_writable(schema)
    require_partitionable(schema, partition_by)
    names = sorted(names)
    for lineage in _lineages(names, files.lineage):
        logged = log_files(lineage)
        newest = logged.latest(logged.read()[0])
        if newest is None:
            continue
        if lineage == files.lineage:
            _require_same_table(files, newest, schema, partition_by)
        else:
            theirs = _partitions_of(newest)
            _require_one_table(files, _schema_in(newest), schema, newest.owner, theirs, partition_by)
    _require_fitting_foreign_files(files, names, schema, partition_by)


def require_unchanged(files: TargetFiles, before: str, after: str) -> None:
    """
    Require an encoded schema that extends that of earlier output.

    :raises UnsupportedStateError: if it does not; the message lists the differences.
    """
    found = schema_changes(decode_schema(before), decode_schema(after))
    if found:
        raise _misfit_error(files, "the earlier output of this sink", found)


def _require_same_table(files: TargetFiles, newest: Publication, schema: Any, partition_by: tuple[str, ...]) -> None:
    found = schema_changes(_schema_in(newest), schema)
    theirs = _partitions_of(newest)
    if theirs != partition_by:
        found.append(_partition_difference(theirs, partition_by))
    if found:
        raise _misfit_error(files, "the earlier output of this sink", found)


def _require_one_table(
    files: TargetFiles,
    theirs: Any,
    ours: Any,
    writer: str,
    their_partitions: tuple[str, ...],
    our_partitions: tuple[str, ...],
) -> None:
    found = conflicts(ours, theirs)
    if their_partitions != our_partitions:
        found.append(_partition_difference(their_partitions, our_partitions))
    if found:
        raise _misfit_error(files, f"the output of {writer}", found)


def _lineages(names: Iterable[str], own: str) -> list[str]:
    parts = (name.split("/") for name in names)
    found = {each[1] for each in parts if len(each) == 4 and each[0] == LEDGER_DIRECTORY and each[2] == "attempts"}
    return [*sorted(found - {own})[-_MAX_LINEAGES_CHECKED:], *(found & {own})]


def _schema_in(publication: Publication) -> Any:
    return decode_schema(publication.committables[-1].schema)


def _partitions_of(publication: Publication) -> tuple[str, ...]:
    partition_by: tuple[str, ...] = publication.committables[-1].partition_by
    return partition_by


def _require_fitting_foreign_files(
    files: TargetFiles, names: Iterable[str], schema: Any, partition_by: tuple[str, ...]
) -> None:
    foreign = (n for n in names if n.endswith(".parquet") and not is_hidden(n) and lineage_of_file(n) is None)
    name = next(foreign, None)
    if name is None:
        return
    import pyarrow as pa

    ours = pa.schema([field for field in schema if field.name not in partition_by])
    theirs = partition_names(name.rpartition("/")[0])
    _require_one_table(files, _schema_of(files, name), ours, f"another writer, {name}", theirs, partition_by)


def _schema_of(files: TargetFiles, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def read(filesystem: Any, path: str) -> Any:
        with filesystem.open(path, "rb") as file:
            try:
                return pq.read_schema(file)
            except pa.ArrowException:
                return None

    found = files.storage.call(f"{files.storage.base_uri}/{name}", read)
    if found is None:
        raise _misfit_error(files, f"the file {name}", ["it is not a Parquet file"])
    return found


def _partition_difference(theirs: Sequence[str], ours: Sequence[str]) -> str:
    return f"it is partitioned by {', '.join(theirs) or 'nothing'} there and by {', '.join(ours) or 'nothing'} here"


def _misfit_error(files: TargetFiles, expected_by: str, found: Sequence[str]) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Expected output for {files.target} that fits {expected_by}, found: {'; '.join(found)}. Only nullable columns can be added; "
        "convert the output in the stage, or choose another target.",
        schema_changes=list(found),
    )
