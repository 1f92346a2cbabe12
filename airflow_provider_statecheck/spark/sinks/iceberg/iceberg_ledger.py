"""
Ledger of an Iceberg sink, stored on a branch of the table.

The ledger is a property of an empty snapshot. It contains the commit log, and the snapshots that added the files of the
committed checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.commits.commit_log import CommitLog, CommitRange, Publication
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_writer import is_file_of

LEDGER_PROPERTY = "statecheck.ledger"
"""Summary property of the snapshot on the branch of a lineage."""
_FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLedger:
    """An immutable version of the ledger, replaced in the same commit as the files that it records."""

    job_name: str
    uid: str
    log: CommitLog = field(default_factory=CommitLog)
    commits: tuple[TableCommit, ...] = ()
    """Commits of the checkpoints in the committed ranges of the log, in commit order."""

    def find(self, epoch: int, checkpoint_id: int) -> TableCommit | None:
        """Return the commit of a checkpoint, ``None`` if there is none."""
        return next((each for each in self.commits if (each.epoch, each.checkpoint_id) == (epoch, checkpoint_id)), None)

    def within(self, ranges: Sequence[CommitRange]) -> list[TableCommit]:
        """Return the commits of the checkpoints in ranges."""
        return [each for each in self.commits if any(each.is_within(part) for part in ranges)]

    def adding(self, commit: TableCommit | None) -> Self:
        """Return the ledger with one more commit, and without those that the log no longer contains."""
        kept = [each for each in self.commits if self.log.holds(each.epoch, each.checkpoint_id)]
        return replace(self, commits=(*kept, *([commit] if commit else [])))

    def encode(self) -> str:
        """Return the ledger as JSON."""
        document = {
            "format_version": _FORMAT_VERSION,
            "job": self.job_name,
            "uid": self.uid,
            "log": self.log.encode(),
            "snapshots": self.commits,
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str, where: str) -> Self:
        """
        Return the ledger that :meth:`encode` encoded.

        :param where: Location of the ledger for error messages.
        :raises CorruptStateError: if the text is damaged, or has another format.
        """
        try:
            document = json.loads(text)
            if document["format_version"] != _FORMAT_VERSION:
                raise ValueError(document["format_version"])  # noqa: TRY301 - reported below with other invalid documents
            return cls(
                job_name=str(document["job"]),
                uid=str(document["uid"]),
                log=CommitLog.decode(document["log"], where),
                commits=tuple(TableCommit(*(int(number) for number in each)) for each in document["snapshots"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected the ledger of a sink of format {_FORMAT_VERSION} in {where}, found {text[:60]!r}; use the version of "
                "airflow-provider-statecheck that wrote it, or delete the output of the sink, drop the branch, and start over."
            ) from error


class TableCommit(NamedTuple):
    """A checkpoint whose output is in the table."""

    generation: int
    checkpoint_id: int
    epoch: int
    """Attempt that took the checkpoint; a later attempt may commit it."""
    snapshot_id: int
    """Snapshot that added the output; manifest entries of added files contain it."""
    files: int
    """Number of files in the table; 0 for upserted rows."""
    rows: int

    @classmethod
    def of(cls, publication: Publication) -> Self:
        """Return the commit of the output of a checkpoint, without its snapshot."""
        files = [file for task in publication.committables for file in task.files]
        return cls(
            generation=publication.generation,
            checkpoint_id=publication.checkpoint_id,
            epoch=publication.epoch,
            snapshot_id=0,
            files=len(files),
            rows=sum(int(file["rows"]) for file in files),
        )

    def is_within(self, part: CommitRange) -> bool:
        """Return whether the checkpoint is within a range."""
        return self.epoch == part.epoch and part.first <= self.checkpoint_id <= part.last

    def is_same(self, again: Self) -> bool:
        """Return whether a repeated commit of the checkpoint has the same output, as far as the ledger shows."""
        return self.rows == again.rows and self.files in (0, again.files)


def branch_of(lineage: str) -> str:
    """Return the name of the branch with the ledger of a lineage."""
    return f"statecheck-{lineage}"


def read_ledger(table: Any, lineage: str) -> TableLedger | None:
    """
    Return the ledger of a lineage, ``None`` if it never opened the table.

    :raises CorruptStateError: if the ledger is damaged.
    """
    snapshot = table.metadata.snapshot_by_name(branch_of(lineage))
    if snapshot is None:
        return None
    text = snapshot.summary and snapshot.summary.get(LEDGER_PROPERTY)
    return TableLedger.decode(text or "", f"the branch {branch_of(lineage)}")


def files_of(table: Any, lineage: str, commits: Sequence[TableCommit], shown: str) -> list[Any]:
    """
    Return the data files that commits of a lineage have added.

    :raises CorruptStateError: if files are missing because another writer has rewritten or deleted them.
    """
    wanted = {commit.snapshot_id for commit in commits}
    # The name is checked too, so that a bug in the sink cannot remove files of other writers.
    found = [file for snapshot_id, file in _data_entries(table) if snapshot_id in wanted and is_file_of(file, lineage)]
    expected = sum(commit.files for commit in commits)
    if len(found) != expected:
        raise CorruptStateError(
            f"Expected {expected} files of {len(commits)} checkpoint(s) in the Iceberg table {shown} to remove, found "
            f"{len(found)}: another writer, such as compaction, has rewritten or deleted them. Delete the rows of this stage "
            f"from the table, drop the branch {branch_of(lineage)} and start over.",
            checkpoint_id=commits[0].checkpoint_id,
        )
    return found


def _data_entries(table: Any) -> Iterator[tuple[int | None, Any]]:
    from pyiceberg.manifest import ManifestContent

    snapshot = table.metadata.snapshot_by_name("main")
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.snapshot_id, entry.data_file
