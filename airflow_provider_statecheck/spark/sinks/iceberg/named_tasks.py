"""Data files with names that tell whose they are; loaded only where files are written, because it needs pyiceberg."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import WriteTask
from typing_extensions import override


@dataclass(frozen=True)
class NamedWriteTask(WriteTask):
    """What one data file is made of."""

    name: str = ""

    @override
    def generate_data_file_filename(self, extension: str) -> str:
        """Return the name of the file."""
        return f"{self.name}.{extension}"
