"""
Contract between a stage and its sources, and changes between two listings of a source.

A source lists bounded input and cuts it into splits. Its enumerator groups splits into increments, one per Spark job,
and keeps track of finished splits in the state of the stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from airflow_provider_statecheck.exceptions import SourceChangedError, SourceRestartRequiredError
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Split:
    """A unit of input that is read completely or not at all."""

    split_id: str
    """Identical for the same input in every attempt."""
    size_bytes: int | None = None
    """Size of the input; ``None`` if unknown."""


@dataclass(frozen=True, slots=True)
class Increment:
    """The splits that one Spark job of a stage reads."""

    number: int
    """Counted from 1 across all attempts of a stage."""
    splits: tuple[Split, ...]
    size_bytes: int | None = None
    """Size of the input; ``None`` if unknown."""


class SplitEnumerator(Protocol):
    """Plans the increments of one attempt and tracks which splits are finished."""

    @property
    def total_bytes(self) -> int | None:
        """Size of all splits; ``None`` if unknown."""

    @property
    def finished_bytes(self) -> int | None:
        """Size of the finished splits; ``None`` if unknown."""

    @property
    def total_splits(self) -> int:
        """Number of files or user-defined splits."""

    @property
    def finished_splits(self) -> int:
        """Number of files or user-defined splits that are completely finished."""

    def next_increment(self) -> Increment | None:
        """
        Return the next increment; ``None`` after the last one.

        Increments of one enumerator have no splits in common.

        :raises SourceChangedError: if a file has changed since it was listed.
        """

    def load(self, increment: Increment) -> DataFrame:
        """
        Return the rows of an increment as a lazy DataFrame; repeated calls return the same rows.

        :raises SourceChangedError: if a file has changed since it was listed.
        """

    def require_unchanged(self, increment: Increment) -> None:
        """
        Verify that the input of an increment has not changed; called again after the increment was read.

        :raises SourceChangedError: if a file has changed since it was listed.
        """

    def finish(self, increment: Increment) -> None:
        """Mark an increment as finished; later attempts do not read it again."""

    def snapshot(self) -> dict[str, Any]:
        """Return the state for :meth:`Source.open` to resume after the finished increments; plain values only."""


@dataclass(frozen=True, slots=True)
class SizeUnit:
    """Progress of a source in bytes, or in splits if their sizes are unknown."""

    is_bytes: bool
    total: int
    finished: int

    @classmethod
    def of(cls, enumerator: SplitEnumerator) -> Self:
        """Return the progress of an enumerator."""
        if enumerator.total_bytes is not None:
            return cls(True, enumerator.total_bytes, enumerator.finished_bytes or 0)
        return cls(False, enumerator.total_splits, enumerator.finished_splits)

    @property
    def left(self) -> int:
        """Amount that is not finished."""
        return self.total - self.finished

    def amount_of(self, increment: Increment) -> int:
        """Return the amount of an increment."""
        return increment.size_bytes or 0 if self.is_bytes else len(increment.splits)


@runtime_checkable
class Source(Protocol):
    """Input of a stage; pickled with the stage, and therefore without sessions and connections."""

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> SplitEnumerator:
        """
        List the input and plan the unfinished part of it.

        :param spark: The session that reads.
        :param restored: State from :meth:`SplitEnumerator.snapshot`; ``None`` on a fresh start.
        :param new_run: ``True`` if a new run continues from the state of an earlier run and also reads new input.
        :param storage_options: Options of the filesystem for listing; may contain credentials.
        :raises SourceChangedError: if listed input has changed.
        :raises SourceRestartRequiredError: if it has changed and the source is configured to restart the stage.
        """


_SHOWN = 5

REWIND = (
    "rewind the job to before the run that read it, with `airflow statecheck rewind` and as far as retained_runs "
    "reaches, and let that run read it again"
)
"""What helps if the input of runs that have ended has changed."""


def restart_or_rewind(ledger: Ledger, *, new_run: bool) -> str:
    """
    Return what helps if input has changed that was read before.

    :param ledger: Input of the last attempt.
    :param new_run: Whether a new run begins. The run before it may have stopped half-way, and can then be started
        again.
    """
    if not new_run:
        return "set on_change to 'restart' to start this run again from the end of the run before it"
    if ledger.unfinished:
        return "set on_change to 'restart' to read again what the run before, which did not come to its end, has read"
    return REWIND


class OnChange(StrEnum):
    """Policy for input that changed during a run."""

    FAIL = "fail"
    IGNORE = "ignore"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences between two listings."""

    appeared: tuple[Item, ...] = ()
    vanished: tuple[Item, ...] = ()
    changed: tuple[Item, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.appeared or self.vanished or self.changed)


def compare(before: Sequence[Item], now: Sequence[Item]) -> Changes:
    """Return the differences between two listings."""
    known, found = {item.name: item for item in before}, {item.name: item for item in now}
    return Changes(
        appeared=tuple(item for item in now if item.name not in known),
        vanished=tuple(item for item in before if item.name not in found),
        changed=tuple(item for item in now if item.name in known and known[item.name].digest != item.digest),
    )


