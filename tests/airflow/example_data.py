"""
Real data for the example Dags, and little of it: 156 aircraft of the year's flights, and a hundredth of TPC-H's orders.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path

from scripts.example_data import Flight, copy_weather_and_planes, flights, make_orders, write_flights

AIRCRAFT = ("AT", "PQ")
"""How the numbers of the aircraft end; seventeen of these changed their operator."""


@cache
def few_flights() -> list[Flight]:
    """Return the flights of some aircraft, in the order in which they were planned to leave."""
    return [flight for flight in flights() if flight["tailnum"].endswith(AIRCRAFT)]


def hour_of(flight: Flight) -> datetime:
    """Return the hour for which a flight was planned, as Parquet gives it."""
    return datetime.fromisoformat(flight["time_hour"])


def make_data(folder: Path) -> None:
    """Put what the Dags read into a folder."""
    copy_weather_and_planes(folder / "flights")
    write_flights(folder / "flights" / "flights.csv", few_flights(), few_flights()[0])
    make_orders(folder / "tpch", scale="0.01")
