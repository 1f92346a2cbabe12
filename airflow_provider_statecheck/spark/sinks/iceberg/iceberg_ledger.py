"""
Ledger of an Iceberg sink, stored on a branch of the table.

The ledger is a property of an empty snapshot. A commit moves this branch and the main branch atomically and requires
the previous state of both. Therefore only an attempt that has read the newest ledger can commit.
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
LEDGER_PROPERTY = "statecheck.ledger"
"""Summary property of the snapshot on the branch of a lineage."""
_MAIN = "main"
_NEVER_MS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLedger:
    """An immutable version of the ledger, replaced in the same commit as the files that it records."""

    job_name: str
    uid: str
    epoch: int = 0
    """Epoch of the attempt that owns the table; older attempts are fenced."""
    starts: Mapping[int, Start] = field(default_factory=dict)
    commits: tuple[TableCommit, ...] = ()
    """Commits in force, in commit order."""
    retracted: frozenset[tuple[int, int]] = frozenset()
    """Pairs of the epoch and the checkpoint of retracted output."""

    @property
    def newest(self) -> TableCommit | None:
        """Return the newest commit; all further commits must follow it."""
        return max(self.commits, key=lambda commit: commit.order, default=None)

    @property
    def history(self) -> History:
        """Return the starts of the attempts, and the attempt that took each checkpoint."""
        return History(self.starts, {commit.checkpoint_id: commit.epoch for commit in self.commits})

    def require_newest(self, epoch: int, table: str) -> None:
        """
        Require that no newer attempt has taken ownership of the table.

        :raises StaleAttemptError: if a newer attempt owns the table.
        """
        if self.epoch > epoch:
            raise StaleAttemptError(
                f"Attempt {epoch} no longer owns its output in the Iceberg table {table}: attempt {self.epoch} took it over; "
                f"stop attempt {epoch}.",
                epoch=self.epoch,
            )

    def find(self, generation: int, checkpoint_id: int) -> TableCommit | None:
        """Return the commit of a checkpoint, ``None`` if it is not in force."""
        return next((c for c in self.commits if (c.generation, c.checkpoint_id) == (generation, checkpoint_id)), None)

    def outside(self, ancestry: Ancestry) -> tuple[TableCommit, ...]:
        """Return the commits outside an ancestry."""
        return tuple(commit for commit in self.commits if not ancestry.holds(commit.epoch, commit.checkpoint_id))

    def begun(self, epoch: int, start: Start) -> TableLedger:
        """Return the ledger after an attempt has taken ownership of the table."""
        return replace(self, epoch=epoch, starts={**self.starts, epoch: start})

    def changed(self, added: TableCommit | None, removed: Collection[TableCommit]) -> TableLedger:
        """Return the ledger after files were added and removed."""
        remaining = tuple(commit for commit in self.commits if commit not in removed)
        retracted = self.retracted | {commit.order for commit in removed}
        return replace(
            self, commits=(*remaining, *([added] if added else [])), retracted=retracted
        )._without_old_generations()

    def without(self, commit: TableCommit) -> TableLedger:
        """Return the ledger after output was retracted that was never added."""
        return replace(self, retracted=self.retracted | {commit.order})

    def _without_old_generations(self) -> TableLedger:
        # Attempts of an older generation cannot be restored after the table has lost all their output.
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
        Return the ledger that :meth:`encode` encoded.

        :param shown: Location of the ledger for error messages.
        :raises CorruptStateError: if the text is damaged.
        :raises IncompatibleCheckpointError: if a newer version of this package wrote the ledger.
        """
        try:
            document = json.loads(text)
            version = int(document["format_version"])
            ledger = _from_document(document) if version == FORMAT_VERSION else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected the ledger of a sink in {shown}, found {text[:60]!r}; delete the output of the sink, drop the "
                "branch, and start over."
            ) from error
        if ledger is None:
            raise IncompatibleCheckpointError(
                f"Expected a ledger of format {FORMAT_VERSION} in {shown}, found format {version}; use the version of "
                "airflow-provider-statecheck that wrote it, or a newer one.",
                format_version=version,
            )
        return ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """A checkpoint whose files are in the table."""

    generation: int
    checkpoint_id: int
    epoch: int
    """Attempt that took the checkpoint; a later attempt may commit it."""
    files: int
    rows: int
    snapshot_id: int = 0
    """Snapshot that added the files; manifest entries of the files contain it."""

    @property
    def order(self) -> tuple[int, int]:
        """Return the sort key of commits: by epoch, then by checkpoint."""
        return self.epoch, self.checkpoint_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Changes of one commit of a table."""

    ledger: TableLedger
    """Ledger before the commit, with the attempt that commits."""
    commit: TableCommit | None = None
    add: Sequence[Any] = ()
    """Data files to add."""
    remove: Sequence[Any] = ()
    """Data files to remove."""
    retracted: Sequence[TableCommit] = ()
    """Commits of the removed files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChange:
    """A change with its metadata files written, ready for the catalog."""

    updates: tuple[Any, ...]
    requirements: tuple[Any, ...]
    """Requirements on the state of the table."""
    replaced: Any
    """Previous snapshot of the ledger, ``None`` for the first one."""


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
    shown = f"the branch {branch_of(lineage)}"
    text = snapshot.summary and snapshot.summary.get(LEDGER_PROPERTY)
    if not text:
        raise CorruptStateError(
            f"Expected the ledger of a sink in {shown}, found a snapshot of another writer; delete the output of the sink, "
            "drop the branch, and start over."
        )
    return TableLedger.decode(text, shown)