def describe_changes(changes: Changes) -> str:
    """Describe changes for a message; names a few of the files."""
    clauses = [
        *(f"{redact(item.name)} appeared" for item in changes.appeared),
        *(f"{redact(item.name)} vanished" for item in changes.vanished),
        *(f"{redact(item.name)} changed" for item in changes.changed),
    ]
    return ", ".join(_sample(clauses, changes)) + _rest(clauses)


def _sample(clauses: list[str], changes: Changes) -> list[str]:
    # The sample has at least one clause of each kind.
    lengths = [len(changes.appeared), len(changes.vanished), len(changes.changed)]
    starts = [sum(lengths[:i]) for i in range(3) if lengths[i]]
    rest = [i for i in range(len(clauses)) if i not in starts]
    return [clauses[i] for i in sorted([*starts, *rest[: _SHOWN - len(starts)]])]


def reconcile(ledger: Ledger, now: Sequence[Item], *, on_change: OnChange, new_run: bool) -> Ledger:
    """
    Return the ledger for a source that was listed again.

    A restarted run reads the files of its first listing; by default any difference is an error. A new run also reads
    files that appeared since, and drops finished files that were deleted, unless there are none at all.

    :param now: The current listing.
    :param new_run: ``True`` if a new run begins, ``False`` if a run is restarted.
    :raises SourceChangedError: if the changes do not allow the stage to continue.
    :raises SourceRestartRequiredError: if they require a restart of the stage.
    """
    changes = compare(ledger.items, now)
    remedy = restart_or_rewind(ledger, new_run=new_run)
    unexpected = _unexpected_in_new_run(ledger, changes) if new_run else changes
    require_no_changes(unexpected, on_change, remedy)
    _require_unfinished_items(ledger, changes, remedy)
    return ledger.with_items(_items_of_new_run(ledger, now) if new_run else _items_of_restarted_run(ledger, now))


def require_no_changes(changes: Changes, on_change: OnChange, remedy: str) -> None:
    """
    Apply a policy to changes.

    :param remedy: What the user can do, besides restoring the files or ignoring the change.
    :raises SourceChangedError: if there are changes and the policy is ``FAIL``.
    :raises SourceRestartRequiredError: if there are changes and the policy is ``RESTART``.
    """
    if changes and on_change is not OnChange.IGNORE:
        raise change_error(
            f"Expected the source as it was listed at the start, found that {describe_changes(changes)}",
            f"Restore the files, set on_change to 'ignore' to continue with the listed files, or {remedy}.",
            on_change,
        )


def change_error(found: str, remedy: str, on_change: OnChange) -> SourceChangedError | SourceRestartRequiredError:
    """
    Return the error for input that has changed.

    :param found: What was expected and found.
    :param remedy: What the user can do, unless the policy restarts the stage.
    """
    if on_change is OnChange.RESTART:
        return SourceRestartRequiredError(
            f"{found}; the run starts again, because on_change is 'restart'.", found=found
        )
    return SourceChangedError(f"{found}. {remedy}", found=found)


def some_of(texts: Sequence[str]) -> str:
    """Return the first few texts, and the number of the others."""
    return ", ".join(texts[:_SHOWN]) + _rest(texts)


def _rest(texts: Sequence[str]) -> str:
    return f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""


def require_unchanged(changes: Changes, on_change: OnChange) -> None:
    """
    Require that files of an increment have not changed, even if the policy ignores other changes.

    :raises SourceChangedError: if there are changes, unless the policy is ``RESTART``.
    :raises SourceRestartRequiredError: if there are changes and the policy is ``RESTART``.
    """
    policy = OnChange.RESTART if on_change is OnChange.RESTART else OnChange.FAIL
    require_no_changes(changes, policy, restart_or_rewind(Ledger(()), new_run=False))


def _unexpected_in_new_run(ledger: Ledger, changes: Changes) -> Changes:
    finished = ledger.finished_names
    return Changes(vanished=tuple(i for i in changes.vanished if i.name not in finished), changed=changes.changed)


def _require_unfinished_items(ledger: Ledger, changes: Changes, remedy: str) -> None:
    # No policy can replace a file that is still to be read, or a partially read file that has other row groups now.
    finished = ledger.finished_names
    in_part = {ledger.items[i].name for i in ledger.partial}
    lost = Changes(
        vanished=tuple(item for item in changes.vanished if item.name not in finished),
        changed=tuple(item for item in changes.changed if item.name in in_part),
    )
    if lost:
        raise change_error(
            f"Expected all files that are still to be read as they were listed, found that {describe_changes(lost)}",
            f"Restore the files, or {remedy}.",
            OnChange.FAIL,
        )


def _items_of_restarted_run(ledger: Ledger, now: Sequence[Item]) -> list[Item]:
    found = {item.name: item for item in now}
    return [found.get(item.name, item) for item in ledger.items]


def _items_of_new_run(ledger: Ledger, now: Sequence[Item]) -> list[Item]:
    if not now:
        # A disk that is not mounted looks empty; the run after would read its files again.
        return list(ledger.items)
    found, known = {item.name: item for item in now}, {item.name for item in ledger.items}
    existing = [found[item.name] for item in ledger.items if item.name in found]
    return [*existing, *(item for item in now if item.name not in known)]
