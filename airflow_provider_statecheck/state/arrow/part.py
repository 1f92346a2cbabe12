"""One file of a run, and where in it each block is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import StreamStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.state.arrow.layout import DELETED, NAMESPACE
from airflow_provider_statecheck.state.schemas import StateSchema


@dataclass(frozen=True, kw_only=True)
class Part:
    """An Arrow IPC file with rows in order; ``blocks`` has a row for each of its record batches that are of interest."""

    path: str
    """Its name in the handle of a snapshot; no other file of any subtask has it."""
    handle: StreamStateHandle
    state: StateSchema
    """As what the rows were written."""
    schema: Any
    """The Arrow schema of the file."""
    firsts: Any
    """A table of the first position of each block."""
    offsets: Any
    """Where each block begins in the file, as numpy."""
    lengths: Any
    """How many bytes each block has."""
    rows: Any
    """How many rows each block has."""
    checksums: Any
    """The CRC-32 of the bytes of each block."""
    raw_bytes: int
    """How large the rows are in memory."""
    deletions: int
    """How many rows only say that something older is gone."""

    @property
    def key_groups(self) -> Any:
        """Return the key group of each block, as numpy."""
        return self.firsts.column(0).to_numpy()

    @property
    def has_namespaces(self) -> bool:
        """Tell whether there is a column of namespaces."""
        return NAMESPACE in self.schema.names

    @property
    def has_deletions(self) -> bool:
        """Tell whether there is a column of deletion marks."""
        return DELETED in self.schema.names

    def within(self, owned: KeyGroupRange) -> Part | None:
        """Return this part with only the blocks of some key groups; ``None`` if it has none."""
        import numpy as np
        import pyarrow as pa

        groups = self.key_groups
        chosen = np.flatnonzero((groups >= owned.start) & (groups <= owned.end))
        if len(chosen) == len(groups):
            return self
        if len(chosen) == 0:
            return None
        share = float(self.rows[chosen].sum()) / float(self.rows.sum())
        return replace(
            self,
            firsts=self.firsts.take(pa.array(chosen)),
            offsets=self.offsets[chosen],
            lengths=self.lengths[chosen],
            rows=self.rows[chosen],
            checksums=self.checksums[chosen],
            raw_bytes=int(self.raw_bytes * share),
            deletions=-int(-self.deletions * share // 1),
        )


Parts = tuple[Part, ...]
"""The files of one run: each behind the one before."""
