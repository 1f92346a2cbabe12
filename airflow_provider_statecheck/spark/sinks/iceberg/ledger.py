"""What the sinks of one lineage have committed to a table, and which attempt may go on with that."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError, StaleAttemptError
from airflow_provider_statecheck.spark.sinks.line import History, Line, Start

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """A checkpoint whose files are part of the table."""

    generation: int
    checkpoint_id: int
    epoch: int
    """The attempt that took the checkpoint, whoever committed it."""
    files: int
    rows: int
    snapshot_id: int = 0
    """The snapshot that added the files; the table names it with each of them."""

    @property
    def order(self) -> tuple[int, int]:
        """Return by what the newest commit is known."""
        return self.epoch, self.checkpoint_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLedger:
    """It is replaced as a whole, in the same commit of the table as the files that it tells of."""

    job_name: str
    uid: str
    epoch: int = 0
    """The attempt that has the table; nothing of an older one is committed."""
    starts: Mapping[int, Start] = field(default_factory=dict)
    commits: tuple[TableCommit, ...] = ()
    """Those in force, in the order in which they were made."""
    retracted: frozenset[tuple[int, int]] = frozenset()
    """Epochs and checkpoints whose output was taken out again."""

    @property
    def newest(self) -> TableCommit | None:
        """Return the commit after which all others have to come."""
        return max(self.commits, key=lambda commit: commit.order, default=None)

    @property
    def history(self) -> History:
        """Return how attempts began, and which of them took which checkpoint."""
        return History(self.starts, {commit.checkpoint_id: commit.epoch for commit in self.commits})

    def require_newest(self, epoch: int, table: str) -> None:
        """
        Refuse an attempt that a newer one has followed.

        :raises StaleAttemptError: if one has.
        """
        if self.epoch > epoch:
            raise StaleAttemptError(
                f"Expected attempt {epoch} to be the newest that writes to the Iceberg table {table}, found attempt "
                f"{self.epoch}; it has taken over, and this one must stop.",
                epoch=self.epoch,
            )

    def find(self, generation: int, checkpoint_id: int) -> TableCommit | None:
        """Return the commit of a checkpoint, ``None`` if it is not in force."""
        return next((c for c in self.commits if (c.generation, c.checkpoint_id) == (generation, checkpoint_id)), None)

    def outside(self, line: Line) -> tuple[TableCommit, ...]:
        """Return the commits that are no part of what a checkpoint goes on from."""
        return tuple(commit for commit in self.commits if not line.holds(commit.epoch, commit.checkpoint_id))

    def begun(self, epoch: int, start: Start) -> TableLedger:
        """Return what is true once an attempt has taken the table over."""
        return replace(self, epoch=epoch, starts={**self.starts, epoch: start})

    def changed(self, added: TableCommit | None, removed: Collection[TableCommit]) -> TableLedger:
        """Return what is true once files were added and others taken out."""
        kept = tuple(commit for commit in self.commits if commit not in removed)
        gone = self.retracted | {commit.order for commit in removed}
        return replace(self, commits=(*kept, *([added] if added else [])), retracted=gone)._without_old_generations()

    def without(self, commit: TableCommit) -> TableLedger:
        """Return what is true once output is given up that was never added."""
        return replace(self, retracted=self.retracted | {commit.order})

    def _without_old_generations(self) -> TableLedger:
        # Nobody restores what began before the newest fresh start, once nothing of it is in the table.
        generation = min([*(c.generation for c in self.commits), self.starts[self.epoch].generation])
        starts = {epoch: start for epoch, start in self.starts.items() if start.generation >= generation}
        oldest = min(starts)
        return replace(self, starts=starts, retracted=frozenset(r for r in self.retracted if r[0] >= oldest))

    def encode(self) -> str:
        """Return the ledger as JSON."""
        document = {
            "format_version": FORMAT_VERSION,
            "job": self.job_name,
            "uid": self.uid,
            "epoch": self.epoch,
            "starts": [[e, s.generation, s.restored, s.taken_by] for e, s in sorted(self.starts.items())],
            "commits": [[c.generation, c.checkpoint_id, c.epoch, c.files, c.rows, c.snapshot_id] for c in self.commits],
            "retracted": sorted(self.retracted),
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str, shown: str) -> TableLedger:
        """
        Return the ledger in a text.

        :param shown: Where it stands.
        :raises CorruptStateError: if it is damaged.
        :raises IncompatibleCheckpointError: if a newer version of this package wrote it.
        """
        try:
            document = json.loads(text)
            version = int(document["format_version"])
            ledger = _from_document(document) if version == FORMAT_VERSION else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(f"Expected the ledger of a sink in {shown}, found {text[:60]!r}.") from error
        if ledger is None:
            raise IncompatibleCheckpointError(
                f"Expected a ledger of format {FORMAT_VERSION} in {shown}, found format {version}; use the version of "
                "airflow-provider-statecheck that wrote it, or a newer one.",
                format_version=version,
            )
        return ledger


def _from_document(document: Mapping[str, Any]) -> TableLedger:
    return TableLedger(
        job_name=str(document["job"]),
        uid=str(document["uid"]),
        epoch=int(document["epoch"]),
        starts={
            int(epoch): Start(int(generation), _number(restored), _number(taken_by))
            for epoch, generation, restored, taken_by in document["starts"]
        },
        commits=tuple(
            TableCommit(
                generation=int(generation),
                checkpoint_id=int(checkpoint_id),
                epoch=int(epoch),
                files=int(files),
                rows=int(rows),
                snapshot_id=int(snapshot_id),
            )
            for generation, checkpoint_id, epoch, files, rows, snapshot_id in document["commits"]
        ),
        retracted=frozenset((int(epoch), int(checkpoint_id)) for epoch, checkpoint_id in document["retracted"]),
    )


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
