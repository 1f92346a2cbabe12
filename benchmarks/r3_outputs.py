"""Check of the outputs of R3: all runs of all sides must have the same rows and scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds

from benchmarks.peers.daft_side import TABLE, catalog_in
from benchmarks.r3_score import SCORE

_COLUMNS = ["id", "distance", SCORE]
_ROUNDING = 1e-9


class Outputs:
    """
    Outputs of the runs.

    :param rows: Expected number of rows; their ids are from zero.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._first: Any = None

    @property
    def checksum(self) -> float:
        """The sum of the scores."""
        return float(np.sum(self._first[SCORE]))

    def add(self, output: Path) -> None:
        """
        Compare an output with the first one, scores up to the rounding of other versions of numpy.

        :param output: Folder with Parquet files, or with a table of Iceberg and its catalog.
        :raises RuntimeError: if the outputs differ, or a row is missing or repeated.
        """
        table = _table(output).sort_by("id")
        found = {name: table[name].to_numpy() for name in _COLUMNS}
        self._first = self._first or found
        is_complete = np.array_equal(found["id"], np.arange(self._rows))
        if not is_complete or not all(np.allclose(found[k], self._first[k], rtol=_ROUNDING, atol=0) for k in _COLUMNS):
            raise RuntimeError(
                f"Expected {self._rows} rows with the scores of the other runs in {output}, found {len(table)} rows "
                f"with the sum {np.sum(found[SCORE])} instead of {self.checksum}."
            )


def _table(output: Path) -> Any:
    catalog = catalog_in(output)
    if catalog is None:
        return ds.dataset(output, format="parquet").to_table(_COLUMNS)
    # Files of killed tasks stay in the folder, but the table does not reference them.
    return catalog.load_table(TABLE).scan(selected_fields=tuple(_COLUMNS)).to_arrow()
