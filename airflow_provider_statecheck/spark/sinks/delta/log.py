"""The log of a Delta table, version by version, as far as it is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

Action = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What one version changed."""

    version: int
    actions: tuple[Action, ...]

    @property
    def added(self) -> dict[str, Action]:
        """Return the files that came, by their names relative to the table."""
        return self._files("add")

    @property
    def removed(self) -> dict[str, Action]:
        """Return the files that went."""
        return self._files("remove")

    def one(self, kind: str) -> Action | None:
        """Return the action of a kind of which there is at most one."""
        return next((action[kind] for action in self.actions if kind in action), None)

    def _files(self, kind: str) -> dict[str, Action]:
        return {unquote(action[kind]["path"]): action[kind] for action in self.actions if kind in action}


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """Reads versions of a log through fsspec."""

    storage: CheckpointStorage

    def entry(self, version: int) -> LogEntry | None:
        """
        Return what a version changed; ``None`` if its file is not kept any more.

        :raises CorruptStateError: if the file is damaged.
        :raises StorageError: if the storage fails.
        """
        uri = f"{self.storage.base_uri}/_delta_log/{version:020d}.json"
        try:
            lines = self.storage.read_bytes(uri).decode().splitlines()
            return LogEntry(version, tuple(json.loads(line) for line in lines if line.strip()))
        except CheckpointNotFoundError:
            return None
        except ValueError as error:
            raise CorruptStateError(
                f"Expected a version of a Delta table in {redact(uri)}, found something else; restore the file."
            ) from error

    def back_from(self, version: int) -> Iterator[LogEntry]:
        """Give a version and those before it, as far as they are kept."""
        for number in range(version, -1, -1):
            entry = self.entry(number)
            if entry is None:
                return
            yield entry
