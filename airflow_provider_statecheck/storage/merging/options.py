"""What may be set about file merging."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

MIB = 1024 * 1024


class FileMergingType(StrEnum):
    """How long a physical file takes segments."""

    WITHIN_CHECKPOINT = "within_checkpoint"
    """Those of one checkpoint only."""
    ACROSS_CHECKPOINTS = "across_checkpoints"
    """Those of any checkpoint, until the file is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMergingOptions:
    """Defaults are those of Flink."""

    merging_type: FileMergingType = FileMergingType.WITHIN_CHECKPOINT
    max_file_size: int = 32 * MIB
    """In bytes; a file that reaches it takes no more."""
    max_space_amplification: float = 2.0
    """How many physical bytes there may be for each logical byte; infinity sets no limit."""
    max_subtasks_per_file: int = 4
    """How many subtasks share a file of a blocking pool."""
    is_pool_blocking: bool = False
    """Whether a stream waits for a file rather than begin another one."""

    def __post_init__(self) -> None:
        _require(self.max_file_size > 0, "max_file_size above 0", self.max_file_size)
        amplification = self.max_space_amplification
        _require(amplification > 1 and not math.isnan(amplification), "max_space_amplification above 1", amplification)
        _require(self.max_subtasks_per_file >= 1, "max_subtasks_per_file of at least 1", self.max_subtasks_per_file)


def _require(is_met: bool, expected: str, found: float) -> None:
    if not is_met:
        raise InvalidConfigurationError(f"Expected {expected}, found {found}.")
