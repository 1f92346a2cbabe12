"""Rows of state in order that are in files."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, groupby
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, SegmentFileStateHandle
from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.state.arrow.block import Block
from airflow_provider_statecheck.state.arrow.block_cache import BlockCache
from airflow_provider_statecheck.state.arrow.layout import position_columns
from airflow_provider_statecheck.state.arrow.order import row_tuples
from airflow_provider_statecheck.state.arrow.part import Part, Parts
from airflow_provider_statecheck.state.arrow.part_bytes import PartBytes
from airflow_provider_statecheck.state.arrow.row_form import RowForm
from airflow_provider_statecheck.storage.uris import redact


class FileRun:
    """
    The blocks of one or more parts.

    :param parts: Each behind the one before.
    :param files: Reads them.
    :param cache: Keeps single blocks.
    :param form: Brings rows into the form that the state has now.
    """

    def __init__(self, parts: Parts, files: PartBytes, cache: BlockCache, form: RowForm) -> None:
        self.parts = parts
        self._files = files
        self._cache = cache
        self._form = form
        self.raw_bytes = sum(part.raw_bytes for part in parts)
        self.deletions = sum(form.deletions(part) for part in parts)
        self.is_current = all(form.is_current(part) for part in parts)
        self.has_namespaces = any(part.has_namespaces for part in parts)

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        return [(i, j) for i, part in enumerate(self.parts) for j in range(len(part.offsets))]

    @cached_property
    def firsts(self) -> Sequence[tuple[Any, ...]]:
        """Return the position of the first row of each block."""
        tables = (self._form.firsts(part, namespace=self.has_namespaces) for part in self.parts)
        return list(chain.from_iterable(row_tuples(position_columns(table)) for table in tables))

    @cached_property
    def block_key_groups(self) -> Any:
        """Return the key group of each block."""
        import numpy as np

        return np.concatenate([part.key_groups for part in self.parts])

    @property
    def block_last_key_groups(self) -> Any:
        """Return the key group of each block, which has no other."""
        return self.block_key_groups

    @cached_property
    def block_rows(self) -> Any:
        """Return how many rows each block has."""
        import numpy as np

        return np.concatenate([part.rows for part in self.parts]).astype(np.int64)

    def block(self, number: int) -> Block:
        """Return one block: what was read lately is kept, else it is one read of one range."""
        index, row = self._places[number]
        part = self.parts[index]
        # The same block has a column of namespaces in some runs and none in others.
        place = (part.path, int(part.offsets[row]), self.has_namespaces)
        block = self._cache.get(place)
        if block is None:
            block = Block(self._decoded(part, [row])[0])
            self._cache.put(place, block)
        return block

    def tables(self, numbers: Sequence[int]) -> list[Any]:
        """Return blocks as tables; neighbours are one read."""
        places = (self._places[number] for number in numbers)
        return [
            table
            for index, members in groupby(places, key=lambda place: place[0])
            for table in self._decoded(self.parts[index], [row for _, row in members])
        ]

    def _decoded(self, part: Part, rows: list[int]) -> list[Any]:
        pieces = [(int(part.offsets[row]), int(part.lengths[row])) for row in rows]
        found = self._files.read(part.handle, pieces)
        tables = (_decode(part, row, data) for row, data in zip(rows, found, strict=True))
        return [self._form.rows(part, table, namespace=self.has_namespaces) for table in tables]


def _decode(part: Part, row: int, data: memoryview) -> Any:
    import pyarrow as pa

    if len(data) != part.lengths[row] or zlib.crc32(data) != part.checksums[row]:
        raise _corrupt(part, row, "other bytes")
    try:
        # The checksum is of all bytes, so nothing more need be validated.
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), part.schema)
    except pa.ArrowException as error:
        raise _corrupt(part, row, f"what is none ({error})") from error
    return pa.Table.from_batches([batch])


def _corrupt(part: Part, row: int, found: str) -> CorruptStateError:
    handle = part.handle
    uri = redact(handle.uri) if isinstance(handle, FileStateHandle | SegmentFileStateHandle) else "the checkpoint"
    return CorruptStateError(
        f"Expected the Arrow record batch of state {part.state.name} that was written at byte {part.offsets[row]} of {uri}, "
        f"found {found}; the file was changed or cut off, so restore from another checkpoint.",
        uri=uri,
    )
