"""Input of the workloads: TPC-H lineitem, generated once and cached."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from scripts.example_data import make_lines

KEYS = ("l_suppkey", "l_partkey", "l_orderkey")
PARTS = 8


def cache_folder() -> Path:
    """Return the folder for large reusable files, outside of the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "airflow-provider-statecheck-benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def lineitem(scale: str) -> Path:
    """Return the folder of the table, in files of equal size."""
    target = cache_folder() / f"tpch{scale}"
    if not target.exists():
        made = target.with_name(f"{target.name}.part")
        shutil.rmtree(made, ignore_errors=True)
        make_lines(made, scale=scale, parts=PARTS)
        made.rename(target)
    return target / "lineitem"


def lineitem_csv(scale: str) -> Path:
    """Return a folder with the keys and the price as CSV without a header, for peers without a Parquet reader."""
    target = cache_folder() / f"tpch{scale}-csv"
    if not target.exists():
        made = target.with_name(f"{target.name}.part")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        for part in sorted(lineitem(scale).glob("*.parquet")):
            table = pq.read_table(part, columns=[*KEYS, "l_extendedprice"])
            table = table.set_column(len(KEYS), "price", table["l_extendedprice"].cast(pa.float64()))
            pa.csv.write_csv(table, made / f"{part.stem}.csv", pa.csv.WriteOptions(include_header=False))
        made.rename(target)
    return target


def divided(folder: Path, count: int) -> Path:
    """Return a folder with the rows of a table in ``count`` files of equal size."""
    target = folder.with_name(f"{folder.name}-{count}")
    if not target.exists():
        made = target.with_name(f"{target.name}.part")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        table = pa.concat_tables(map(pq.read_table, sorted(folder.glob("*.parquet"))))
        size = -(-table.num_rows // count)
        for number in range(count):
            pq.write_table(table.slice(number * size, size), made / f"{number:04d}.parquet")
        made.rename(target)
    return target


def first_parts(folder: Path, count: int, work: Path) -> Path:
    """Return a folder with the first ``count`` files of another folder."""
    target = work / f"{folder.parent.name}-{folder.name}-{count}"
    if not target.exists():
        target.mkdir()
        for part in sorted(folder.iterdir())[:count]:
            (target / part.name).symlink_to(part)
    return target


def rows_of(folder: Path) -> int:
    """Return the number of rows in the Parquet files of a folder."""
    return sum(pq.ParquetFile(part).metadata.num_rows for part in folder.glob("*.parquet"))
