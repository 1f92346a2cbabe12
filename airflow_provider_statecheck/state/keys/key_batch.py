"""Many keys at once, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """
    Distinct keys with the key groups that they belong to.

    They are ordered by key group; within one, in no particular order.
    """

    key_groups: Any
    """An Arrow array of int32, ascending."""
    columns: tuple[Any, ...]
    """One Arrow array for each column of the key, as long as ``key_groups``."""

    def __len__(self) -> int:
        return len(self.key_groups)
