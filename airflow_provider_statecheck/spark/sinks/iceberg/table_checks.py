"""Checks of an Iceberg table before a sink writes to it."""

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
from airflow_provider_statecheck.spark.sinks.target_files import missing_file_cause
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES

log = logging.getLogger(__name__)

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


def refuse_earlier_output(ledger: TableLedger, shown: str) -> None:
    """
    Refuse a fresh start if the table has output of earlier starts.

    :raises EnvironmentNotReadyError: if it has such output.
    """
    if ledger.commits and ledger.newest:
        rows = sum(commit.rows for commit in ledger.commits)
        raise EnvironmentNotReadyError(
            f"Expected no output of earlier starts of {ledger.uid!r} of job {ledger.job_name!r} in the Iceberg table {shown}, "
            f"found {rows} rows of {len(ledger.commits)} checkpoint(s); restore from checkpoint "
            f"{ledger.newest.checkpoint_id}, or set on_earlier_output='retract'."
        )


def warn_if_unknown(ledger: TableLedger, start: Start, shown: str) -> None:
    """Log a warning if the ledger has no record of the attempt that took the restored checkpoint."""
    if start.restored is not None and start.taken_by is not None and start.taken_by not in ledger.starts:
        log.warning(
            "The Iceberg table %s does not know attempt %s, which took the restored checkpoint %s: the sink is new in this "
            "table, or the table was recreated and lacks all earlier output",
            shown,
            start.taken_by,
            start.restored,
        )


def require_opened(ledger: TableLedger, epoch: int, shown: str) -> None:
    """
    Require that the table is the one that the attempt opened.

    :raises CorruptStateError: if its ledger has no record of the attempt.
    """
    if ledger.epoch != epoch:
        raise CorruptStateError(
            f"Expected the Iceberg table {shown} that attempt {epoch} opened, found one of "
            f"{f'attempt {ledger.epoch}' if ledger.epoch else 'no attempt'}: the table was recreated, or the branch of the "
            "ledger was dropped. Run the task again; start over if the table lacks output."
        )


def require_output_of_restored(table: Any, ledger: TableLedger, ancestry: Ancestry, shown: str) -> None:
    """
    Require that the output of the restored checkpoint is still in the table.

    :param ancestry: Ancestry of the attempt.
    :raises CorruptStateError: if output was removed.
    """
    removed = sorted(checkpoint for epoch, checkpoint in ledger.retracted if ancestry.holds(epoch, checkpoint))
    newest = ledger.newest
    if removed:
        by = f" when checkpoint {newest.checkpoint_id} of attempt {newest.epoch} replaced it" if newest else ""
        raise CorruptStateError(
            f"Expected the output of checkpoint {removed[0]} in the Iceberg table {shown}, found that it was removed{by}; "
            "restore from the newest checkpoint or from one before the removed ones, or start over.",
            checkpoint_id=removed[0],
        )
    if newest is not None and ancestry.holds(*newest.order) and _was_rolled_back(table, newest.snapshot_id):
        raise CorruptStateError(
            f"Expected the output of checkpoint {newest.checkpoint_id} in the Iceberg table {shown}, found the table rolled "
            f"back to before snapshot {newest.snapshot_id}; roll it forward, or start over.",
            checkpoint_id=newest.checkpoint_id,
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


def require_foreign_output_committed(
    table: Any, shown: str, checkpoint_id: int, committables: Sequence[IcebergCommittable]
) -> None:
    """
    Require that another job has committed the output of the savepoint that this job restored.

    :param committables: Committables of other lineages in the savepoint; only their own sinks may commit them.
    :raises IncompatibleCheckpointError: if the output is not in the table.
    """
    for lineage in sorted({task.lineage for task in committables}):
        ledger = read_ledger(table, lineage)
        if ledger is None:
            log.warning(
                "The savepoint belongs to a job that writes to another table; its uncommitted output is left to that job"
            )
        elif checkpoint_id not in _known_checkpoints(ledger):
            raise IncompatibleCheckpointError(
                f"Expected all output of the savepoint to be committed to the Iceberg table {shown}, found that of checkpoint "
                f"{checkpoint_id} of {ledger.uid!r} of job {ledger.job_name!r} missing: the job ended before that commit. "
                "Run that job until it succeeds, or take another savepoint of it.",
                checkpoint_id=checkpoint_id,
            )


def _known_checkpoints(ledger: TableLedger) -> set[int]:
    return {commit.checkpoint_id for commit in ledger.commits} | {checkpoint for _, checkpoint in ledger.retracted}


def _was_rolled_back(table: Any, snapshot_id: int) -> bool:
    from pyiceberg.table.snapshots import ancestors_of

    metadata = table.metadata
    if metadata.snapshot_by_id(snapshot_id) is None:
        return False  # an expired snapshot cannot be checked, and expiry retains its live files
    return all(found.snapshot_id != snapshot_id for found in ancestors_of(metadata.snapshot_by_name("main"), metadata))
