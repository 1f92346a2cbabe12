"""Which files of a table are of which commit of a sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.iceberg.ledger import TableCommit
from airflow_provider_statecheck.spark.sinks.iceberg.ledger_branch import branch_of

_PREFIX = "statecheck-"


def data_file_name(lineage: str, epoch: int, subtask: int, key: str) -> str:
    """
    Return the name of a data file, without that of its format.

    :param key: 32 hex characters that nobody else uses.
    """
    return f"{_PREFIX}{lineage}-e{epoch}-{subtask}-{key}"


def files_of(table: Any, lineage: str, commits: Sequence[TableCommit], shown: str) -> list[Any]:
    """
    Return the data files that commits have added, and nobody else's.

    :raises CorruptStateError: if they are not all there: somebody has written their rows anew, or deleted them.
    """
    wanted = {commit.snapshot_id for commit in commits}
    found = [file for snapshot_id, file in _entries(table) if snapshot_id in wanted and _is_of(file, lineage)]
    expected = sum(commit.files for commit in commits)
    if len(found) != expected:
        raise CorruptStateError(
            f"Expected {expected} files of {len(commits)} checkpoint(s) in the Iceberg table {shown}, which have to be taken out, "
            f"found {len(found)}: somebody has rewritten or deleted them, as compaction does. Delete the rows of this stage "
            f"from the table, drop the branch {branch_of(lineage)} and start over.",
            checkpoint_id=commits[0].checkpoint_id,
        )
    return found


def _entries(table: Any) -> Iterator[tuple[int | None, Any]]:
    from pyiceberg.manifest import ManifestContent

    snapshot = table.metadata.snapshot_by_name("main")
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.snapshot_id, entry.data_file


def _is_of(file: Any, lineage: str) -> bool:
    # No bug of ours may cost the files of others in the table.
    return str(file.file_path).rpartition("/")[2].startswith(f"{_PREFIX}{lineage}-")
