"""What to read after a look at the commits of a stage upstream, some of which it may have retracted."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_statecheck.exceptions import SourceChangedError, SourceRestartRequiredError
from airflow_provider_statecheck.spark.sources.changes import OnChange, compare
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.spark.sources.ledger import Ledger

_SHOWN = 5


def carried(ledger: Ledger, now: Sequence[Item], *, on_change: OnChange, new_run: bool) -> Ledger:
    """
    Return what is to be read, and what of it is finished.

    Commits that appeared belong to the next run. What was retracted before it was read is simply gone then; within a run
    it is missed.

    :param now: All commits that are in force.
    :raises SourceChangedError: if what was retracted matters and the stage is to fail.
    :raises SourceRestartRequiredError: if it is to begin again.
    """
    gone = _retracted(ledger, now)
    finished = {ledger.items[i].name for i in ledger.finished}
    missed = [item for item in gone if not new_run or item.name in finished]
    if missed and on_change is not OnChange.IGNORE:
        raise retracted([item.name for item in missed], on_change)
    lost = {item.name for item in gone}
    known = [item for item in ledger.items if item.name not in lost]
    names = {item.name for item in known}
    appeared = [item for item in now if item.name not in names]
    return ledger.carried_to([*known, *appeared] if new_run else known)


def retracted(names: Sequence[str], on_change: OnChange) -> SourceChangedError | SourceRestartRequiredError:
    """Return the error that says which commits are gone."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    found = (
        f"Expected the output of the stage upstream as it was when it was listed, found that it retracted {_described(names)}"
        f"{more}, because it fell back or began again"
    )
    if on_change is OnChange.RESTART:
        return SourceRestartRequiredError(f"{found}; the stage begins again, as on_change='restart' says.")
    return SourceChangedError(
        f"{found}. Set on_change to 'restart' to read everything again, or to 'ignore' to keep what was read and go on with "
        "what is there now."
    )


def _retracted(ledger: Ledger, now: Sequence[Item]) -> list[Item]:
    changes = compare(ledger.items, now)
    changed = {item.name for item in changes.changed}
    return [*changes.vanished, *(item for item in ledger.items if item.name in changed)]


def _described(names: Sequence[str]) -> str:
    pairs = [name.partition("/") for name in names[:_SHOWN]]
    return ", ".join(f"checkpoint {checkpoint} of {lineage}" for lineage, _, checkpoint in pairs)
