"""
Write task for data files with chosen names.

Imported only where files are written, because it requires pyiceberg.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import WriteTask
from typing_extensions import override


@dataclass(frozen=True)
class NamedWriteTask(WriteTask):
    """A pyiceberg write task with the name of its data file."""

    name: str = ""

    @override
    def generate_data_file_filename(self, extension: str) -> str:
        """Return the name of the data file."""
        return f"{self.name}.{extension}"
