"""Comparisons of our stages with a peer, each side in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset

from benchmarks.measure import Result, median_ratio, medians
from benchmarks.side import Side

FIGURES = ("total", "n", "top")
_ROUNDING = 1e-9


def stage_side(work: Path) -> Side:
    """Return the unstarted process of our side."""
    return Side("benchmarks.stage_side", work / "ours.log", arguments=[str(work / "ours")])


def ratio_result(
    id: str, case: str, readings: list[list[float]], goal: float | None, sizes: dict[str, Any], unit: str = "s"
) -> Result:
    """Return the result for pairs of measurements of ours and the peer."""
    ours, peer = medians(readings)
    ratio = median_ratio(readings)
    return Result(
        id=id, case=case, ours=ours, peer=peer, unit=unit, ratio=ratio, goal=goal, pairs=readings, sizes=sizes
    )


def require_same_figures(ours: Path, peer: Path, key: str) -> int:
    """
    Compare the figures of all keys, prices up to the rounding of doubles.

    :param ours: Folder of Parquet files.
    :param peer: Folder of Parquet files, or a CSV file. Of several rows of a key, the one with the highest count is
        used.
    :param key: Name of the key column.
    :return: Number of keys.
    :raises RuntimeError: if the figures differ.
    """
    mine, theirs = _figures(ours, key), _figures(peer, key)
    same = len(mine) == len(theirs) and all(mine.column(name).equals(theirs.column(name)) for name in (key, "n"))
    if not same or not all(_are_close(mine.column(name), theirs.column(name)) for name in ("total", "top")):
        raise RuntimeError(f"Expected the same figures by {key} from both sides, found others in {ours} and {peer}.")
    return len(mine)


def _figures(source: Path, key: str) -> Any:
    table = pa.csv.read_csv(source) if source.is_file() else pa.dataset.dataset(source, format="parquet").to_table()
    table = table.select([key, *FIGURES]).cast(
        pa.schema([(key, pa.int64()), ("total", pa.float64()), ("n", pa.int64()), ("top", pa.float64())])
    )
    table = table.sort_by([(key, "ascending"), ("n", "descending")])
    last = table.group_by(key, use_threads=False).aggregate([(name, "first") for name in FIGURES])
    return last.rename_columns({f"{name}_first": name for name in FIGURES}).combine_chunks()


def _are_close(mine: Any, theirs: Any) -> bool:
    differences = pc.abs(pc.subtract(mine, theirs))
    return bool(pc.all(pc.less_equal(differences, pc.multiply(pc.abs(theirs), _ROUNDING))).as_py())