def stage_change(table: Any, lineage: str, change: Change) -> StagedChange:
    """
    Write the metadata files of a change without committing them.

    :param table: Table as it was read together with the ledger.
    """
    from pyiceberg.table import Transaction

    # The transaction only collects updates. Its own commit would retry after a conflict without reading the new ledger.
    transaction = Transaction(table)
    moves_main = bool(change.add or change.remove or not table.metadata.snapshots)
    ledger = _stage_files(transaction, change) if moves_main else change.ledger
    _stage_ledger(transaction, lineage, ledger)
    replaced = table.metadata.snapshot_by_name(branch_of(lineage))
    return StagedChange(
        updates=(*(_with_retention(update, lineage) for update in transaction._updates), *_removal_of(replaced)),
        requirements=_requirements(table, lineage),
        replaced=replaced,
    )


def commit_change(table: Any, staged: StagedChange) -> None:
    """
    Commit a change atomically.

    :param table: Table as it was read together with the ledger.
    :raises CommitFailedException: if another writer has committed since; raised by pyiceberg.
    :raises Exception: if the outcome of the commit is unknown.
    """
    table._do_commit(staged.updates, staged.requirements)
    if staged.replaced is not None:
        with suppress(Exception):  # an orphan file of the removed snapshot
            table.io.delete(staged.replaced.manifest_list)


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


def _requirements(table: Any, lineage: str) -> tuple[Any, ...]:
    from pyiceberg.table.update import AssertTableUUID

    # A table without snapshots only accepts a requirement for main, which every first ledger commit also moves.
    # Main is required even if it does not move: the sequence number of the ledger snapshot must stay the highest one.
    branches = [_MAIN, *([branch_of(lineage)] if table.metadata.snapshots else [])]
    same_table = AssertTableUUID(uuid=table.metadata.table_uuid)
    return same_table, *(_ref_requirement(table, branch) for branch in branches)


def _removal_of(snapshot: Any) -> tuple[Any, ...]:
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
    properties = {LEDGER_PROPERTY: ledger.encode()}
    producer = transaction.update_snapshot(snapshot_properties=properties, branch=branch_of(lineage)).fast_append()
    producer._parent_snapshot_id = None  # the same commit removes the previous ledger snapshot
    producer.commit()


def _with_retention(update: Any, lineage: str) -> Any:
    # The table may expire branches by age; the branch of the ledger must be retained.
    is_ours = getattr(update, "ref_name", None) == branch_of(lineage)
    return update.model_copy(update={"max_ref_age_ms": _NEVER_MS}) if is_ours else update


def _summary(change: Change) -> dict[str, str]:
    summary = {"statecheck.job": change.ledger.job_name, "statecheck.uid": change.ledger.uid}
    if change.commit:
        summary["statecheck.checkpoint"] = str(change.commit.checkpoint_id)
        summary["statecheck.generation"] = str(change.commit.generation)
        summary["statecheck.epoch"] = str(change.commit.epoch)
    return summary


def _ref_requirement(table: Any, branch: str) -> Any:
    from pyiceberg.table.update import AssertRefSnapshotId

    snapshot = table.metadata.snapshot_by_name(branch)
    return AssertRefSnapshotId.model_validate(
        {"ref": branch, "snapshot-id": snapshot.snapshot_id if snapshot else None}
    )
