"""
Ledger of an Iceberg sink, kept in the table on a branch.

The snapshot has no files. A commit moves this branch and the main one in one step of the catalog, and says of both where it
found them: so nobody can commit who has not read the newest ledger.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError, StaleAttemptError
from airflow_provider_statecheck.spark.sinks.ledger import Ancestry, History, Start

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

    def outside(self, line: Ancestry) -> tuple[TableCommit, ...]:
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


LEDGER_PROPERTY = "statecheck.ledger"
"""Of the summary of the snapshot on the branch of a lineage."""
_MAIN = "main"
_FOR_EVER = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one commit of a table does."""

    ledger: TableLedger
    """What is true before it, with the attempt that makes it."""
    commit: TableCommit | None = None
    add: Sequence[Any] = ()
    """Data files."""
    remove: Sequence[Any] = ()
    """Data files that are taken out."""
    retracted: Sequence[TableCommit] = ()
    """What those were part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChange:
    """A change as a catalog takes it."""

    updates: tuple[Any, ...]
    requirements: tuple[Any, ...]
    """What must be as it was found."""
    replaced: Any
    """The snapshot of the ledger before it, if there was one."""


def branch_of(lineage: str) -> str:
    """Return the branch that holds the ledger of a lineage."""
    return f"statecheck-{lineage}"


def read_ledger(table: Any, lineage: str) -> TableLedger | None:
    """
    Return what a lineage has committed, ``None`` if it never opened the table.

    :raises CorruptStateError: if the ledger is damaged.
    """
    snapshot = table.metadata.snapshot_by_name(branch_of(lineage))
    if snapshot is None:
        return None
    shown = f"the branch {branch_of(lineage)}"
    text = snapshot.summary and snapshot.summary.get(LEDGER_PROPERTY)
    if not text:
        raise CorruptStateError(
            f"Expected the ledger of a sink in {shown}, found a snapshot without one; somebody else has written there. Drop "
            "the branch to begin anew, after removing what the sink has written."
        )
    return TableLedger.decode(text, shown)


def commit_change(table: Any, staged: StagedChange) -> None:
    """
    Make a change, all of it or nothing.

    :param table: As it was read together with the ledger.
    :raises CommitFailedException: Somebody else has committed since; of pyiceberg.
    :raises Exception: Nobody knows whether it was made.
    """
    table._do_commit(staged.updates, staged.requirements)
    if staged.replaced is not None:
        with suppress(Exception):  # a small file that nothing names any more
            table.io.delete(staged.replaced.manifest_list)


def stage_change(table: Any, lineage: str, change: Change) -> StagedChange:
    """
    Write what a change needs in the table's metadata, which nothing names yet.

    :param table: As it was read together with the ledger.
    """
    from pyiceberg.table import Transaction

    # What a transaction commits it commits again after a conflict, on whatever it finds then: it only collects here.
    transaction = Transaction(table)
    moves_main = bool(change.add or change.remove or not table.metadata.snapshots)
    ledger = _stage_files(transaction, change) if moves_main else change.ledger
    _stage_ledger(transaction, lineage, ledger)
    replaced = table.metadata.snapshot_by_name(branch_of(lineage))
    return StagedChange(
        updates=(*(_kept(update, lineage) for update in transaction._updates), *_removed(replaced)),
        requirements=_requirements(table, lineage),
        replaced=replaced,
    )


def _requirements(table: Any, lineage: str) -> tuple[Any, ...]:
    from pyiceberg.table.update import AssertTableUUID

    # Of a table without snapshots only the main branch may be asked for; whoever made a ledger moved that one too.
    # Main is asked for even where it stays: the sequence number of the ledger's snapshot comes after those that were found.
    branches = [_MAIN, *([branch_of(lineage)] if table.metadata.snapshots else [])]
    is_same = AssertTableUUID(uuid=table.metadata.table_uuid)
    return is_same, *(_is_where_it_was(table, branch) for branch in branches)


def _removed(snapshot: Any) -> tuple[Any, ...]:
    from pyiceberg.table.update import RemoveSnapshotsUpdate

    return (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [snapshot.snapshot_id]}),) if snapshot else ()


def _stage_files(transaction: Any, change: Change) -> TableLedger:
    update = transaction.update_snapshot(snapshot_properties=_summary(change))
    producer = update.overwrite() if change.remove else update.fast_append()
    for file in change.add:
        producer.append_data_file(file)
    for file in change.remove:
        producer.delete_data_file(file)
    producer.commit()
    commit = replace(change.commit, snapshot_id=producer.snapshot_id) if change.commit else None
    return change.ledger.changed(commit, change.retracted)


def _stage_ledger(transaction: Any, lineage: str, ledger: TableLedger) -> None:
    told = {LEDGER_PROPERTY: ledger.encode()}
    producer = transaction.update_snapshot(snapshot_properties=told, branch=branch_of(lineage)).fast_append()
    producer._parent_snapshot_id = None  # what was there goes in the same commit
    producer.commit()


def _kept(update: Any, lineage: str) -> Any:
    # A table may say that its branches are forgotten after a time; this one must not be.
    is_ours = getattr(update, "ref_name", None) == branch_of(lineage)
    return update.model_copy(update={"max_ref_age_ms": _FOR_EVER}) if is_ours else update


def _summary(change: Change) -> dict[str, str]:
    told = {"statecheck.job": change.ledger.job_name, "statecheck.uid": change.ledger.uid}
    if change.commit:
        told["statecheck.checkpoint"] = str(change.commit.checkpoint_id)
        told["statecheck.generation"] = str(change.commit.generation)
        told["statecheck.epoch"] = str(change.commit.epoch)
    return told


def _is_where_it_was(table: Any, branch: str) -> Any:
    from pyiceberg.table.update import AssertRefSnapshotId

    snapshot = table.metadata.snapshot_by_name(branch)
    return AssertRefSnapshotId.model_validate(
        {"ref": branch, "snapshot-id": snapshot.snapshot_id if snapshot else None}
    )
