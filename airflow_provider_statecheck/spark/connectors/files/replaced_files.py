"""
Directories that were rewritten after a run had read them, as by the repair of a day.

Spark replaces the files of a partition by others with new names. A listing alone shows files that vanished, which a run
may do after it was read, and files that appeared, which would be read again. Files that vanished together with others
that appeared in the same directory are therefore a replacement. In a directory that is no partition, where new input
may arrive as old input is moved away, they are one only if all files vanished and the names are those that Spark gives.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_statecheck.exceptions import SourceChangedError, SourceRestartRequiredError
from airflow_provider_statecheck.spark.connectors.source import Changes, OnChange, change_error, compare, some_of
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

# The number of a task and the random name of its job.
_SPARK_NAME = re.compile(r"part-\d+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class ReplacedFiles:
    """Finished files that were replaced by others since a run, by their directories."""

    directories: Mapping[str, Changes]

    @classmethod
    def since(cls, ledger: Ledger, now: Sequence[Item]) -> ReplacedFiles:
        """
        Return the files that were replaced.

        :param ledger: Input of the run before.
        :param now: The current listing.
        """
        changes, finished = compare(ledger.items, now), ledger.finished_names
        vanished = _by_directory(item for item in changes.vanished if item.name in finished)
        appeared = _by_directory(changes.appeared)
        kept = {_directory_of(item) for item in now if item.name in finished}
        found = {
            directory: Changes(appeared=tuple(appeared[directory]), vanished=tuple(vanished[directory]))
            for directory in sorted(vanished.keys() & appeared.keys())
        }
        return cls({each: files for each, files in found.items() if _is_rewritten(each, files, each in kept)})

    def error(self, remedy: str, on_change: OnChange) -> SourceChangedError | SourceRestartRequiredError:
        """
        Return the error for the replacement.

        :param remedy: What the user can do, besides restoring the files or ignoring the change.
        """
        return change_error(
            "Expected the files that the runs before have read as they were, or gone, found other files in their "
            f"place: {self}",
            "Restore the files; set on_change to 'ignore' if the rows are the same, to keep what was read; or "
            f"{remedy}. If files are moved away after they were read, let new ones arrive in another directory.",
            on_change,
        )

    def kept_in(self, ledger: Ledger) -> Ledger:
        """Return the ledger in which the new files count as read, because those that they replace were."""
        if not self.directories:
            return ledger
        log.warning("Files that were read have others in their place, which are not read: %s", self)
        appeared = {item.name for files in self.directories.values() for item in files.appeared}
        return ledger.finish_items([i for i, item in enumerate(ledger.items) if item.name in appeared])

    def __str__(self) -> str:
        return some_of([_described(directory, files) for directory, files in self.directories.items()])


def _by_directory(items: Iterable[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(_directory_of(item), []).append(item)
    return found


def _directory_of(item: Item) -> str:
    return item.name.rpartition("/")[0]


def _is_rewritten(directory: str, files: Changes, has_kept: bool) -> bool:
    if "=" in directory.rpartition("/")[2]:
        return True
    items = (*files.vanished, *files.appeared)
    return not has_kept and all(_SPARK_NAME.match(item.name.rpartition("/")[2]) for item in items)


def _described(directory: str, files: Changes) -> str:
    gone, new = files.vanished[0].name.rpartition("/")[2], files.appeared[0].name.rpartition("/")[2]
    vanished, appeared = len(files.vanished), len(files.appeared)
    return f"{redact(directory)} ({vanished} vanished, such as {gone}; {appeared} appeared, such as {new})"
