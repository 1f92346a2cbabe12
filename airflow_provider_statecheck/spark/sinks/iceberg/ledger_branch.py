"""
The ledger of a lineage in a table: the summary of the one snapshot on a branch of its own.

The snapshot has no files. A commit moves this branch and the main one in one step of the catalog, and says of both where it
found them: so nobody can commit who has not read the newest ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.iceberg.ledger import TableCommit, TableLedger

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
