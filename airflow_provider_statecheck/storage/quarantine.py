"""
Orphans that stay for a while: noted when they are found, deleted when they are still orphans much later.

No bytes are moved, for object stores cannot rename. The notes are one small file for each job in a checkpoint directory. They
only ever hold something back: lost or damaged ones begin the wait anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.layout import job_uri, orphans_uri
from airflow_provider_statecheck.checkpoint.validation import require
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

log = logging.getLogger(__name__)

SHORTEST_STAY = timedelta(days=1)
"""How long an orphan stays at least."""


class Quarantine:
    """
    The orphans of a job below the storage's base.

    :param storage: Where the bytes are.
    :param job_id: The job.
    :param stay: How long an orphan stays, a day or more.
    :param dry_run: Write nothing.
    :raises InvalidConfigurationError: for less than a day.
    """

    def __init__(
        self, storage: CheckpointStorage, job_id: JobId, *, stay: timedelta = SHORTEST_STAY, dry_run: bool = False
    ) -> None:
        require_stay(stay)
        self._storage = storage
        self._root = job_uri(storage.base_uri, job_id)
        self._uri = orphans_uri(storage.base_uri, job_id)
        self._stay = stay
        self._dry_run = dry_run

    def admit(self, orphans: AbstractSet[str], now: datetime) -> frozenset[str]:
        """
        Note what was found and return what has stayed long enough.

        What was noted before and is no orphan any more is forgotten.

        :raises StorageError: if the storage fails.
        """
        before = self._read()
        # Not later than now: a clock that was ahead would hold them back for as long.
        notes = {uri: min(before.get(uri, now), now) for uri in sorted(orphans)}
        # Before anything is deleted: killed in between, the next call finds the same and deletes it.
        if notes != before and not self._dry_run:
            self._write(notes)
        return frozenset(uri for uri, since in notes.items() if now - since >= self._stay)

    def forget(self) -> None:
        """
        Drop all notes.

        :raises StorageError: if the storage fails.
        """
        if not self._dry_run and self._storage.exists(self._uri):
            self._storage.delete_file(self._uri)

    def _read(self) -> dict[str, datetime]:
        try:
            notes = json.loads(self._storage.read_bytes(self._uri))
            return {f"{self._root}/{path}": _time(since) for path, since in notes.items()}
        except CheckpointNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("The notes in %s cannot be understood, every orphan waits anew: %s", self._uri, error)
            return {}

    def _write(self, notes: dict[str, datetime]) -> None:
        if not notes:
            self._storage.delete_file(self._uri)
            return
        told = {uri.removeprefix(f"{self._root}/"): since.isoformat() for uri, since in notes.items()}
        self._storage.write_bytes(self._uri, json.dumps(told, indent=1).encode(), overwrite=True)


def require_stay(stay: timedelta | None) -> None:
    """
    Refuse a stay that is too short.

    :raises InvalidConfigurationError: for less than a day.
    """
    require("quarantine", stay, lambda found: found is None or found >= SHORTEST_STAY, "a day or more")


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return time
