"""Detection of files that changed after they were listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.spark.sources.splits import Item, Ledger
from airflow_provider_statecheck.storage.uris import redact

_SHOWN = 5


class OnChange(Enum):
    """What to do if files changed."""

    FAIL = "fail"
    IGNORE = "ignore"
    RESTART = "restart"


def on_change_of(value: str | OnChange) -> OnChange:
    """
    Return the choice of a user.

    :raises InvalidConfigurationError: if there is no such choice.
    """
    try:
        return OnChange(value)
    except ValueError as error:
        raise InvalidConfigurationError(
            f"Expected on_change to be 'fail', 'ignore' or 'restart'; found {value!r}."
        ) from error


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs between two listings."""

    appeared: tuple[Item, ...] = ()
    vanished: tuple[Item, ...] = ()
    changed: tuple[Item, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.appeared or self.vanished or self.changed)


def compare(before: Sequence[Item], now: Sequence[Item]) -> Changes:
    """Return what happened between two listings."""
    known, found = {item.name: item for item in before}, {item.name: item for item in now}
    return Changes(
        appeared=tuple(item for item in now if item.name not in known),
        vanished=tuple(item for item in before if item.name not in found),
        changed=tuple(item for item in now if item.name in known and known[item.name].digest != item.digest),
    )


def reconcile(ledger: Ledger, now: Sequence[Item], *, on_change: OnChange, new_run: bool) -> Ledger:
    """
    Return what is to be read, and what of it is finished, after a source was listed again.

    Within one run nothing may differ, unless the user says so. A new run reads what appeared since, and forgets finished
    files that were deleted.

    :raises SourceChangedError: if the stage cannot go on.
    :raises SourceRestartRequiredError: if it is to begin again.
    """
    changes = compare(ledger.items, now)
    counted = _unexpected_in_a_new_run(ledger, changes) if new_run else changes
    require_none(counted, on_change)
    _require_the_rest(ledger, changes)
    return ledger.carried_to(_items_of_a_new_run(ledger, now) if new_run else _items_of_the_run(ledger, now))


def require_none(changes: Changes, on_change: OnChange) -> None:
    """
    Refuse changes, unless the user lets them pass.

    :raises SourceChangedError: if the stage is to fail.
    :raises SourceRestartRequiredError: if it is to begin again.
    """
    if not changes or on_change is OnChange.IGNORE:
        return
    if on_change is OnChange.RESTART:
        raise SourceRestartRequiredError(
            f"Expected the source as it was listed at the start, found that {described(changes)}; the stage begins again, as "
            "on_change='restart' says."
        )
    raise SourceChangedError(
        f"Expected the source as it was listed at the start, found that {described(changes)}. Put it back as it was, or set "
        "on_change to 'ignore' to go on with what was listed, or to 'restart' to read everything again."
    )


def require_unchanged(changes: Changes, on_change: OnChange) -> None:
    """
    Refuse changes of files that are about to be read.

    :raises SourceChangedError: unless the stage is to begin again.
    :raises SourceRestartRequiredError: if it is.
    """
    require_none(changes, OnChange.RESTART if on_change is OnChange.RESTART else OnChange.FAIL)


def described(changes: Changes) -> str:
    """Return what happened to which files, a few of them named."""
    told = [
        *(f"{_shown(item)} appeared" for item in changes.appeared),
        *(f"{_shown(item)} vanished" for item in changes.vanished),
        *(f"{_shown(item)} changed" for item in changes.changed),
    ]
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return ", ".join(_first(told, changes)) + more


def _first(told: list[str], changes: Changes) -> list[str]:
    # Of each kind at least one is named, however many there are of the others.
    lengths = [len(changes.appeared), len(changes.vanished), len(changes.changed)]
    starts = [sum(lengths[:i]) for i in range(3) if lengths[i]]
    others = [i for i in range(len(told)) if i not in starts]
    return [told[i] for i in sorted([*starts, *others[: _SHOWN - len(starts)]])]


def _shown(item: Item) -> str:
    return redact(item.name)


def _unexpected_in_a_new_run(ledger: Ledger, changes: Changes) -> Changes:
    finished = {ledger.items[i].name for i in ledger.finished}
    return Changes(vanished=tuple(i for i in changes.vanished if i.name not in finished), changed=changes.changed)


def _require_the_rest(ledger: Ledger, changes: Changes) -> None:
    # What is still to be read must be there whatever the user chose, and a file that was read in part must be the same.
    finished = {ledger.items[i].name for i in ledger.finished}
    in_part = {ledger.items[i].name for i in ledger.partial}
    lost = Changes(
        vanished=tuple(item for item in changes.vanished if item.name not in finished),
        changed=tuple(item for item in changes.changed if item.name in in_part),
    )
    if lost:
        raise SourceChangedError(
            f"Expected all that is still to be read as it was listed, found that {described(lost)}. Put it back as it was, "
            "or set on_change to 'restart' to read everything again."
        )


def _items_of_the_run(ledger: Ledger, now: Sequence[Item]) -> list[Item]:
    found = {item.name: item for item in now}
    return [found.get(item.name, item) for item in ledger.items]


def _items_of_a_new_run(ledger: Ledger, now: Sequence[Item]) -> list[Item]:
    found, known = {item.name: item for item in now}, {item.name for item in ledger.items}
    still_there = [found[item.name] for item in ledger.items if item.name in found]
    return [*still_there, *(item for item in now if item.name not in known)]
