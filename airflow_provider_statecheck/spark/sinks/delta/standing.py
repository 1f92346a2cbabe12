"""
What a Delta table holds of one lineage.

The ledger of a lineage says which files belong to which checkpoint; it is written before each commit. Which of its records
came to pass is in the log of the table alone: with the files, each commit sets the version of an application that is named
after the lineage and the generation to the id of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.sinks.delta.names import (
    end_of,
    generation_key,
    generation_of_data_file,
    head_of,
    lineage_of_data_file,
)
from airflow_provider_statecheck.spark.sinks.delta.table import DeltaSnapshot
from airflow_provider_statecheck.spark.sinks.ledger import Ledger
from airflow_provider_statecheck.spark.sinks.record import CommitRecord


@dataclass(frozen=True)
class Standing:
    """What one version of a table holds."""

    lineage: str
    ledger: Ledger
    snapshot: DeltaSnapshot | None
    generation: int
    """Of the attempt that asks."""
    shown: str

    @property
    def head(self) -> int | None:
        """Return the newest attempt that the table knows."""
        return self._version_of(head_of(self.lineage))

    @cached_property
    def newest(self) -> CommitRecord | None:
        """
        Return the newest record that came to pass.

        :raises CorruptStateError: if the table knows a checkpoint of this generation that the ledger does not.
        """
        return max(self._newest(), key=lambda record: record.order, default=None)

    @property
    def lacks_records(self) -> bool:
        """Tell whether something came to pass that the ledger, as it was read, does not have."""
        return not self._ends_known or any(
            f"{generation}-{checkpoint}" not in self.ledger.intents for generation, checkpoint in self._versions()
        )

    def is_committed(self, record: CommitRecord) -> bool:
        """Tell whether a record came to pass and nothing has replaced it."""
        newest = self.newest
        return (
            newest is not None
            and record.order <= newest.order
            and newest.line.holds(record.epoch, record.checkpoint_id)
        )

    @property
    def in_force(self) -> list[CommitRecord]:
        """Return the records whose rows are the output."""
        return [record for record in self.ledger.intents.values() if self.is_committed(record)]

    @property
    def has_output(self) -> bool:
        """Tell whether the table holds rows of the lineage."""
        return any(record.files for record in self.in_force)

    def replaced_by(self, record: CommitRecord) -> dict[str, int | None]:
        """Return the files of the table, with their sizes where known, that go when a record comes to pass."""
        older = [r for r in self.ledger.intents.values() if record.replaces(r)]
        kept = {f.name for r in self.ledger.intents.values() if not record.replaces(r) for f in r.files}
        known = {file.name: file.size_bytes for r in older for file in r.files if file.name not in kept}
        return {
            name: known.get(name)
            for name in self._own_files()
            if name in known or (name not in kept and generation_of_data_file(name) < record.generation)
        }

    def taken_away_by_others(self, record: CommitRecord) -> list[str]:
        """Return the files of output that a record replaces, as far as somebody else has removed them from the table."""
        there = set(self._own_files())
        return sorted(
            file.name for r in self.in_force if record.replaces(r) for file in r.files if file.name not in there
        )

    def _own_files(self) -> Iterator[str]:
        files = frozenset() if self.snapshot is None else self.snapshot.own_files
        return (name for name in files if lineage_of_data_file(name) == self.lineage)

    def _newest(self) -> Iterator[CommitRecord]:
        for generation, checkpoint in self._versions():
            yield from self._record_of(generation, checkpoint)
        yield from (r for r in self.ledger.intents.values() if r.is_end and r.epoch == self._end)

    def _versions(self) -> Iterator[tuple[int, int]]:
        for generation in {self.generation, *(start.generation for start in self.ledger.starts.values())}:
            checkpoint = self._version_of(generation_key(self.lineage, generation))
            if checkpoint is not None:
                yield generation, checkpoint

    @property
    def _end(self) -> int | None:
        return self._version_of(end_of(self.lineage))

    @property
    def _ends_known(self) -> bool:
        return self._end is None or any(r.is_end and r.epoch == self._end for r in self.ledger.intents.values())

    def _version_of(self, application: str) -> int | None:
        return None if self.snapshot is None else self.snapshot.version_of(application)

    def _record_of(self, generation: int, checkpoint_id: int) -> Iterator[CommitRecord]:
        record = self.ledger.intents.get(f"{generation}-{checkpoint_id}")
        if record is not None:
            yield record
        elif generation == self.generation:
            raise CorruptStateError(
                f"Expected the record of checkpoint {checkpoint_id} below _statecheck/{self.lineage} in {self.shown}, found "
                "none; somebody deleted it. Put the directory back from a backup, or start over.",
                checkpoint_id=checkpoint_id,
            )
