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


def require_writable(schema: Any) -> None:
    """
    Refuse a schema that Parquet has no place for.

    :raises UnsupportedStateError: Says what Parquet says.
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
            f"Parquet cannot hold the output: {error}; convert the column in the stage."
        ) from error


def differences(before: Any, after: Any) -> list[str]:
    """Return what changed from one schema to a later one, but for new columns that may be null."""
    found = [f"column {name!r} is gone" for name in before.names if after.get_field_index(name) < 0]
    for field in after:
        if before.get_field_index(field.name) < 0:
            found += [] if field.nullable else [f"column {field.name!r} is new and may not be null"]
        else:
            found += _changes(before.field(field.name), field)
    return found


def contradictions(ours: Any, theirs: Any) -> list[str]:
    """Return why the files of two writers cannot be read as one table."""
    shared = [field for field in ours if theirs.get_field_index(field.name) >= 0]
    return [
        f"column {field.name!r} is {theirs.field(field.name).type} there and {field.type} here"
        for field in shared
        if theirs.field(field.name).type != field.type
    ] or ([] if shared else ["no column has a name in common"])


def _changes(before: Any, after: Any) -> list[str]:
    if before.type != after.type:
        return [f"column {after.name!r} was {before.type} and is {after.type}"]
    if after.nullable and not before.nullable:
        return [f"column {after.name!r} could not be null and now may be"]
    return []


log = logging.getLogger(__name__)

# Each one fits the others, so a few of many tell.
_OTHERS_LOOKED_AT = 16


def require_directory(files: TargetFiles) -> None:
    """
    Refuse a target that is a file.

    :raises EnvironmentNotReadyError: if it is one.
    """
    storage = files.storage
    if storage.exists(storage.base_uri) and not storage.is_directory(storage.base_uri):
        raise EnvironmentNotReadyError(
            f"Expected a directory or nothing at {files.target}, found a file; name another target, or move the file away."
        )


def refuse_earlier_output(files: TargetFiles, ledger: Ledger) -> None:
    """
    Refuse to start over beside output of earlier starts.

    :raises EnvironmentNotReadyError: if there is some.
    """
    there = [record for record in ledger.commits.values() if record.files]
    if there:
        rows = sum(file.rows for record in there for file in record.files)
        raise EnvironmentNotReadyError(
            f"Expected no output of earlier starts of {there[0].uid!r} of job {there[0].job_name!r} in {files.target}, found "
            f"{rows} rows of {len(there)} checkpoint(s); choose another target, restore from checkpoint "
            f"{max(there, key=lambda record: record.order).checkpoint_id}, or let on_earlier_output='retract' replace them."
        )


def require_committed_by_others(files: TargetFiles, committables: Iterable[Committable]) -> None:
    """
    Refuse to begin at a savepoint of another job that has not committed its output.

    :param committables: What the savepoint has of other lineages; they alone may publish it.
    :raises IncompatibleCheckpointError: if some of it is not in the target.
    """
    staged: dict[str, set[str]] = {}
    for task in committables:
        staged.setdefault(task.lineage, set()).update(file.staged for file in task.files)
    for lineage, names in staged.items():
        theirs = Ledger.load(TargetFiles(files.storage, lineage))
        if not theirs.starts:
            log.warning(
                "The savepoint is of a job that writes elsewhere; what it had not committed is left to that job"
            )
            continue
        known = {name for r in (*theirs.commits.values(), *theirs.retracted.values()) for name in r.staged}
        if names - known:
            raise IncompatibleCheckpointError(
                f"Expected all output of the savepoint to be committed in {files.target}, found {len(names - known)} file(s) "
                f"that lineage {lineage} has staged only: the job that took the savepoint ended before their commit. Let "
                "that job go on until it succeeds, or take another savepoint of it."
            )


def require_fitting(
    files: TargetFiles, names: Iterable[str], ledger: Ledger, schema: Any, partition_by: tuple[str, ...]
) -> None:
    """
    Refuse a schema that does not fit what is in the target.

    :param names: All files below the target.
    :param schema: What will be written; ``None`` if it is not known yet.
    :raises UnsupportedStateError: Says in what it differs.
    """
    if schema is None:
        return
    require_writable(schema)
    require_partitionable(schema, partition_by)
    latest = ledger.latest_schema
    if latest is not None:
        _require_same_table(files, latest, schema, partition_by)
    names = sorted(names)
    for other in _others(files, names):
        _require_one_table(
            files, decode_schema(other.schema), schema, f"job {other.job_name!r}", other.partition_by, partition_by
        )
    _require_fitting_stranger(files, names, schema, partition_by)


def agreed_schema(files: TargetFiles, ledger: Ledger, committables: Sequence[Committable], expected: Any) -> str:
    """
    Return the schema that all tasks of a checkpoint wrote.

    :param expected: What should be written; ``None`` if it is not known.
    :return: As text; that of earlier checkpoints, or the expected one, if no task tells one.
    :raises UnsupportedStateError: if it differs from what earlier checkpoints wrote.
    """
    latest = ledger.latest_schema
    before = latest.schema if latest else ""
    for text in {task.schema for task in committables} - {before}:
        if before:
            _require_unchanged(files, decode_schema(before), decode_schema(text))
        before = text
    return before if before or expected is None else encode_schema(expected)


def _require_same_table(files: TargetFiles, latest: CommitRecord, schema: Any, partition_by: tuple[str, ...]) -> None:
    _require_unchanged(files, decode_schema(latest.schema), schema)
    if latest.partition_by != partition_by:
        raise _misfit(files, "what this sink wrote before", [_partitions_differ(latest.partition_by, partition_by)])


def _require_unchanged(files: TargetFiles, before: Any, after: Any) -> None:
    found = differences(before, after)
    if found:
        raise _misfit(files, "what this sink wrote before", found)


def _require_one_table(
    files: TargetFiles,
    theirs: Any,
    ours: Any,
    whose: str,
    their_partitions: Sequence[str],
    our_partitions: Sequence[str],
) -> None:
    found = contradictions(ours, theirs)
    if tuple(their_partitions) != tuple(our_partitions):
        found.append(_partitions_differ(their_partitions, our_partitions))
    if found:
        raise _misfit(files, f"what {whose} wrote there", found)


def _others(files: TargetFiles, names: Iterable[str]) -> list[CommitRecord]:
    newest: dict[str, str] = {}
    for name in names:
        parts = name.split("/")
        if len(parts) == 4 and parts[0] == LEDGER_DIRECTORY and parts[2] == COMMITS and parts[1] != files.lineage:
            newest[parts[1]] = name
    looked_at = list(newest.values())[-_OTHERS_LOOKED_AT:]
    found = in_parallel(lambda name: _record(files, name), looked_at, is_local=files.is_local)
    return [record for record in found if record is not None and record.schema]


def _record(files: TargetFiles, name: str) -> CommitRecord | None:
    try:
        return CommitRecord.decode(files.read(name), f"{files.target}/{name}")
    except CheckpointNotFoundError:
        return None  # the other one retracts it at this moment


def _require_fitting_stranger(
    files: TargetFiles, names: Iterable[str], schema: Any, partition_by: tuple[str, ...]
) -> None:
    strangers = (n for n in names if n.endswith(".parquet") and not is_hidden(n) and lineage_of_file(n) is None)
    name = next(strangers, None)
    if name is None:
        return
    import pyarrow as pa

    ours = pa.schema([field for field in schema if field.name not in partition_by])
    theirs = tuple(part.partition("=")[0] for part in name.split("/")[:-1] if "=" in part)
    _require_one_table(files, _schema_of(files, name), ours, f"somebody else, {name},", theirs, partition_by)


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
        raise _misfit(files, f"the file {name}", ["it is no Parquet file"])
    return found


def _partitions_differ(theirs: Sequence[str], ours: Sequence[str]) -> str:
    return f"it is partitioned by {', '.join(theirs) or 'nothing'} there and by {', '.join(ours) or 'nothing'} here"


def _misfit(files: TargetFiles, what: str, found: Sequence[str]) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Expected output for {files.target} that fits {what}, found: {'; '.join(found)}. Only new columns that may be null can "
        "be added; convert the output in the stage, or choose another target.",
        differences=list(found),
    )
