"""What the files of a manager hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from airflow_provider_statecheck.storage.merging.files import PhysicalFile


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceStatistics:
    """Counts and bytes; files of others, which are only read, are left out."""

    physical_file_count: int
    physical_file_bytes: int
    logical_file_count: int
    logical_file_bytes: int

    @classmethod
    def of(cls, files: Iterable[PhysicalFile]) -> Self:
        """Count."""
        known = [file for file in files if file.is_owned]
        return cls(
            physical_file_count=len(known),
            physical_file_bytes=sum(file.body.size for file in known),
            logical_file_count=sum(file.ref_count for file in known),
            logical_file_bytes=sum(file.live_bytes for file in known),
        )

    @property
    def amplification(self) -> float:
        """Return how many physical bytes there are for each logical byte; 1 where there is none."""
        return self.physical_file_bytes / self.logical_file_bytes if self.logical_file_bytes else 1.0
