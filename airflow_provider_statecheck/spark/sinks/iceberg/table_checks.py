"""What must hold before a sink writes to an Iceberg table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_ledger import TableLedger, read_ledger
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_writer import IcebergCommittable
from airflow_provider_statecheck.spark.sinks.ledger import Ancestry, Start
from airflow_provider_statecheck.spark.sinks.target_files import why_gone
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES

log = logging.getLogger(__name__)

_FORMAT = 2


def require_writable_table(table: Any, shown: str) -> None:
    """
    Refuse a table to which this sink cannot add files.

    :raises UnsupportedStateError: Says why.
    """
    if table.metadata.format_version != _FORMAT:
        raise UnsupportedStateError(
            f"Expected the Iceberg table {shown} in format {_FORMAT}, found {table.metadata.format_version}; "
            "create it with the property format-version = 2, or upgrade it."
        )
    written = table.metadata.properties.get("write.format.default", "parquet")
    if written.lower() != "parquet":
        raise UnsupportedStateError(
            f"Expected the Iceberg table {shown} to be written as Parquet, found {written!r}; change write.format.default."
        )


def require_partitionable(table: Any, shown: str) -> None:
    """
    Refuse partitions that this machine cannot compute.

    :raises EnvironmentNotReadyError: if a package is missing.
    """
    from importlib.util import find_spec

    from pyiceberg.transforms import IdentityTransform, VoidTransform

    computed = [f for f in table.spec().fields if not isinstance(f.transform, IdentityTransform | VoidTransform)]
    if computed and find_spec("pyiceberg_core") is None:
        raise EnvironmentNotReadyError(
            f"The partitions of the Iceberg table {shown} by {computed[0].transform} need a package that is not installed: "
            "pip install 'pyiceberg[pyiceberg-core]', on the driver and on the executors."
        )


def require_fitting_columns(table: Any, schema: Any, shown: str) -> None:
    """
    Refuse output that does not fit the columns of the table.

    :param schema: What will be written, as Arrow knows it; ``None`` if it is not known yet.
    :raises UnsupportedStateError: Says in what it differs.
    """
    if schema is None:
        return
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible

    try:
        _check_pyarrow_schema_compatible(table.schema(), schema, format_version=table.metadata.format_version)
    except (ValueError, TypeError) as error:
        raise UnsupportedStateError(
            f"Expected output that fits the columns of the Iceberg table {shown}, found that it does not:\n{error}\n"
            "Convert the output in the stage, or change the table."
        ) from error


def refuse_earlier_output(ledger: TableLedger, shown: str) -> None:
    """
    Refuse to start over beside output of earlier starts.

    :raises EnvironmentNotReadyError: if there is some.
    """
    if ledger.commits and ledger.newest:
        rows = sum(commit.rows for commit in ledger.commits)
        raise EnvironmentNotReadyError(
            f"Expected no output of earlier starts of {ledger.uid!r} of job {ledger.job_name!r} in the Iceberg table {shown}, "
            f"found {rows} rows of {len(ledger.commits)} checkpoint(s); restore from checkpoint "
            f"{ledger.newest.checkpoint_id}, or let on_earlier_output='retract' replace them."
        )


def warn_if_unknown(ledger: TableLedger, start: Start, shown: str) -> None:
    """Tell that a table knows nothing of what an attempt goes on from."""
    if start.restored is not None and start.taken_by is not None and start.taken_by not in ledger.starts:
        log.warning(
            "The Iceberg table %s does not know attempt %s, which took the restored checkpoint %s: the sink is new here, or "
            "the table was made anew and lacks all output until then",
            shown,
            start.taken_by,
            start.restored,
        )


def require_opened(ledger: TableLedger, epoch: int, shown: str) -> None:
    """
    Refuse to commit to a table that does not know that the attempt has opened it.

    :raises CorruptStateError: if it does not.
    """
    if ledger.epoch != epoch:
        raise CorruptStateError(
            f"Expected the Iceberg table {shown} that attempt {epoch} opened, found one of "
            f"{f'attempt {ledger.epoch}' if ledger.epoch else 'no attempt'}: it was made anew, or the branch of the ledger was "
            "dropped. Run the task again; start over if the table lacks output."
        )


def require_output_of_restored(table: Any, ledger: TableLedger, line: Ancestry, shown: str) -> None:
    """
    Refuse to go on from a checkpoint whose output is no longer in the table.

    :param line: What the attempt goes on from.
    :raises CorruptStateError: if it is not.
    """
    gone = sorted(checkpoint for epoch, checkpoint in ledger.retracted if line.holds(epoch, checkpoint))
    newest = ledger.newest
    if gone:
        by = f" when checkpoint {newest.checkpoint_id} of attempt {newest.epoch} replaced it" if newest else ""
        raise CorruptStateError(
            f"Expected the output of checkpoint {gone[0]} in the Iceberg table {shown}, found that it was taken out{by}; "
            "restore from the newest checkpoint or from one before that, or start over.",
            checkpoint_id=gone[0],
        )
    if newest is not None and line.holds(*newest.order) and _was_rolled_back(table, newest.snapshot_id):
        raise CorruptStateError(
            f"Expected the output of checkpoint {newest.checkpoint_id} in the Iceberg table {shown}, found the table rolled "
            f"back to before snapshot {newest.snapshot_id}; roll it forward, or start over.",
            checkpoint_id=newest.checkpoint_id,
        )


def require_same_spec(table: Any, files: Sequence[Any], shown: str) -> None:
    """
    Refuse files that were written by other partitions than the table has now.

    :raises UnsupportedStateError: if some were.
    """
    specs = {file.spec_id for file in files} - {table.metadata.default_spec_id}
    if specs:
        raise UnsupportedStateError(
            f"Expected the partitions of the Iceberg table {shown} unchanged while output waits for its commit, found spec "
            f"{table.metadata.default_spec_id} in place of {min(specs)}; change them back until the stage has ended."
        )


def require_there(table: Any, files: Sequence[Any], checkpoint_id: int, shown: str) -> None:
    """
    Refuse to name files of a disk in a snapshot that the driver does not see there; on an object store all see the same.

    :raises CorruptStateError: if one is missing.
    """
    gone = [f.file_path for f in files if _is_local(f.file_path) and not table.io.new_input(f.file_path).exists()]
    if gone:
        raise CorruptStateError(
            f"Expected the data file {gone[0]} of checkpoint {checkpoint_id} for the Iceberg table {shown}, found none; "
            f"{why_gone(is_local=True)}",
            uri=gone[0],
            checkpoint_id=checkpoint_id,
        )


def _is_local(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return not separator or scheme in LOCAL_SCHEMES


def require_committed_by_others(
    table: Any, shown: str, checkpoint_id: int, others: Sequence[IcebergCommittable]
) -> None:
    """
    Refuse to begin at a savepoint of another job that has not committed its output.

    :param others: What the savepoint has of other lineages; they alone may commit it.
    :raises IncompatibleCheckpointError: if it is not in the table.
    """
    for lineage in sorted({task.lineage for task in others}):
        theirs = read_ledger(table, lineage)
        if theirs is None:
            log.warning(
                "The savepoint is of a job that writes elsewhere; what it had not committed is left to that job"
            )
        elif checkpoint_id not in _known(theirs):
            raise IncompatibleCheckpointError(
                f"Expected all output of the savepoint to be committed to the Iceberg table {shown}, found that of checkpoint "
                f"{checkpoint_id} of {theirs.uid!r} of job {theirs.job_name!r} missing: the job ended before that commit. "
                "Let it go on until it succeeds, or take another savepoint of it.",
                checkpoint_id=checkpoint_id,
            )


def _known(ledger: TableLedger) -> set[int]:
    return {commit.checkpoint_id for commit in ledger.commits} | {checkpoint for _, checkpoint in ledger.retracted}


def _was_rolled_back(table: Any, snapshot_id: int) -> bool:
    from pyiceberg.table.snapshots import ancestors_of

    metadata = table.metadata
    if metadata.snapshot_by_id(snapshot_id) is None:
        return False  # expired: nobody can say, and whoever expires it has kept its files
    return all(found.snapshot_id != snapshot_id for found in ancestors_of(metadata.snapshot_by_name("main"), metadata))
