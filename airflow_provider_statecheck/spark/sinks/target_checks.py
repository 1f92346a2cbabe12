"""Checks of a target before a sink writes to it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sinks.data_files import require_partitionable
from airflow_provider_statecheck.spark.sinks.ledger import COMMITS, CommitRecord, Ledger, in_parallel
from airflow_provider_statecheck.spark.sinks.sink import Committable, decode_schema, encode_schema
from airflow_provider_statecheck.spark.sinks.target_files import (
    LEDGER_DIRECTORY,
    TargetFiles,
    is_hidden,
    lineage_of_file,
)

log = logging.getLogger(__name__)
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

    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated or not schema.names:
        raise UnsupportedStateError(
            f"Expected columns with different names for a Parquet sink, found {', '.join(repeated) or 'none'} "
            f"{'more than once' if repeated else 'at all'}; rename them."
        )
    try:
        pq.write_table(schema.empty_table(), io.BytesIO())
    except (pa.ArrowException, NotImplementedError) as error:
        raise UnsupportedStateError(
            f"Expected output that Parquet can store, found: {error}; convert the column in the stage."
        ) from error


def require_fitting(
    files: TargetFiles, names: Iterable[str], ledger: Ledger, schema: Any, partition_by: tuple[str, ...]
) -> None:
    """
    Require a schema that is compatible with the files in the target.

    :param names: Names of all files below the target.
    :param schema: Arrow schema of the output; ``None`` if it is not known yet.
    :raises UnsupportedStateError: if the schema is incompatible; the message lists the differences.
    """
    if schema is None:
        return
    require_writable(schema)
    require_partitionable(schema, partition_by)
    latest = ledger.latest_schema
    if latest is not None:
        _require_same_table(files, latest, schema, partition_by)
    names = sorted(names)
    for record in _newest_records_of_other_lineages(files, names):
        _require_one_table(
            files, decode_schema(record.schema), schema, f"job {record.job_name!r}", record.partition_by, partition_by
        )
    _require_fitting_foreign_files(files, names, schema, partition_by)


def agreed_schema(files: TargetFiles, ledger: Ledger, committables: Sequence[Committable], expected: Any) -> str:
    """
    Return the encoded schema that all tasks of a checkpoint wrote.

    :param expected: Arrow schema of the stage; ``None`` if it is not known.
    :return: The schema of earlier checkpoints, or the expected schema, if no task reports one.
    :raises UnsupportedStateError: if the schema is incompatible with earlier checkpoints.
    """
    latest = ledger.latest_schema
    before = latest.schema if latest else ""
    for text in {task.schema for task in committables} - {before}:
        if before:
            _require_unchanged(files, decode_schema(before), decode_schema(text))
        before = text
    return before if before or expected is None else encode_schema(expected)


def refuse_earlier_output(files: TargetFiles, ledger: Ledger) -> None:
    """
    Refuse a fresh start if the target has output of earlier starts.

    :raises EnvironmentNotReadyError: if it has such output.
    """
    committed = [record for record in ledger.commits.values() if record.files]
    if committed:
        rows = sum(file.rows for record in committed for file in record.files)
        raise EnvironmentNotReadyError(
            f"Expected no output of earlier starts of {committed[0].uid!r} of job {committed[0].job_name!r} in {files.target}, found "
            f"{rows} rows of {len(committed)} checkpoint(s); choose another target, restore from checkpoint "
            f"{max(committed, key=lambda record: record.order).checkpoint_id}, or set on_earlier_output='retract'."
        )


def require_foreign_output_committed(files: TargetFiles, committables: Iterable[Committable]) -> None:
    """
    Require that another job has committed the output of the savepoint that this job restored.

    :param committables: Committables of other lineages in the savepoint; only their own sinks may publish them.
    :raises IncompatibleCheckpointError: if some of the output is not in the target.
    """
    staged: dict[str, set[str]] = {}
    for task in committables:
        staged.setdefault(task.lineage, set()).update(file.staged for file in task.files)
    for lineage, names in staged.items():
        ledger = Ledger.load(TargetFiles(files.storage, lineage))
        if not ledger.starts:
            log.warning(
                "The savepoint belongs to a job that writes to another target; its uncommitted output is left to that job"
            )
            continue
        known = {name for r in (*ledger.commits.values(), *ledger.retracted.values()) for name in r.staged}
        if names - known:
            raise IncompatibleCheckpointError(
                f"Expected all output of the savepoint to be committed in {files.target}, found {len(names - known)} file(s) "
                f"that lineage {lineage} has only staged: the job that took the savepoint ended before their commit. Run "
                "that job until it succeeds, or take another savepoint of it."
            )


def schema_changes(before: Any, after: Any) -> list[str]:
    """Return the incompatible changes between two schemas; new nullable columns are compatible."""
    found = [f"column {name!r} is gone" for name in before.names if after.get_field_index(name) < 0]
    for field in after:
        if before.get_field_index(field.name) < 0:
            found += [] if field.nullable else [f"column {field.name!r} is new and not nullable"]
        else:
            found += _column_changes(before.field(field.name), field)
    return found


def conflicts(ours: Any, theirs: Any) -> list[str]:
    """Return the reasons why the files of two writers cannot be read as one table."""
    shared = [field for field in ours if theirs.get_field_index(field.name) >= 0]
    return [
        f"column {field.name!r} is {theirs.field(field.name).type} there and {field.type} here"
        for field in shared
        if theirs.field(field.name).type != field.type
    ] or ([] if shared else ["no column has a name in common"])


def _column_changes(before: Any, after: Any) -> list[str]:
    if before.type != after.type:
        return [f"column {after.name!r} was {before.type} and is {after.type}"]
    if after.nullable and not before.nullable:
        return [f"column {after.name!r} was not nullable and is now"]
    return []


def _require_same_table(files: TargetFiles, latest: CommitRecord, schema: Any, partition_by: tuple[str, ...]) -> None:
    _require_unchanged(files, decode_schema(latest.schema), schema)
    if latest.partition_by != partition_by:
        raise _misfit_error(
            files, "the earlier output of this sink", [_partition_difference(latest.partition_by, partition_by)]
        )


def _require_unchanged(files: TargetFiles, before: Any, after: Any) -> None:
    found = schema_changes(before, after)
    if found:
        raise _misfit_error(files, "the earlier output of this sink", found)


def _require_one_table(
    files: TargetFiles,
    theirs: Any,
    ours: Any,
    writer: str,
    their_partitions: Sequence[str],
    our_partitions: Sequence[str],
) -> None:
    found = conflicts(ours, theirs)
    if tuple(their_partitions) != tuple(our_partitions):
        found.append(_partition_difference(their_partitions, our_partitions))
    if found:
        raise _misfit_error(files, f"the output of {writer}", found)


def _newest_records_of_other_lineages(files: TargetFiles, names: Iterable[str]) -> list[CommitRecord]:
    newest: dict[str, str] = {}
    for name in names:
        parts = name.split("/")
        if len(parts) == 4 and parts[0] == LEDGER_DIRECTORY and parts[2] == COMMITS and parts[1] != files.lineage:
            newest[parts[1]] = name
    checked = list(newest.values())[-_MAX_LINEAGES_CHECKED:]
    found = in_parallel(lambda name: _record(files, name), checked, is_local=files.is_local)
    return [record for record in found if record is not None and record.schema]


def _record(files: TargetFiles, name: str) -> CommitRecord | None:
    try:
        return CommitRecord.decode(files.read(name), f"{files.target}/{name}")
    except CheckpointNotFoundError:
        return None  # retracted since the listing


def _require_fitting_foreign_files(
    files: TargetFiles, names: Iterable[str], schema: Any, partition_by: tuple[str, ...]
) -> None:
    foreign = (n for n in names if n.endswith(".parquet") and not is_hidden(n) and lineage_of_file(n) is None)
    name = next(foreign, None)
    if name is None:
        return
    import pyarrow as pa

    ours = pa.schema([field for field in schema if field.name not in partition_by])
    theirs = tuple(part.partition("=")[0] for part in name.split("/")[:-1] if "=" in part)
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
